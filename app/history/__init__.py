"""The history of a stack: levels, change points, verdicts, golden runs; and the list of stacks."""

"""The history of a stack: segments, change points, verdicts, golden runs; and the list of stacks."""

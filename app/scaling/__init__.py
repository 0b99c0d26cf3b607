"""Scaling: one workload over GPU counts and sequence lengths, against its smallest size. A series is no ranking."""

"""Profiles of runs: upload, the three walls of a step, and why a step got longer."""

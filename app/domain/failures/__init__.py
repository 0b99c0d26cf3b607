"""What went wrong in a run, for a person: the root cause first, its evidence, what to do. Prose: `docs/failures.md`."""

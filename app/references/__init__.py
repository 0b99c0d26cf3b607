"""Published figures beside our own: the list, what teams add, and the nearest one to a stack or a run."""

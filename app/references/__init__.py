"""Reference points: the list, points of teams, and the nearest one to a stack or a run."""

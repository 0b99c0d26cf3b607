"""Compare two runs, or two sets of runs: the page and the API."""

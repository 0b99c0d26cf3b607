"""The report of a run, to post on a change: `/api/v1/runs/{id}/report.md` and `/api/v1/runs/{id}/report`."""

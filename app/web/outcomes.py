"""How a job can end (`health.outcome`), and the words for it on every page."""

OUTCOMES = {
    "completed": "completed",
    "truncated": "truncated",
    "failed": "crashed",
    "out_of_memory": "out of memory",
    "not_finite": "not finite",
    "stopped": "stopped",
    "running": "running",
    "unread": "unread",
}

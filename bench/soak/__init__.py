"""Long campaigns that look for lost data while the real service is killed, full, disconnected or damaged.

`python -m bench.soak` runs all campaigns, `python -m bench.soak.NAME` one. They start their own servers on free ports
of loopback addresses, end after `--minutes` or `--events`, and leave no process or file behind.
"""

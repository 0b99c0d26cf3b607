"""Long campaigns against the real service: is anything lost when it is killed, full, cut off or damaged?

`python -m bench.soak` runs all of them, `python -m bench.soak.NAME` one. They start their own servers on free ports of
loopback addresses, end after `--minutes` or `--events`, and leave no process or file behind.
"""

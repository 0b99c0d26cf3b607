"""Long campaigns against the real service: what is lost when it is killed, filled, cut off and damaged.

`python -m bench.soak` runs all of them, `python -m bench.soak.NAME` one. They start their own servers on free ports of
loopback addresses, stop by themselves after `--minutes` or `--events`, and leave no process and no file behind.
"""

"""Run all campaigns of `bench/soak` one after another and print one table.

`.venv/bin/python -m bench.soak --minutes 10`, or `make soak MINUTES=10`. Exit code 1 if a campaign failed. Servers
listen on loopback addresses only. PostgreSQL and Redis must be installed; the full disk needs root.
"""

import sys

from bench.soak import damaged_objects, database_away, disk_full, embedded_kill, mixed_load, reader_fuzz, scaled_kill
from bench.soak.campaign import run_all

CAMPAIGNS = (embedded_kill, scaled_kill, disk_full, database_away, damaged_objects, reader_fuzz, mixed_load)

if __name__ == "__main__":
    sys.exit(run_all([module.run for module in CAMPAIGNS], __doc__))

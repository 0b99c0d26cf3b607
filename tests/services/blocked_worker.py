"""A worker that claims a run and never finishes it, so that a test can kill it in the middle."""

import sys
import threading

from celery.__main__ import main

from app.pipeline import process


def _wait_for_the_end(*_: object) -> None:
    threading.Event().wait()


if __name__ == "__main__":
    process.parse_log = _wait_for_the_end
    sys.exit(main())

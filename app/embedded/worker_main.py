"""Run Celery's worker as a child process that ends on request or when its parent is gone.

Both are signalled through standard input, whose other end the parent holds. One byte requests a stop: the current run
may finish. (Celery's warm shutdown allows this, too, but takes five seconds when idle.) When the parent ends in any
way, including kill -9, the kernel closes the pipe. On Linux a signal (PR_SET_PDEATHSIG) also ends a worker that is
suspended and reads nothing. Celery's pool processes end with the worker: by that signal on Linux, elsewhere because
their own pipe closes. An interrupted run stays a claimed row, and the next start claims it again.
"""

import gc
import os
import signal
import sys
import threading
import time
import warnings
from functools import partial

from celery.__main__ import main
from celery.platforms import set_pdeathsig
from celery.signals import worker_process_init
from celery.worker import state

from app.embedded.worker import FINISH_SECONDS

gc.disable()  # while it imports; `workers.celery_app` enables it before the first fork


def _end_orphan(worker: int, **_: object) -> None:
    """End a pool process whose worker was killed before Celery could have the kernel end it."""
    if os.getppid() != worker:
        os.kill(os.getpid(), signal.SIGKILL)


def _end_with_parent() -> None:
    # os.read and not sys.stdin: a lock held here at a fork would hang the pool process that closes its standard input.
    if os.read(0, 1):
        state.should_stop = os.EX_OK  # takes no more runs
        end = time.monotonic() + FINISH_SECONDS
        while state.active_requests and time.monotonic() < end:
            time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    set_pdeathsig("SIGKILL")
    worker_process_init.connect(partial(_end_orphan, os.getpid()), weak=False)
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    # The danger that Celery warns root of is pickle, which is not accepted here (`queue.py`: JSON, ids only).
    warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")
    sys.argv = ["celery", *sys.argv[1:]]
    sys.exit(main())

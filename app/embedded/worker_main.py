"""The worker child: Celery's own worker, which ends when the process that started it is gone.

The parent holds the other end of standard input and never writes to it. When the parent ends in whatever way, also
by kill -9, the kernel closes that end and the read below returns. That holds on every system, where Linux's
PR_SET_PDEATHSIG would not. Celery's pool processes end with the worker: by that signal on Linux, elsewhere because
their own pipe closes. What was under way is left as a claimed row, and the next start takes it up again.
"""

import os
import signal
import sys
import threading
import warnings

from celery.__main__ import main


def _end_with_parent() -> None:
    # os.read and not sys.stdin: a lock held here at a fork would hang the pool process that closes its standard input.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    # The danger that Celery warns root of is pickle, which is not accepted here (`queue.py`: JSON, ids only).
    warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")
    sys.argv = ["celery", *sys.argv[1:]]
    sys.exit(main())

"""Progress of a slow start, printed for the user who waits for `threewalls serve`.

The module imports only the standard library, so that the clock starts before the service is imported.
"""

import threading

SLOW_SECONDS = 2.0


class StartUp:
    """Prints the current step of a start that takes longer than `seconds`, and every step after it."""

    def __init__(self, seconds: float = SLOW_SECONDS) -> None:
        self._lock = threading.Lock()
        self._step = "loading the service"
        self._is_slow = self._is_done = False
        self._timer = threading.Timer(seconds, self._become_slow)
        self._timer.daemon = True
        self._timer.start()

    def step(self, text: str) -> None:
        """Begin the next step."""
        with self._lock:
            self._step = text
            self._report()

    def done(self) -> None:
        """Stop reporting: the service answers, or its start failed."""
        self._timer.cancel()
        with self._lock:
            self._is_done = True

    def _become_slow(self) -> None:
        with self._lock:
            self._is_slow = True
            self._report()

    def _report(self) -> None:
        if self._is_slow and not self._is_done:
            print(f"Threewalls is starting: {self._step} ...", flush=True)

"""The demo's experiments through the API: planned from a run that is there, fed with runs, decided."""

import json
import threading
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from app.demo.job import PROJECT
from app.demo.trials import Trial

TIMEOUT_SECONDS = 60
_AUTHOR = "Demo"
_ATTEMPTS, _PAUSE_SECONDS = 600, 1.0
"""So long the service may take to read a run: a whole month was sent before."""


def planned(address: str, stopping: threading.Event, trial: Trial, run_id: int) -> dict[str, Any]:
    """The experiment, planned unless an earlier start did; empty when there was no time for it."""
    found = _call(address, "GET", f"experiments?project={quote(PROJECT)}&run={run_id}")["items"]
    if known := next((one for one in found if one["title"] == trial.title), None):
        return dict(known)
    if not _comes(stopping, lambda: _call(address, "GET", f"runs/{run_id}")["status"] == "ready"):
        return {}
    plan = {"run": run_id, "knobs": trial.knobs, "title": trial.title, "runs_each": trial.runs_each}
    return dict(_call(address, "POST", "experiments", plan | {"author": _AUTHOR}))


def accept(address: str, stopping: threading.Event, experiment: int, note: str) -> None:
    """Once its runs are there, unless somebody decided already."""

    def state() -> str:
        return str(_call(address, "GET", f"experiments/{experiment}")["state"])

    if _comes(stopping, lambda: state() not in ("planned", "waiting")) and state() == "done":
        _call(address, "PATCH", f"experiments/{experiment}", {"state": "accepted", "author": _AUTHOR, "note": note})


def _comes(stopping: threading.Event, condition: Callable[[], bool]) -> bool:
    """Waits for it; false when the service stops before."""
    for _ in range(_ATTEMPTS):
        if condition():
            return True
        if stopping.wait(_PAUSE_SECONDS):
            return False
    return False


def _call(address: str, method: str, path: str, body: object = None) -> Any:
    request = urllib.request.Request(  # noqa: S310  the address is our own server's
        f"{address}/api/v1/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
        return json.load(answer)

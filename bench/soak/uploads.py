"""Uploads that record acknowledgements and later check that each log exists exactly once and is complete."""

import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx2
from sqlalchemy import text

from app.settings import Settings
from app.storage.database import make_engine
from bench.soak.campaign import Tally
from tests.embedded.processes import PLAIN_HTTP, wait_for
from tests.training_logs import training_log

EXPECTED_REFUSALS = (429, 503, 507)
"""Status codes of a service that is full or disconnected. The client repeats such an upload."""

_SECONDS = 60


@dataclass
class Upload:
    """An upload. `run_id`: set when it is acknowledged. `sent`: acknowledged bytes of a growing log."""

    name: str
    log: bytes
    iterations: int
    run_id: int | None = None
    sent: int = 0


@dataclass
class Uploads:
    """All uploads of a campaign. Several threads may call its methods."""

    tally: Tally
    random: Random
    headers: Mapping[str, str] = field(default_factory=dict)
    whole: list[Upload] = field(default_factory=list)
    growing: list[Upload] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send_new(self, address: str) -> Upload:
        """Upload a new log once."""
        with self._lock:
            number = len(self.whole)
            iterations = self.random.randint(20, 120)
            noise = self.random.choice((0, 0, 0, 200_000))
            upload = Upload(f"whole-{number}", training_log(iterations, 200.0 + number / 10, noise), iterations)
            self.whole.append(upload)
        self.send(address, upload)
        return upload

    def send(self, address: str, upload: Upload) -> bool:
        """Upload a log, again if an earlier request was not answered. Return whether it was acknowledged."""
        files = {"log": ("train.log", upload.log), "meta": (None, json.dumps({"name": upload.name}))}
        return self._begin(f"{address}/api/v1/runs", upload, files)

    def grow(self, address: str) -> None:
        """Append a piece to the growing log. If the log is complete, begin another one."""
        if not self.growing or self.growing[-1].sent == len(self.growing[-1].log):
            number = len(self.growing)
            self.growing.append(Upload(f"growing-{number}", training_log(200, 900.0 + number / 10), 200))
        upload = self.growing[-1]
        files = {"meta": (None, json.dumps({"name": upload.name}))}
        if upload.run_id is None and not self._begin(f"{address}/api/v1/runs?complete=false", upload, files):
            return
        # After a kill, a client continues from the last acknowledged byte, or from a little before it.
        start = max(0, upload.sent - self.random.randint(0, 100))
        end = min(len(upload.log), upload.sent + self.random.randint(100, 8_000))
        last = "&complete=true" if end == len(upload.log) else ""
        logs = f"{address}/api/v1/runs/{upload.run_id}/logs?offset={start}{last}"
        answer = self._answer("append", logs, {}, content=upload.log[start:end])
        if answer is not None and answer.status_code == 200:
            upload.sent = end

    def finish(self, address: str) -> None:
        """Repeat uploads until all are acknowledged, then wait until every run is read."""
        for upload in self.whole:
            wait_for(lambda upload=upload: upload.run_id or self.send(address, upload), f"{upload.name} to be taken")
        while self.growing and self.growing[-1].sent < len(self.growing[-1].log):
            self.grow(address)
        wait_for(lambda: not self._unread(address), "all runs to be read")

    def check(self, address: str) -> None:
        """Count lost and doubled runs from answers of the service."""
        runs = self._runs(address)
        names = Counter(run["name"] for run in runs)
        for upload in (*self.whole, *self.growing):
            if upload.run_id is None:
                continue
            self.tally.acknowledged += 1
            run = self._get(f"{address}/api/v1/runs/{upload.run_id}").json()
            iterations = (run.get("health") or {}).get("iterations", 0)
            try:
                stored = self._get(f"{address}/api/v1/runs/{upload.run_id}/files/0").content
            except httpx2.TransportError:  # the service aborts an incomplete download
                stored = b""
            if run.get("status") != "ready" or iterations < upload.iterations or _hash(stored) != _hash(upload.log):
                what = f"{run.get('status')}, {iterations} of {upload.iterations} iterations"
                self.tally.count("lost", f"{what}, {len(stored):,} of {len(upload.log):,} bytes")
            elif iterations > upload.iterations:
                self.tally.count("doubled", f"{iterations} of {upload.iterations} iterations")
        for name in (names - Counter(set(names))).elements():
            self.tally.count("doubled", name)

    def _begin(self, url: str, upload: Upload, files: Mapping[str, Any]) -> bool:
        answer = self._answer("upload", url, {"Idempotency-Key": upload.name}, files=files)
        if answer is None or answer.status_code not in (200, 202):
            return False
        run_id = int(answer.json()["id"])
        if upload.run_id not in (None, run_id):
            self.tally.count("doubled", f"{upload.name} is run {upload.run_id} and {run_id}")
        upload.run_id = run_id
        return True

    def _answer(self, what: str, url: str, headers: Mapping[str, str], **body: Any) -> httpx2.Response | None:
        """Return the answer; None if the connection broke, in which case the request may have been processed."""
        try:
            answer = httpx2.post(url, headers={**self.headers, **headers}, timeout=_SECONDS, verify=PLAIN_HTTP, **body)
        except httpx2.TransportError:
            return None
        if answer.status_code not in (200, 202, *EXPECTED_REFUSALS):
            self.tally.count("errors", f"{what}: {answer.status_code} {answer.text[:160]}")
        return answer

    def _get(self, url: str) -> httpx2.Response:
        return httpx2.get(url, headers=self.headers, timeout=_SECONDS, verify=PLAIN_HTTP)

    def _runs(self, address: str) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = []
        page, pages = 1, 1
        while page <= pages:
            answer = self._get(f"{address}/api/v1/runs?page_size=200&sort=created&page={page}").json()
            runs += answer["items"]
            page, pages = page + 1, answer["pages"]
        return runs

    def _unread(self, address: str) -> bool:
        waiting = (self._get(f"{address}/api/v1/runs?status={status}").json() for status in ("received", "processing"))
        grown = (self._get(f"{address}/api/v1/runs/{upload.run_id}").json() for upload in self.growing)
        return any(answer["total"] for answer in waiting) or any(run["updating"] for run in grown)


def count_orphans(tally: Tally, settings: Settings) -> None:
    """Count rows without their run, missing objects, and unneeded objects that no sweep would delete."""
    engine = make_engine(settings)
    with engine.connect() as connection:
        for table in ("run_file", "series", "reading", "verdict"):
            without_run = f"SELECT run_id FROM {table} WHERE run_id NOT IN (SELECT id FROM run)"  # noqa: S608
            for run_id in connection.execute(text(without_run)).scalars():
                tally.count("orphans", f"{table} of run {run_id}")
        needed = set(connection.execute(text("SELECT DISTINCT object_key FROM segment")).scalars())
        noted = set(connection.execute(text("SELECT key FROM stored_object")).scalars())
    engine.dispose()
    folder = Path(settings.resolved_artifact_url)
    stored = {os.path.relpath(path, folder) for path in folder.rglob("*.zst")}
    for key in needed - stored:
        tally.count("orphans", f"segment without its object {key}")
    for key in stored - noted:
        tally.count("orphans", f"object without a reference: {key}")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

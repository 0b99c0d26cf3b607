"""Simulate a busy day without faults: uploads, a growing log, readers of all pages, and occasional restarts.

Every answer counts as an event. Status codes from 500 and failed requests are errors.
"""

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx2

from app.settings import Settings
from bench.soak.campaign import Scene, main
from bench.soak.uploads import Uploads, count_orphans
from tests.embedded.processes import PLAIN_HTTP, running

PAGES = (
    "/", "/runs", "/regressions", "/leaderboards", "/scaling", "/upgrade", "/experiments", "/references", "/history",
    "/compare", "/plan", "/playbook", "/api/v1/runs", "/api/v1/regressions", "/readyz", "/healthz",
)  # fmt: skip
PAGES_OF_A_RUN = ("/runs/{}", "/runs/{}/log", "/runs/{}/chart", "/api/v1/runs/{}", "/api/v1/runs/{}/report")
SECONDS_BETWEEN_RESTARTS = 120
READERS = 3
PAUSE_SECONDS = 0.05


def run(scene: Scene) -> None:
    data, uploads = scene.folder / "data", Uploads(scene.tally, scene.random)
    lock = threading.Lock()

    def repeat(act: Callable[[str], object], address: str, end: float) -> None:
        while time.monotonic() < end and scene.goes_on():
            act(address)
            with lock:
                scene.tally.events += 1
            time.sleep(PAUSE_SECONDS)

    def read(address: str) -> None:
        with lock:
            acknowledged = [upload.run_id for upload in uploads.whole if upload.run_id]
            path = scene.random.choice((*PAGES, *(PAGES_OF_A_RUN if acknowledged else ())))
            path = path.format(scene.random.choice(acknowledged or [0]))
        try:
            status = httpx2.get(address + path, timeout=60, verify=PLAIN_HTTP).status_code
        except httpx2.TransportError as error:
            status = 599
            scene.tally.count("errors", f"GET {path}: {type(error).__name__}")
        if 500 <= status < 599:
            scene.tally.count("errors", f"GET {path}: {status}")

    while scene.goes_on():
        with running("serve", data) as house, ThreadPoolExecutor() as clients:
            end = min(scene.end, time.monotonic() + SECONDS_BETWEEN_RESTARTS)
            acts = [uploads.send_new, uploads.grow, *[read] * READERS]
            for act in acts:
                clients.submit(repeat, act, house.address, end)
            clients.shutdown()
            if not scene.goes_on():
                uploads.finish(house.address)
                uploads.check(house.address)
            if house.stop() != 0 or "Traceback" in house.output:
                scene.tally.count("errors", f"the service did not stop cleanly: {house.output[-200:]}")
    count_orphans(scene.tally, Settings(data_dir=data))


if __name__ == "__main__":
    sys.exit(main(run, __doc__))

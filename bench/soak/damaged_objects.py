"""Truncate, overwrite, change or delete stored logs while the service runs, then upload the intact bytes again.

Pages and API calls for such a run must still answer. The second upload must restore the log; otherwise it counts as
lost.
"""

import sys
from pathlib import Path
from random import Random

import httpx2

from app.settings import Settings
from bench.soak.campaign import Scene, main
from bench.soak.uploads import Upload, Uploads, count_orphans
from tests.embedded.processes import PLAIN_HTTP, running

PATHS = ("/runs/{}", "/runs/{}/log", "/api/v1/runs/{}", "/api/v1/runs/{}/log", "/api/v1/runs/{}/files/0")
EXPECTED = (200, 404, 409, 410, 422, 503)


def run(scene: Scene) -> None:
    data, uploads = scene.folder / "data", Uploads(scene.tally, scene.random)
    with running("serve", data) as house:
        while scene.goes_on():
            upload = uploads.send_new(house.address)
            uploads.finish(house.address)
            _damage(_newest_object(data), scene.random)
            for path in PATHS:
                _read(scene, house.address + path.format(upload.run_id))
            scene.tally.events += 1
            again = Upload(f"{upload.name}-again", upload.log, upload.iterations)
            uploads.whole.append(again)
            uploads.send(house.address, again)
        uploads.finish(house.address)
        uploads.check(house.address)
        house.stop()
    count_orphans(scene.tally, Settings(data_dir=data))


def _newest_object(data: Path) -> Path:
    """Return the log that was uploaded last; no other upload is active."""
    objects = Path(Settings(data_dir=data).resolved_artifact_url).rglob("*.zst")
    return max(objects, key=lambda path: path.stat().st_mtime_ns)


def _damage(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    match random.choice(("cut", "empty", "change", "replace", "delete")):
        case "cut":
            path.write_bytes(content[: random.randrange(len(content))])
        case "empty":
            path.write_bytes(b"")
        case "change":
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
            path.write_bytes(content)
        case "replace":
            path.write_bytes(random.randbytes(len(content)))
        case "delete":
            path.unlink()


def _read(scene: Scene, url: str) -> None:
    try:
        status = httpx2.get(url, timeout=60, verify=PLAIN_HTTP).status_code
    except httpx2.TransportError as error:  # an aborted download shows the client that it is incomplete
        status = 200 if "/files/" in url else 0
        if not status:
            scene.tally.count("errors", f"read: {type(error).__name__}")
    if status not in EXPECTED:
        scene.tally.count("errors", f"read {url.rpartition('/runs/')[2].partition('/')[2] or 'run'}: {status}")


if __name__ == "__main__":
    sys.exit(main(run, __doc__))

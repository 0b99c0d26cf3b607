"""Fill the disk of the data folder and free it again while logs are uploaded to the embedded service.

The disk is a tmpfs of 48 MB, so mounting it needs root. Uploads that were acknowledged on a nearly full disk must
survive, and the service must continue without help when there is space again.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.settings import Settings
from bench.soak.campaign import Scene, main
from bench.soak.uploads import Uploads, count_orphans
from tests.embedded.processes import running

DISK_BYTES = 48_000_000


def run(scene: Scene) -> None:
    with _small_disk(scene.folder / "disk") as disk:
        data, ballast, uploads = disk / "data", disk / "ballast", Uploads(scene.tally, scene.random)
        scene.environment.setenv("TMPDIR", str(disk))
        # The space that the service keeps free must be small compared with this disk.
        scene.environment.setenv("THREEWALLS_MIN_FREE_BYTES", "1000000")
        with running("serve", data) as house:
            while scene.goes_on() and _free(disk) > DISK_BYTES // 2:
                # Some rounds leave space for a log but not for its row, others for neither.
                with ballast.open("wb", buffering=0) as file:  # the rest does not fit and is not written
                    file.write(b"\0" * max(0, _free(disk) - scene.random.choice((0, 4_000, 40_000, 400_000))))
                for _ in range(scene.random.randint(1, 5)):
                    uploads.send_new(house.address)
                    uploads.grow(house.address)
                time.sleep(scene.random.uniform(0, 1))
                ballast.unlink()
                scene.tally.events += 1
                uploads.send_new(house.address)
            uploads.finish(house.address)
            uploads.check(house.address)
            house.stop()
        with running("serve", data) as house:  # the database file must also be intact
            house.stop()
        count_orphans(scene.tally, Settings(data_dir=data))


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        raise PermissionError("only root can mount the small disk; run this campaign as root")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "threewalls-soak", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _free(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


if __name__ == "__main__":
    sys.exit(main(run, __doc__))

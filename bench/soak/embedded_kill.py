"""Kill (-9) the embedded server or its worker at any moment during uploads and growing logs.

Each round starts the service on the same folder and kills a process during some seconds of uploads.
"""

import os
import signal
import sys
import threading

from app.settings import Settings
from bench.soak.campaign import Scene, main
from bench.soak.uploads import Uploads, count_orphans
from tests.embedded.processes import Running, running


def run(scene: Scene) -> None:
    data, uploads = scene.folder / "data", Uploads(scene.tally, scene.random)
    while scene.goes_on():
        with running("serve", data) as house:
            for _ in range(scene.random.randint(0, 2)):
                _kill_while_sending(scene, uploads, house, worker=True)
            _kill_while_sending(scene, uploads, house, worker=False)
    with running("serve", data) as house:
        uploads.finish(house.address)
        uploads.check(house.address)
        house.stop()
    count_orphans(scene.tally, Settings(data_dir=data))


def _kill_while_sending(scene: Scene, uploads: Uploads, house: Running, *, worker: bool) -> None:
    killer = threading.Timer(scene.random.uniform(0.05, 1.5), _kill, (house, worker))
    killer.start()
    while killer.is_alive():
        uploads.send_new(house.address)
        uploads.grow(house.address)
    scene.tally.events += 1


def _kill(house: Running, worker: bool) -> None:
    if not worker:
        house.process.kill()
    elif (pid := house.worker_pid()) is not None:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(run, __doc__))

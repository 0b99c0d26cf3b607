"""Kill (-9) workers, beat, web and Redis of a scaled service on PostgreSQL while logs are uploaded."""

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from app.settings import Settings
from app.storage.database import migrate
from bench.soak.campaign import Scene, main
from bench.soak.uploads import Uploads, count_orphans
from tests.embedded.processes import running
from tests.services.postgres_server import running_postgres
from tests.services.redis_server import free_port, running_redis
from tests.services.scaled import BEAT, WORKER, House, kill, scaled_house

SENDERS = 3


def run(scene: Scene) -> None:
    port = free_port()
    with ExitStack() as stack:
        redis = stack.enter_context(ExitStack())
        broker_url = redis.enter_context(running_redis(port))
        postgres = stack.enter_context(running_postgres())
        database_url = postgres.url(postgres.new_database())
        migrate(Settings(database_url=database_url))
        house = stack.enter_context(
            scaled_house(scene.folder, scene.environment, database_url=database_url, broker_url=broker_url, kills=True)
        )
        uploads = Uploads(scene.tally, scene.random, house.headers)
        processes = _Processes(scene, house)
        while scene.goes_on():
            with ThreadPoolExecutor(SENDERS) as senders:
                for _ in range(scene.random.randint(SENDERS, 5 * SENDERS)):
                    senders.submit(uploads.send_new, house.web.address)
                time.sleep(scene.random.uniform(0, 0.5))
                killed = scene.random.choice(("one", "two", "one", "two", "beat", "web", "redis"))
                if killed == "web":
                    house.web.process.kill()
                elif killed == "redis":
                    redis.close()
                else:
                    processes.replace(killed)
                scene.tally.events += 1
            if killed == "web":
                house.web = house.stack.enter_context(running("serve", house.data))
            elif killed == "redis":
                redis.enter_context(running_redis(port))
        uploads.finish(house.web.address)
        uploads.check(house.web.address)
        house.web.stop()
        count_orphans(scene.tally, Settings())


class _Processes:
    """Two workers and beat. Each is replaced as soon as it is killed."""

    def __init__(self, scene: Scene, house: House) -> None:
        self._scene, self._house = scene, house
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("one", "two", "beat"):
            self._start(name)

    def replace(self, name: str) -> None:
        kill(self._started[name])
        self._start(name)

    def _start(self, name: str) -> None:
        command: Sequence[str] = BEAT if name == "beat" else WORKER
        self._started[name] = self._house.start(command, "" if name == "beat" else f"{name}{self._scene.tally.events}")


if __name__ == "__main__":
    sys.exit(main(run, __doc__))

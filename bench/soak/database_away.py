"""Make the database refuse connections for some seconds at a time while logs are uploaded and pages are read.

PostgreSQL stays up but ends every connection to the service's database, as in a fail-over. The service may answer 503
with a reason, but never 500.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2

from app.settings import Settings
from app.storage.database import migrate
from bench.soak.campaign import Scene, main
from bench.soak.uploads import Uploads, count_orphans
from tests.embedded.processes import PLAIN_HTTP
from tests.services.postgres_server import Postgres, running_postgres
from tests.services.redis_server import free_port, running_redis
from tests.services.scaled import BEAT, WORKER, scaled_house

SENDERS = 3
PATHS = ("/api/v1/runs", "/api/v1/regressions", "/readyz", "/healthz")


def run(scene: Scene) -> None:
    with running_redis(free_port()) as broker_url, running_postgres() as postgres:
        database = postgres.new_database()
        database_url = postgres.url(database)
        migrate(Settings(database_url=database_url))
        with scaled_house(
            scene.folder, scene.environment, database_url=database_url, broker_url=broker_url, kills=True
        ) as house:
            uploads = Uploads(scene.tally, scene.random, house.headers)
            house.start(WORKER, "one")
            house.start(BEAT)
            while scene.goes_on():
                with ThreadPoolExecutor(SENDERS) as senders:
                    for _ in range(scene.random.randint(2, 6)):
                        senders.submit(uploads.send_new, house.web.address)
                    time.sleep(scene.random.uniform(0, 0.3))
                    _take_away(postgres, database)
                    for path in PATHS:
                        senders.submit(_read, scene, house.web.address + path, house.headers)
                    time.sleep(scene.random.uniform(0.2, 2))
                    _bring_back(postgres, database)
                    scene.tally.events += 1
            uploads.finish(house.web.address)
            uploads.check(house.web.address)
            house.web.stop()
            count_orphans(scene.tally, Settings())


def _take_away(postgres: Postgres, database: str) -> None:
    postgres.run(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS false')
    postgres.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")  # noqa: S608


def _bring_back(postgres: Postgres, database: str) -> None:
    postgres.run(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS true')


def _read(scene: Scene, url: str, headers: dict[str, str]) -> None:
    status = httpx2.get(url, headers=headers, timeout=60, verify=PLAIN_HTTP).status_code
    if status not in (200, 503):
        scene.tally.count("errors", f"read {url.rpartition('/')[2]}: {status}")


if __name__ == "__main__":
    sys.exit(main(run, __doc__))

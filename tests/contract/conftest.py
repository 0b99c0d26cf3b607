"""One service with two teams for all calls of these tests, which change it and must not break it."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from app import queue
from app.main import create_app
from app.settings import get_settings
from app.storage.database import transaction
from tests.access.belongings import Belongings, make_belongings
from tests.access.people import OURS, THEIRS, Teams, make_teams

TeamsAndBelongings = tuple[Teams, Mapping[str, Belongings]]


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, migrated_file: Path, event_loop: None, compiled_once: None
) -> Iterator[TeamsAndBelongings]:
    folder = tmp_path_factory.mktemp("contract")
    shutil.copy(migrated_file, folder / "threewalls.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THREEWALLS_DATA_DIR", str(folder))
        patch.setenv("THREEWALLS_LOG_LEVEL", "error")
        patch.setenv("THREEWALLS_REQUESTS_PER_MINUTE", "0")
        patch.setenv("THREEWALLS_UPLOADS_PER_MINUTE", "0")
        patch.setenv("THREEWALLS_MAX_WAIT_SECONDS", "0")
        _forget()
        app = create_app(get_settings())
        teams = make_teams(app)
        with transaction(teams.engine) as session:
            owned = {slug: make_belongings(session, slug, whole=True) for slug in (OURS, THEIRS)}
        yield teams, owned
        app.state.engine.dispose()
    _forget()


def _forget() -> None:
    for made_once in (get_settings, queue.get_celery):
        made_once.cache_clear()

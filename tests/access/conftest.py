from collections.abc import Iterator

import pytest

from app.main import create_app
from app.settings import Settings
from tests.access.people import Teams, make_teams
from tests.prepared import prepared


@pytest.fixture
def teams(settings: Settings) -> Iterator[Teams]:
    app = create_app(settings)

    def make() -> tuple[int, int, int, dict[str, int], dict[str, str]]:
        teams = make_teams(app)
        return teams.ours, teams.theirs, teams.public, dict(teams.users), dict(teams.tokens)

    yield Teams(app, *prepared(app.state.engine, make), app.state.engine)
    app.state.engine.dispose()

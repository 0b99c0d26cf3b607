from collections.abc import Iterator

import pytest

from app.main import create_app
from app.settings import Settings
from tests.access.people import Teams, make_teams


@pytest.fixture
def teams(settings: Settings) -> Iterator[Teams]:
    app = create_app(settings)
    yield make_teams(app)
    app.state.engine.dispose()

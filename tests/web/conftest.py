"""Runs of the tests of pages."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from app.storage.database import transaction
from app.storage.log_files import LogFiles
from tests.builders import make_run


@pytest.fixture
def make(engine: Engine, log_files: LogFiles) -> Callable[..., int]:
    def make(**columns: Any) -> int:
        with transaction(engine) as session:
            return make_run(session, log_files=log_files, **columns)

    return make

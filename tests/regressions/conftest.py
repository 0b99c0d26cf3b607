"""Regressions of the tests of triage."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from app.storage.database import transaction
from tests.regressions.triaged import SlowStack, make_regression


@pytest.fixture
def make(engine: Engine, stack: SlowStack) -> Callable[..., int]:
    def make(stacks: Any = stack, **columns: Any) -> int:
        with transaction(engine) as session:
            return make_regression(session, stacks, **columns)

    return make

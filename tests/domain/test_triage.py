"""Which state of a regression may follow which."""

import pytest

from app.domain.verdict.triage import STATES, next_states, refused_because


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("open", "acknowledged"),
        ("open", "expected"),
        ("open", "fixed"),
        ("open", "invalid"),
        ("acknowledged", "open"),
        ("acknowledged", "fixed"),
        ("expected", "open"),
        ("expected", "fixed"),
        ("fixed", "open"),
        ("invalid", "open"),
        ("fixed", "fixed"),
    ],
)
def test_what_is_sensible_is_allowed(before: str, after: str) -> None:
    assert refused_because(before, after) == ""


@pytest.mark.parametrize(
    ("before", "after", "because"),
    [
        ("fixed", "acknowledged", "it is fixed and can only become open"),
        ("fixed", "expected", "it is fixed and can only become open"),
        ("invalid", "fixed", "it is invalid and can only become open"),
        ("expected", "acknowledged", "it is expected and can only become open, fixed or invalid"),
    ],
)
def test_what_was_decided_is_opened_before_it_is_decided_otherwise(before: str, after: str, because: str) -> None:
    assert refused_because(before, after) == because


@pytest.mark.parametrize("state", STATES)
def test_every_state_can_be_left_and_reached(state: str) -> None:
    assert next_states(state)
    assert any(state in next_states(other) for other in STATES)

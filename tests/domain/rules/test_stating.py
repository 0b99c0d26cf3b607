"""Facts as people state them: read by kind, refused with what to do instead."""

import pytest

from app.domain.rules.facts import FACTS
from app.domain.rules.stated import STATEABLE, TAKE_BACK, read_facts


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("exposed_comm_frac", "18 %", 0.18),
        ("exposed_comm_frac", 0.18, 0.18),
        ("gpu_idle_frac", "0", 0.0),
        ("stage_spread_frac", "1.5", 1.5),
        ("replay_proof", "yes", True),
        ("replay_proof", False, False),
        ("installed_flex_backends", "deepep, hybridep", ["deepep", "hybridep"]),
        ("installed_flex_backends", "none", []),
        ("oom_ranks", "0, 7", [0, 7]),
        ("oom_phase", "warmup", "warmup"),
        ("budget_residual_ms", "-3.5", -3.5),
        ("sharp", TAKE_BACK, None),
    ],
)
def test_a_value_is_read_by_its_kind(name: str, raw: object, value: object) -> None:
    assert read_facts({name: raw}, "facts") == ({name: value}, [])


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("exposed_comm_frac", "18", "between 0 and 1"),
        ("exposed_comm_frac", "-0.1", "not be negative"),
        ("exposed_comm_frac", "nan", "finite"),
        ("exposed_comm_frac", "much", "a number"),
        ("replay_proof", "perhaps", "yes or no"),
        ("installed_flex_backends", "deepseek", "must be one or more of deepep"),
        ("profile_rank", "1.5", "whole number"),
        ("replay_proof", None, "must have a value"),
        ("steps_done", 4, "computed by this service"),
        ("pp", 4, "contract field"),
        ("dense_layers", 4, "is derived"),
        ("exposed_com_frac", 0.1, "Did you mean `exposed_comm_frac`?"),
        ("oom_phase", "x" * 600, "at most 500"),
    ],
)
def test_what_is_wrong_is_said(name: str, raw: object, said: str) -> None:
    found, (error,) = read_facts({name: raw}, "facts")
    assert (found, error.field) == ({}, f"facts.{name}")
    assert said in error.message


def test_no_field_of_the_contract_no_threshold_and_nothing_of_two_runs_is_stated() -> None:
    groups = {FACTS[name].group for name in STATEABLE}
    assert groups == {"measured", "asked"}

"""A knob that is turned takes along what follows from it, and nothing else."""

import pytest

from app.domain.contract.derive import derive
from app.domain.contract.keys import config_key, stack_key
from app.domain.experiments.plan import knob_change, read_knobs, turned
from app.domain.run import Stated, Value


def contract(**fields: Value) -> dict[str, Stated]:
    return derive({name: Stated(value, "arguments", "a dump") for name, value in fields.items()})


ALLTOALL = contract(dispatcher_type="alltoall", flex_backend=None, dispatch_sms=24, tp=1, pp=1, cp=1, gpus=16, ep=16)

NOTHING_AGAIN = contract(recompute_granularity="none")


def change(before: dict[str, Stated], **knobs: Value) -> dict[str, Stated]:
    return turned(before, tuple(knob_change(name, value, before) for name, value in knobs.items()))


@pytest.mark.parametrize(
    ("before", "knobs", "fields"),
    [
        (ALLTOALL, {"dispatcher": "deepep"}, {"dispatcher_type": "flex", "flex_backend": "deepep", "dispatch_sms": 24}),
        (ALLTOALL, {"dispatcher_type": "flex", "flex_backend": "hybridep"}, {"dispatcher": "hybridep"}),
        (ALLTOALL, {"tp": 2}, {"dp": 8, "edp": None}),
        (NOTHING_AGAIN, {"recompute_granularity": "selective"}, {"recompute_modules": ("core_attn",)}),
        (contract(recompute_granularity="selective"), {"recompute_granularity": "none"}, {"recompute_modules": None}),
        (contract(graph_impl="none"), {"graph_impl": "full_iteration"}, {"graph_modules": None}),
    ],
)  # fmt: skip
def test_what_follows_from_a_knob_is_worked_out_again(
    before: dict[str, Stated], knobs: dict[str, Value], fields: dict[str, Value]
) -> None:
    after = change(before, **knobs)
    for name, value in fields.items():
        found = after.get(name)
        assert (None if found is None else found.value) == value, name


def test_the_key_of_the_change_is_that_of_a_run_that_states_it() -> None:
    stated = contract(dispatcher_type="flex", flex_backend="deepep", dispatch_sms=24, tp=1, pp=1, cp=1, gpus=16, ep=16)
    assert config_key("moe", change(ALLTOALL, dispatcher="deepep")) == config_key("moe", stated)
    assert stack_key("moe", change(ALLTOALL, dispatcher="deepep")) == stack_key("moe", ALLTOALL)


def test_turning_back_is_the_contract_as_it_was() -> None:
    there = change(ALLTOALL, tp=2)
    back = change(there, tp=1)
    assert config_key("moe", back) == config_key("moe", ALLTOALL)


def test_turning_nothing_changes_nothing() -> None:
    assert turned(ALLTOALL, ()) == ALLTOALL


def test_values_that_only_a_log_shows_stay() -> None:
    shown = {**ALLTOALL, "precision": Stated("fp8_mx", "derived", "a line of the log")}
    assert change(shown, ep_overlap=True)["precision"] == shown["precision"]


def test_what_a_log_derived_still_says_which_knobs_are_in_use() -> None:
    known = {
        "precision": Stated("bf16", "derived", "line 11: bf16 = True"),
        "param_gather_lp": Stated(None, "derived", "not in use: the precision is not a low one (stated: false)"),
        "delay_wgrad": Stated(value=False, source="arguments", detail="line 12"),
    }
    assert change(known, delay_wgrad=True)["param_gather_lp"].value is None


def test_knobs_are_read_into_canonical_values() -> None:
    (knob,) = read_knobs({"ep_overlap": "on"}, ALLTOALL)
    assert (knob.before, knob.after, knob.known, knob.before_text) == (None, True, False, "unknown")
    (known,) = read_knobs({"dispatcher": "DeepEP"}, ALLTOALL)
    assert (known.before_text, known.after_text) == ("alltoall", "deepep")

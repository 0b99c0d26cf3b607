"""How many runs a side, in numbers worked out by hand, and the order in which they take turns."""

import math

import pytest

from app.domain.contract.derive import derive
from app.domain.contract.keys import config_key, stack_key
from app.domain.experiments.plan import (
    MOST_EACH,
    POWER,
    interleaved,
    knob_change,
    planned_change,
    read_knobs,
    size,
    smallest_pct,
    turned,
)
from app.domain.rules.change import OwnIdea
from app.domain.run import Stated, Value
from app.domain.verdict.special import t_quantile
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior
from tests.domain.verdict.runs import make_runs

QUIET = Prior(variance=0.004**2, degrees_of_freedom=20, configurations=9)


@pytest.mark.parametrize(
    ("prior", "runs", "t_limit", "t_power", "smallest"),
    [
        # df 12, SE 0.4 % * sqrt(2/2): limit 3.5495 * 0.4 % = 1.420 %, power 0.8726 * 0.4 % = 0.349 %: 1.769 % in ln
        (QUIET, 2, 3.5495, 0.8726, 1.7533),
        # df 4 + 3 - 1 = 6, SE 1.5 % * sqrt(2/3) = 1.2247 %: (4.5243 + 0.9057) * 1.2247 % = 6.650 % in ln
        (DEFAULT_PRIOR, 3, 4.5243, 0.9057, 6.434),
    ],
)
def test_the_smallest_effect_is_the_limit_of_the_test_and_what_its_power_adds(
    prior: Prior, runs: int, t_limit: float, t_power: float, smallest: float
) -> None:
    df = min(prior.degrees_of_freedom + runs - 1, 12)
    assert t_quantile(0.998, df) == pytest.approx(t_limit, abs=0.002)
    assert t_quantile(POWER, df) == pytest.approx(t_power, abs=0.0002)
    found = size([], prior, runs_each=runs)
    assert found.smallest_pct == pytest.approx(smallest, abs=0.003)
    assert found.smallest_pct == pytest.approx(smallest_pct(found, runs))


def test_nothing_below_one_per_cent_is_ever_promised() -> None:
    silent = Prior(variance=1e-12, degrees_of_freedom=20, configurations=9)
    assert size([], silent).runs_each == 1
    assert size([], silent).smallest_pct == pytest.approx(100 * -math.expm1(-0.01), abs=0.001)


def test_own_launches_are_drawn_together_with_the_prior() -> None:
    """Eight launches that vary by 0.1 % (sd): (4 * 1.5 %^2 + 7 * 0.1 %^2) / 11 = 0.908 %^2."""
    shifts = [0.001 * one for one in (-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0)]
    own = sum((one - 0.0) ** 2 for one in shifts) / 7
    found = size(make_runs(shifts))
    assert found.prior.variance == pytest.approx((4 * 0.015**2 + 7 * own) / 11)
    assert found.prior.degrees_of_freedom == 11
    assert (found.spread_from, found.spread_runs) == ("series", 8)
    assert found.spread_pct == pytest.approx(0.908, abs=0.005)


@pytest.mark.parametrize(
    ("own", "family", "source"),
    [(0, DEFAULT_PRIOR, "default"), (4, DEFAULT_PRIOR, "default"), (4, QUIET, "family"), (5, QUIET, "series")],
)
def test_whose_spread_it_is_is_told(own: int, family: Prior, source: str) -> None:
    assert size(make_runs([0.001 * (day % 2) for day in range(own)]), family).spread_from == source


def test_what_varies_too_much_is_capped_and_told() -> None:
    found = size([], DEFAULT_PRIOR)
    assert (found.needed, found.runs_each) == (None, MOST_EACH)
    assert found.smallest_pct > found.effect_pct


def test_more_runs_see_smaller_effects() -> None:
    seen = [point.smallest_pct for point in size([]).curve]
    assert seen == sorted(seen, reverse=True)
    assert size([], effect_pct=5.0).runs_each <= size([], effect_pct=3.0).runs_each


@pytest.mark.parametrize("runs_each", range(1, 21))
def test_the_order_is_balanced(runs_each: int) -> None:
    order = interleaved(runs_each)
    assert order.count("baseline") == order.count("candidate") == runs_each
    for end in range(1, len(order) + 1):
        ahead = order[:end].count("baseline") - order[:end].count("candidate")
        assert abs(ahead) <= 1
    places = {side: [place for place, one in enumerate(order) if one == side] for side in ("baseline", "candidate")}
    apart = sum(places["candidate"]) - sum(places["baseline"])
    assert apart == (0 if runs_each % 2 == 0 else 1)


# --- A knob that is turned takes along what follows from it, and nothing else.


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


# --- What is pasted for a planned change.


def test_a_flag_that_is_no_field_changes_against_the_arguments_of_the_log() -> None:
    idea = OwnIdea({}, megatron_lm=("--manual-gc-interval 50",))
    (lm,) = planned_change(idea, {}, None, {"manual_gc_interval": 10, "context_parallel_size": 2}).commands
    assert lm.diff == ("- --manual-gc-interval 10", "+ --manual-gc-interval 50")
    assert planned_change(idea, {}, None, {"manual_gc_interval": 50, "context_parallel_size": 2}).commands == ()

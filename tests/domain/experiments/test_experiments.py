"""Experiments: their size, their results, and the journey that they form."""

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from app.domain.contract.derive import derive
from app.domain.contract.resolve import config_key, stack_key
from app.domain.experiments.journey import (
    Continuation,
    JourneyRun,
    JourneyStep,
    continuation,
    dot,
    make_journey,
    mermaid,
)
from app.domain.experiments.outcome import Applicant, Enrolment, ExperimentMember, OutcomeRules, outcome
from app.domain.experiments.plan import (
    FEWEST_EACH,
    MOST_EACH,
    MOST_GPU_HOURS,
    POWER,
    Aim,
    interleaved,
    knob_change,
    planned_change,
    read_knobs,
    runs_that_decide,
    size,
    smallest_pct,
    turned,
)
from app.domain.experiments.sweep import Trial, cost_of_sweep, rounds, sweep_progress
from app.domain.experiments.values import KnobChange, PlannedGain, Side, State
from app.domain.rules.change import OwnIdea
from app.domain.run import Activity, Stated, Value
from app.domain.verdict.record import RunRecord
from app.domain.verdict.special import t_quantile
from app.domain.verdict.step_time import DEFAULT_PRIOR, Comparison, Prior
from tests.domain.verdict.matching_runs import make_record
from tests.domain.verdict.runs import make_runs

KNOB = KnobChange("dispatcher", "alltoall", "deepep")
SURE = Prior(variance=0.004**2, degrees_of_freedom=20, configurations=9)
BEGAN = datetime(2026, 11, 21, tzinfo=UTC)
BASELINE = make_record("b0", {"dispatcher": "alltoall"}, commit="c0", purpose="experiment")
ENROLMENT = Enrolment(
    baseline=BASELINE,
    tag="exp-dispatcher-1",
    baseline_key=BASELINE.config_key,
    candidate_key=config_key("moe", turned(BASELINE.contract, (KNOB,))),
    knobs=(KNOB,),
    since=BEGAN,
)


def record(run: str, side: Side, slower: float = 0.0, **other: object) -> RunRecord:
    fields = {"dispatcher": "alltoall" if side == "baseline" else "deepep"}
    facts: dict[str, object] = {"commit": "c0", "purpose": "experiment"} | other
    return make_record(run, fields, slower=slower, **facts)


def member(
    run: str,
    side: Side,
    slower: float = 0.0,
    *,
    activity: Mapping[str, Activity] | None = None,
    level: str = "validated",
    **other: object,
) -> ExperimentMember:
    return ExperimentMember(Applicant(record(run, side, slower, **other), BEGAN, (), activity), side, level, {})


def sides(baseline: tuple[float, ...], candidate: tuple[float, ...]) -> list[ExperimentMember]:
    """`b0`, `b1`, ... and `c0`, `c1`, ...: how much slower each is, in ln."""
    return [
        *(member(f"b{place}", "baseline", slower) for place, slower in enumerate(baseline)),
        *(member(f"c{place}", "candidate", slower) for place, slower in enumerate(candidate)),
    ]


def with_figures(member: ExperimentMember, memory_bytes: float, loss: float) -> ExperimentMember:
    estimate = replace(member.run.estimate, peak_memory_bytes=memory_bytes, loss=loss)
    return replace(member, applicant=replace(member.applicant, run=replace(member.run, estimate=estimate)))


def rules(runs_each: int = 2, extensions: int = 0) -> OutcomeRules:
    return OutcomeRules(runs_each, SURE, extensions)


# --- The number of runs per side, in numbers computed by hand, and their interleaved order.

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
    sizing = size([], prior, runs_each=runs)
    assert sizing.smallest_pct == pytest.approx(smallest, abs=0.003)
    assert sizing.smallest_pct == pytest.approx(smallest_pct(sizing, runs))


def test_nothing_below_one_per_cent_is_ever_promised() -> None:
    silent = Prior(variance=1e-12, degrees_of_freedom=20, configurations=9)
    assert size([], silent).runs_each == FEWEST_EACH
    assert size([], silent).smallest_pct == pytest.approx(100 * -math.expm1(-0.01), abs=0.001)


def test_own_launches_are_drawn_together_with_the_prior() -> None:
    """Eight launches that vary by 0.1 % (sd): (4 * 1.5 %^2 + 7 * 0.1 %^2) / 11 = 0.908 %^2."""
    shifts = [0.001 * sigma for sigma in (-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0)]
    own = sum((shift - 0.0) ** 2 for shift in shifts) / 7
    sizing = size(make_runs(shifts))
    assert sizing.prior.variance == pytest.approx((4 * 0.015**2 + 7 * own) / 11)
    assert sizing.prior.degrees_of_freedom == 11
    assert (sizing.spread_from, sizing.spread_runs) == ("series", 8)
    assert sizing.spread_pct == pytest.approx(0.908, abs=0.005)


@pytest.mark.parametrize(
    ("own", "family", "source"),
    [(0, DEFAULT_PRIOR, "default"), (4, DEFAULT_PRIOR, "default"), (4, QUIET, "family"), (5, QUIET, "series")],
)
def test_the_source_of_the_spread_is_stated(own: int, family: Prior, source: str) -> None:
    assert size(make_runs([0.001 * (day % 2) for day in range(own)]), family).spread_from == source


def test_a_spread_that_is_too_large_is_capped_with_a_warning() -> None:
    sizing = size([], DEFAULT_PRIOR)
    assert (sizing.needed, sizing.runs_each) == (None, MOST_EACH)
    assert sizing.smallest_pct > sizing.effect_pct


def test_more_runs_see_smaller_effects() -> None:
    seen = [point.smallest_pct for point in size([]).curve]
    assert seen == sorted(seen, reverse=True)
    assert size([], aim=Aim(5.0, 5.0)).runs_each < size([], aim=Aim(3.0, 3.0)).runs_each


def test_a_plan_begins_with_the_middle_of_what_is_expected_and_names_what_its_lower_end_takes() -> None:
    sizing = size([], aim=Aim(3.0, 15.0))
    assert (sizing.runs_each, sizing.needed) == (FEWEST_EACH, size([], aim=Aim(3.0, 3.0)).needed)
    assert (sizing.needed or 0) > FEWEST_EACH


@pytest.mark.parametrize(("gpus", "each"), [(8, MOST_EACH), (1000, 5), (100_000, FEWEST_EACH)])
def test_a_plan_without_an_expected_effect_stays_within_a_cost(gpus: int, each: int) -> None:
    """A run of 50 steps of 3.6 s takes 0.05 h."""
    sizing = size([], step_s=3.6, gpus=gpus)
    assert sizing.runs_each == each
    assert each == FEWEST_EACH or (sizing.gpu_hours or 0.0) <= MOST_GPU_HOURS
    assert size([], aim=Aim(2.0, 2.0, most_gpu_hours=None), step_s=3.6, gpus=gpus).runs_each == MOST_EACH


def test_launches_of_a_configuration_share_the_noise_within_their_runs() -> None:
    """Whichever of three launches is the baseline, an unusually noisy one does not set the size of the plan."""
    sizes = []
    for of, *others in permutations((0.004, 0.005, 0.014)):
        history = [replace(run, se=noise) for run, noise in zip(make_runs([0.0, 0.0]), others, strict=True)]
        sizes.append(size(history, QUIET, noise=of))
    assert {sizing.noise for sizing in sizes} == {0.005}
    assert {round(sizing.spread_pct, 6) for sizing in sizes} == {0.5}
    assert len({sizing.curve for sizing in sizes}) == 1


def test_a_plan_says_from_how_many_runs_on_only_the_least_change_that_counts_limits_it() -> None:
    quiet, noisy = size([], QUIET, noise=0.004), size([], replace(QUIET, variance=0.1**2), noise=0.004)
    assert noisy.limit_from is None
    assert quiet.limit_from in [point.runs_each for point in quiet.curve]
    assert all(point.smallest_pct >= quiet.limit_pct for point in quiet.curve)


@pytest.mark.parametrize("slower", [-0.0116, -0.012, 0.0145, -0.0145])
def test_an_undecided_result_needs_the_runs_that_the_table_of_its_plan_names(slower: float) -> None:
    result = outcome(sides((0.0, 0.0), (slower, slower)), ENROLMENT, OutcomeRules(2, DEFAULT_PRIOR))
    assert result.verdict is not None
    time = result.verdict.step_time
    assert time is not None
    each = runs_that_decide(DEFAULT_PRIOR, 0.0, time.shift)
    assert (result.inconclusive, time.power, time.alternative) == (True, POWER, None)
    assert time.need_runs == (None if each is None else each - 2)
    sizing = size([], DEFAULT_PRIOR)
    effect = round(-100 * math.expm1(-abs(time.shift)), 1)
    enough = [n for n in range(1, 21) if round(smallest_pct(sizing, n), 1) <= effect]
    assert each == next(iter(enough), None)


def test_a_larger_effect_needs_at_most_as_many_runs_and_the_smallest_are_shown_to_be_equal() -> None:
    needed = [runs_that_decide(QUIET, 0.0, shift) or math.inf for shift in (0.0115, 0.013, 0.017, 0.03)]
    assert needed == sorted(needed, reverse=True)
    assert (runs_that_decide(QUIET, 0.0, 0.001) or math.inf) < (runs_that_decide(QUIET, 0.0, 0.009) or math.inf)


@pytest.mark.parametrize("runs_each", range(1, 21))
def test_the_order_is_balanced(runs_each: int) -> None:
    order = interleaved(runs_each)
    assert order.count("baseline") == order.count("candidate") == runs_each
    for end in range(1, len(order) + 1):
        ahead = order[:end].count("baseline") - order[:end].count("candidate")
        assert abs(ahead) <= 1
    places = {side: [place for place, arm in enumerate(order) if arm == side] for side in ("baseline", "candidate")}
    apart = sum(places["candidate"]) - sum(places["baseline"])
    assert apart == (0 if runs_each % 2 == 0 else 1)


# --- A changed knob changes the fields that follow from it, and nothing else.


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
        resolved = after.get(name)
        assert (None if resolved is None else resolved.value) == value, name


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
    before = {
        "precision": Stated("bf16", "derived", "line 11: bf16 = True"),
        "param_gather_lp": Stated(None, "derived", "not in use: the precision is not a low one (stated: false)"),
        "delay_wgrad": Stated(value=False, source="arguments", detail="line 12"),
    }
    assert change(before, delay_wgrad=True)["param_gather_lp"].value is None


def test_knobs_are_read_into_canonical_values() -> None:
    (knob,) = read_knobs({"ep_overlap": "on"}, ALLTOALL)
    assert (knob.before, knob.after, knob.known, knob.before_text) == (None, True, False, "unknown")
    (dispatcher,) = read_knobs({"dispatcher": "DeepEP"}, ALLTOALL)
    assert (dispatcher.before_text, dispatcher.after_text) == ("alltoall", "deepep")


# --- The commands to paste for a planned change.


def test_a_flag_that_is_not_a_field_changes_against_the_arguments_of_the_log() -> None:
    idea = OwnIdea({}, megatron_lm=("--manual-gc-interval 50",))
    (lm,) = planned_change(idea, {}, None, {"manual_gc_interval": 10, "context_parallel_size": 2}).commands
    assert lm.diff == ("- --manual-gc-interval 10", "+ --manual-gc-interval 50")
    assert planned_change(idea, {}, None, {"manual_gc_interval": 50, "context_parallel_size": 2}).commands == ()


# --- The A/B in numbers computed by hand; early looks gain nothing; excluded runs change nothing.


def test_the_gain_and_its_interval() -> None:
    """Two against two, 5 % less step time in ln: 1 / e^-0.05 - 1 = 5.13 % more throughput.

    df 12, moderated variance (20 * 0.4 %^2 + 0) / 21, SE 0.39036 % * sqrt(2/2), t(0.998, 12) = 3.5495: half 1.3856 %.
    """
    result = outcome(sides((0.0, 0.0), (-0.05, -0.05)), ENROLMENT, rules())
    assert result.gain is not None
    half = 3.5495 * math.sqrt(20 / 21) * 0.004
    assert result.gain.pct == pytest.approx(100 * math.expm1(0.05), abs=1e-6)
    assert result.gain.low_pct == pytest.approx(100 * math.expm1(0.05 - half), abs=0.002)
    assert result.gain.high_pct == pytest.approx(100 * math.expm1(0.05 + half), abs=0.002)
    assert (result.winner, result.finished, result.early, result.looks) == ("candidate", True, False, 3)
    assert (result.attributed_to, result.from_value, result.to_value) == ("dispatcher", "alltoall", "deepep")
    assert result.evidence_level == "validated"
    assert result.sentence.startswith("The change is 4.9\u202f% faster")


@pytest.mark.parametrize(
    ("candidate", "winner", "word"),
    [
        ((-0.05, -0.05), "candidate", "faster"),
        ((0.05, 0.05), "baseline", "slower"),
        ((0.0, 0.0), "", "No difference"),
        ((-0.0133, -0.0133), "", "Inconclusive"),
    ],
)
def test_who_wins(candidate: tuple[float, ...], winner: str, word: str) -> None:
    result = outcome(sides((0.0, 0.001), candidate), ENROLMENT, rules())
    assert (result.winner, result.finished) == (winner, True)
    assert word in result.sentence


def test_an_early_look_asks_for_more_certainty() -> None:
    """Two of four a side: seven looks are planned, so p is 1 - 0.002 / 7 there: t(0.99971, 12) = 4.63, not 3.55.

    Its limit is 4.63 * 0.39 % = 1.81 %, that of the last look 1.39 %.
    """
    between = sides((0.0, 0.0), (-0.016, -0.016))
    assert outcome(between, ENROLMENT, rules(2)).winner == "candidate"
    early = outcome(between, ENROLMENT, rules(4))
    assert (early.winner, early.finished) == ("", False)
    assert "4 runs per side" in early.sentence
    beyond = outcome(sides((0.0, 0.0), (-0.02, -0.02)), ENROLMENT, rules(4))
    assert (beyond.winner, beyond.finished, beyond.early) == ("candidate", True, True)
    assert "stricter test" in beyond.sentence


def test_changing_the_number_of_runs_afterwards_asks_for_more_certainty() -> None:
    between = sides((0.0, 0.0), (-0.0142, -0.0142))
    assert outcome(between, ENROLMENT, rules()).winner == "candidate"
    assert outcome(between, ENROLMENT, rules(extensions=3)).winner == ""


def test_memory_and_loss_are_guards() -> None:
    def members_with(memory: float, loss: float) -> list[ExperimentMember]:
        figures = {"baseline": (60e9, 2.0), "candidate": (memory, loss)}
        return [with_figures(arm, *figures[arm.side]) for arm in sides((0.0, 0.0), (-0.05, -0.05))]

    more_memory = outcome(members_with(70e9, 2.0), ENROLMENT, rules())
    assert more_memory.winner == "baseline"
    assert "memory" in more_memory.sentence
    worse = outcome(members_with(60e9, 2.2), ENROLMENT, rules())
    assert worse.winner == ""
    assert "loss is clearly worse" in worse.sentence


@pytest.mark.parametrize(
    ("change", "level", "because"),
    [
        ({}, "validated", ""),
        ({"level": "screen"}, "matched_ab", "2 of 4 runs lack 50 healthy, steady steps"),
        ({"level": "smoke"}, "smoke", "too few steady iterations"),
        ({"short": True}, "screen", "short runs"),
        ({"commit": "another"}, "screen", "different commits"),
    ],
)
def test_the_evidence_is_as_good_as_its_runs(change: dict[str, object], level: str, because: str) -> None:
    arms = [*sides((0.0, 0.0), ()), *(member(f"c{place}", "candidate", -0.05, **change) for place in range(2))]
    result = outcome(arms, ENROLMENT, rules())
    assert result.evidence_level == level
    assert because in result.evidence_because


def test_the_evidence_says_if_all_runs_are_too_short() -> None:
    arms = [
        member(f"{side}{place}", side, gain, level="screen")
        for side, gain in (("baseline", 0.0), ("candidate", -0.05))
        for place in range(2)
    ]
    result = outcome(arms, ENROLMENT, rules())
    assert result.evidence_because == "no run has 50 healthy, steady steps"


def test_no_run_counts_on_two_sides_and_ignored_runs_have_no_order() -> None:
    fell_back = Activity(Stated("deepep", "arguments"), Stated("alltoall", "log line", "line 9"), agrees=False)
    stranger = member("x", "candidate", -0.9, activity={"dispatcher": fell_back})
    arms = sides((0.0, 0.001), (-0.05, -0.049))
    first = outcome([*arms, stranger], ENROLMENT, rules())
    second = outcome([stranger, *arms], ENROLMENT, rules())
    assert first.baseline == second.baseline == ("b0", "b1")
    assert first.candidate == second.candidate == ("c0", "c1")
    assert not set(first.baseline) & set(first.candidate)
    assert "`dispatcher` = deepep" in first.left_out[-1].why
    assert first.gain == second.gain == outcome(arms, ENROLMENT, rules()).gain
    assert outcome(arms, ENROLMENT, rules()) == outcome(list(arms), ENROLMENT, rules())


def test_the_planned_number_has_the_planned_power() -> None:
    """Of 4,000 experiments with the smallest effect that is promised, eight in ten find it."""
    prior = Prior(variance=0.01**2, degrees_of_freedom=40, configurations=9)
    sizing = size([], prior, runs_each=5)
    effect = -math.log1p(-sizing.smallest_pct / 100)
    draws = np.random.default_rng(5).normal(0, 0.01 * math.sqrt(2 / 5), 4000) - effect
    improvements = sum(
        Comparison(shift, prior.variance, prior, 0.0, 0.0).decide(5, 5) == "improvement" for shift in draws
    )
    assert 0.76 < improvements / len(draws) < 0.86


def test_looking_after_every_run_does_not_make_winners() -> None:
    """Without any effect, of 4,000 experiments of five runs a side looked at after each run: fewer than twice 0.2 %
    (a faster candidate) and twice 0.5 % (a slower one)."""
    rng = np.random.default_rng(11)
    prior = Prior(variance=0.02**2, degrees_of_freedom=40, configurations=9)
    wins = losses = 0
    for a, b in zip(rng.normal(0, 0.02, (4_000, 5)), rng.normal(0, 0.02, (4_000, 5)), strict=True):
        decided = [
            Comparison(b[:k].mean() - a[:k].mean(), prior.variance, prior, 0.0, 0.0).decide(k, k, 1 if k == 5 else 9)
            for k in range(1, 6)
        ]
        first = next((verdict for verdict in decided if verdict in ("improvement", "regression")), "")
        wins, losses = wins + (first == "improvement"), losses + (first == "regression")
    assert wins / 4_000 < 0.004
    assert losses / 4_000 < 0.01


def test_the_prior_of_the_plan_is_the_one_of_the_result() -> None:
    result = outcome(sides((0.0,), (-0.05,)), ENROLMENT, rules(1))
    assert result.verdict is not None
    assert result.verdict.prior == SURE


# --- A journey is a tree from its root; its texts escape user input.

ROOT = JourneyRun(1, "root", 400.0, 1000.0)


def step(number: int, parent: int | None, pct: float | None, state: State = "done", name: str = "run") -> JourneyStep:
    gain = None if pct is None else PlannedGain(pct, pct - 1, pct + 1)
    before = 400.0 / 1.1 if parent == 1 else 400.0
    run = None if pct is None else JourneyRun(100 + number, name, before / (1 + pct / 100), None)
    return JourneyStep(number, parent, f"step {number}", (KNOB,), state, gain, "matched_ab", "candidate", run)


def test_gains_on_the_way_multiply() -> None:
    tree = make_journey(
        1, "moe", ROOT, [step(2, 1, 10.0, "accepted"), step(1, None, 10.0, "accepted"), step(3, 1, None)]
    )
    assert [node.key for node in tree.nodes] == ["root", "experiment-1", "experiment-2", "experiment-3"]
    gains = [None if node.gain_from_root_pct is None else round(node.gain_from_root_pct, 6) for node in tree.nodes]
    assert gains == [0.0, 10.0, 21.0, None]
    assert [node.mark for node in tree.nodes] == ["root", "winner", "current", ""]
    assert [node.on_path for node in tree.nodes] == [True, True, True, False]
    assert tree.current_run_id == 102
    saved = [None if node.step_time_saved_pct is None else round(node.step_time_saved_pct, 2) for node in tree.nodes]
    assert saved == [0.0, 9.09, 17.36, None], "the same gains as shares of the step time"


def test_a_run_of_the_journey_leads_to_where_it_continued_and_to_what_is_not_decided() -> None:
    steps = [
        replace(step(1, None, 10.0, "accepted"), candidate=JourneyRun(11, "first", 360.0, 1100.0, (10, 11))),
        replace(step(2, 1, -2.0, "rejected"), candidate=JourneyRun(12, "worse", 370.0, 1080.0, (12,))),
        step(3, 1, 1.0, "done"),
        step(4, 1, None, "planned"),
        step(5, None, None, "waiting"),
    ]
    journey = make_journey(1, "moe", replace(ROOT, runs=(1, 2)), steps)
    at_end = Continuation(None, (3,), (), (4,))
    assert [continuation(journey, run_id) for run_id in (10, 11)] == [at_end, at_end], "runs of one configuration"
    assert continuation(journey, 12) == Continuation(11, (3,), (), (4,)), "the rejected side"
    assert continuation(journey, 2) == Continuation(11, (3,), (5,), (4,))
    assert continuation(journey, 2).unfinished == ((3, "decision due"), (5, "waiting"), (4, "planned"))
    assert continuation(journey, 2).leads
    assert continuation(make_journey(1, "moe", ROOT, [step(1, None, None, "planned")]), 1).leads
    assert not continuation(make_journey(1, "moe", ROOT, [step(1, None, -2.0, "rejected")]), 1).leads


def test_without_accepted_changes_the_journey_is_at_its_root() -> None:
    tree = make_journey(1, "moe", ROOT, [step(1, None, -3.0, "rejected"), step(2, 99, None, "planned")])
    assert tree.current_run_id == 1
    assert [(edge.source, edge.target) for edge in tree.edges] == [("root", "experiment-1"), ("root", "experiment-2")]


def test_texts_for_other_tools_are_quoted() -> None:
    hostile = 'x"]; click n0 call evil() <b>\\'
    knobs = (KnobChange("env.NVTE_FUSED_ATTN", "1", 'a"|b'),)
    first = step(1, None, 5.0, "accepted", hostile)
    tree = make_journey(
        1, "moe", ROOT, [JourneyStep(1, None, "t", knobs, first.state, first.gain, "", "", first.candidate)]
    )
    lines = mermaid(tree).splitlines()
    assert lines[0] == "flowchart TD"
    assert lines[1].startswith('    n0["run 1: root<br/>')
    assert all(line.count('"') in (0, 2) for line in lines)
    assert "<b>" not in mermaid(tree)
    assert '-->|"' in lines[-1]
    graph = dot(tree)
    assert graph.startswith("digraph journey {")
    assert '\\"];' in graph
    assert 'x"]' not in graph.replace('\\"', "")


# --- A sweep drops the worse half after each round; paired intervals leave out the drift of the cluster.


def trial(value: str, runs: int, pct: float | None = None, **other: Any) -> Trial:
    gain = None if pct is None else PlannedGain(pct, pct - 1, pct + 1)
    return Trial(int(value), value, other.pop("state", "waiting"), other.pop("planned", 1), runs, 0, gain, **other)


@pytest.mark.parametrize(
    ("values", "confirm", "expected"),
    [
        (2, 5, [(2, 1), (1, 5)]),
        (3, 5, [(3, 1), (2, 2), (1, 5)]),
        (5, 4, [(5, 1), (3, 2), (2, 4), (1, 4)]),
        (4, 1, [(4, 1), (2, 1), (1, 1)]),
    ],
)
def test_the_rounds_of_a_sweep(values: int, confirm: int, expected: list[tuple[int, int]]) -> None:
    assert [(item.values, item.runs_each) for item in rounds(values, confirm)] == expected


def test_a_sweep_drops_the_worst_once_all_values_have_their_runs() -> None:
    waiting = sweep_progress([trial("16", 1, 2.0), trial("24", 1, 5.0), trial("32", 0)], 3)
    assert (waiting.ready, waiting.may_go_on, [item.value for item in waiting.waits_for]) == (False, False, ["32"])
    complete = sweep_progress([trial("16", 1, 2.0), trial("24", 1, 5.0), trial("32", 1, -4.0)], 3)
    assert (complete.may_go_on, [item.value for item in complete.keep]) == (True, ["24", "16"])
    assert [item.value for item in complete.drop] == ["32"]
    failed = replace(trial("32", 0), failed=1)
    assert [item.value for item in sweep_progress([trial("16", 1, 2.0), failed, trial("24", 1, 1.0)], 3).drop] == ["32"]


def test_values_that_a_person_rejects_leave_the_others_in_a_later_round() -> None:
    progress = sweep_progress([trial("16", 1, 2.0), trial("24", 1, 5.0), trial("32", 0, state="rejected")], 3)
    assert (progress.number, progress.behind, progress.may_go_on, progress.drop) == (1, True, True, ())


def test_a_sweep_costs_less_than_an_ab_of_each_value() -> None:
    cost = cost_of_sweep(5, size((), runs_each=4, step_s=36.0, gpus=16))
    assert (cost.runs, cost.full_runs) == (5 + 3 + 4 + 0 + 3, 5 * 4 + 3)
    assert cost.gpu_hours == pytest.approx(cost.runs * 0.5 * 16)


def test_a_paired_interval_leaves_out_drift_that_both_sides_share() -> None:
    drift = (0.0, 0.03, 0.06, 0.09)
    arms = sides(drift, tuple(slower - 0.1 for slower in drift))
    result = outcome(arms, ENROLMENT, rules(4))
    assert result.paired is not None
    assert result.paired.pct == pytest.approx(10.5, abs=0.1)
    assert result.gain is not None
    assert result.paired.high_pct - result.paired.low_pct < (result.gain.high_pct - result.gain.low_pct) / 4
    assert outcome(sides((0.0, 0.0), (0.0, 0.0)), ENROLMENT, rules(2)).paired is None

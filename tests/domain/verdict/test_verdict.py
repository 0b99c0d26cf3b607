"""The overall verdict: what decides, and the shown text."""

import dataclasses
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from app.domain.numbers import THIN
from app.domain.run import Metric
from app.domain.verdict import decide
from app.domain.verdict.assess import LATE, assess
from app.domain.verdict.decide import (
    compare_loss,
    compare_memory,
    judge,
    look_number,
    metric_changes,
    reruns_wanted,
)
from app.domain.verdict.lead import lead
from app.domain.verdict.record import RunRecord
from app.domain.verdict.step_time import DEFAULT_PRIOR, Outcome, Prior, RunEstimate, Verdict, certainty
from app.domain.verdict.words import answer, further_notes, what_would_decide
from bench.detect import broken_bounds, estimate, read_cases, score_verdicts
from tests.domain.verdict.matching_runs import make_record
from tests.domain.verdict.runs import make_run, make_runs
from tests.domain.verdict_documents import make_baseline, make_document
from tests.shared_papers import shared_folder

FAMILY = Prior(0.006**2, 5, 7)
GIB = 2.0**30
BASELINE = make_runs([0.0] * 5, peak_memory_bytes=60 * GIB, loss=2.0)


def verdict(slower: float, **candidate: object) -> Verdict:
    return judge([make_run(slower=slower, **candidate)], BASELINE, FAMILY)


MORE_MEMORY = {"peak_memory_bytes": 66 * GIB}
LESS_MEMORY = {"peak_memory_bytes": 54 * GIB}


@pytest.mark.parametrize(
    ("slower", "candidate", "decision"),
    [
        (0.05, {}, "regression"),
        (-0.05, {}, "improvement"),
        (0.0, {}, "no_change"),
        (0.013, {}, "inconclusive"),
        # memory can only make it worse
        (-0.05, MORE_MEMORY, "regression"),
        (0.0, MORE_MEMORY, "regression"),
        (0.013, MORE_MEMORY, "regression"),
        (0.0, {**MORE_MEMORY, "is_steady": False}, "regression"),
        (0.05, LESS_MEMORY, "regression"),
        (0.0, LESS_MEMORY, "no_change"),
        (0.013, LESS_MEMORY, "inconclusive"),
        (-0.05, LESS_MEMORY, "improvement"),
        # a clearly worse loss cancels an improvement and excuses nothing
        (-0.05, {"loss": 2.1}, "inconclusive"),
        (0.0, {"loss": 2.1}, "inconclusive"),
        (0.05, {"loss": 2.1}, "regression"),
        (-0.05, {"loss": 2.01}, "improvement"),
        (-0.05, {"loss": 1.5}, "improvement"),
        # no speed is evidence without a finite loss
        (-0.05, {"not_finite_iterations": 1}, "failed"),
        (0.05, {"not_finite_iterations": 1}, "failed"),
        # an unsteady run decides nothing
        (-0.05, {"is_steady": False}, "inconclusive"),
        (0.05, {"window_length": 4}, "inconclusive"),
    ],
)
def test_decision(slower: float, candidate: dict[str, object], decision: str) -> None:
    assert verdict(slower, **candidate).decision == decision


@pytest.mark.parametrize("baseline", [[], [make_run("old", is_steady=False)], [make_run("old", short=True)]])
def test_never_green_without_a_baseline(baseline: list[RunEstimate]) -> None:
    judgement = judge([make_run()], baseline)
    assert judgement.decision == "no_baseline"
    assert [d.run for d in judgement.dropped] == [run.run for run in baseline]


def test_a_verdict_needs_a_run() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        judge([], BASELINE)


def test_an_unsteady_run_asks_for_no_reruns() -> None:
    judged = verdict(0.05, is_steady=False, not_steady_reasons=("step times drift",))
    assert "step times drift" in judged.reason
    assert judged.step_time is not None
    assert (judged.decision, judged.step_time.need_runs) == ("inconclusive", None)
    assert judged.step_time.ci_low_pct < 0 < judged.step_time.ci_high_pct
    assert verdict(0.5, is_steady=False).decision == "regression"  # more than a drift can explain
    assert verdict(0.5, is_steady=False, se=0.2).decision == "inconclusive"  # two speeds
    assert verdict(0.0, is_steady=False).decision == "inconclusive"


def test_reruns_are_pooled_and_those_that_never_settled_left_out() -> None:
    reruns = [make_run("c0", 0.02), make_run("c1", 0.04), make_run("c2", 0.5, is_steady=False)]
    judgement = judge(reruns, BASELINE, FAMILY, looks=2)
    assert judgement.candidates_used == ("c0", "c1")
    assert judgement.step_time is not None
    assert judgement.step_time.shift == pytest.approx(0.03)
    assert [(run.run, run.why) for run in judgement.dropped] == [("c2", "not steady")]
    assert judgement.looks == 2


# Five equal baseline runs: v = 5/9 of 0.006^2, SE = 0.004899, t(0.995, 9) = 3.2498, together 0.01592.
@pytest.mark.parametrize(
    ("slower", "candidate", "reason"),
    [
        (0.05, {}, "5.1 % slower (3.5 to 6.8) than its 5 baseline runs, beyond run-to-run variation."),
        (
            0.05,
            {"short": True},
            "5.1 % slower (3.5 to 6.8) than its 5 baseline runs, but on few iterations: a full run must confirm it.",
        ),
        (
            -0.05,
            {},
            "4.9 % faster (3.1 to 6.6) than its 5 baseline runs, beyond run-to-run variation.",
        ),
        (0.0, {}, "As fast as its 5 baseline runs, within 2 %: the same (0.89 faster to 0.90 slower)."),
        (
            0.015,
            {},
            "No significant difference from its 5 baseline runs: 1.5 % slower (0.1 faster to 3.1 slower), "
            "too uncertain to call.",
        ),
        (
            -0.017,
            {},
            "No significant difference from its 5 baseline runs: 1.7 % faster (0.2 slower to 3.5 faster), "
            "too uncertain to call.",
        ),
        (
            -0.05,
            MORE_MEMORY,
            "Peak memory is 10.0 % higher than in the baseline (limit 1.0 %). "
            "4.9 % faster (3.1 to 6.6) than its 5 baseline runs, beyond run-to-run variation.",
        ),
        (
            -0.05,
            {"loss": 2.1},
            "4.9 % faster (3.1 to 6.6) than its 5 baseline runs, beyond run-to-run variation. "
            "But the loss is 5.0 % higher: a faster run with a worse loss is not an improvement. Explain the "
            "loss first.",
        ),
        (
            0.0,
            {"loss": 2.1},
            "As fast as its 5 baseline runs, within 2 %: the same (0.89 faster to 0.90 slower). "
            "The loss is 5.0 % higher: explain that first.",
        ),
        (
            0.0,
            {"not_finite_iterations": 1},
            "The loss was not finite in 1 iteration, so the speed of this run does not count.",
        ),
    ],
)
def test_reason(slower: float, candidate: dict[str, object], reason: str) -> None:
    assert verdict(slower, **candidate).reason == reason


def test_notes_of_an_inconclusive_verdict() -> None:
    more_runs, memory, variation, power = verdict(0.015, peak_memory_bytes=60.3 * GIB).notes
    assert more_runs.startswith("1 more run")
    assert "memory is 0.50 % higher" in memory
    assert [part in variation for part in ("5 baseline runs", "0.45 %", "7 other")] == [True] * 3
    assert "1.6 %" in power


@pytest.mark.parametrize(
    ("prior", "note"),
    [
        (FAMILY, "1 baseline run; run-to-run variation assumed from 7 other configurations (0.60 %)."),
        (DEFAULT_PRIOR, "1 baseline run; run-to-run variation assumed 1.5 % (no data from other configurations yet)."),
    ],
)
def test_one_baseline_run_says_where_the_variation_came_from(prior: Prior, note: str) -> None:
    assert note in judge([make_run()], make_runs([0.0]), prior).notes


def test_where_the_baseline_limits_the_notes_say_what_would_do() -> None:
    note = judge([make_run(slower=0.05)], make_runs([0.0])).notes[0]
    assert all(part in note for part in ("4 baseline runs (now 1)", "1 more run"))


def test_an_outlier_of_the_baseline_is_named() -> None:
    judgement = judge([make_run()], make_runs([0.0, 0.001, -0.001, 0.2]), FAMILY)
    assert judgement.baseline_used == ("run 0", "run 1", "run 2")
    (dropped,) = judgement.dropped
    assert (dropped.run, dropped.why.startswith("22.1")) == ("run 3", True)


APART = [
    # Shifts of reruns against a baseline that varies by 0.45 %, and the decisions.
    ([0.05, 0.05], "regression"),
    ([0.03, 0.07], "regression"),
    ([0.0, 0.10], "inconclusive"),
    ([-0.10, 0.0], "inconclusive"),
    ([0.04, 0.05, 0.12], "inconclusive"),
    ([0.05] * 6 + [0.07], "regression"),
    ([0.05] * 6 + [0.15], "inconclusive"),
    ([-0.03, 0.03], "inconclusive"),  # their mean would show no change
]


@pytest.mark.parametrize(("slower", "decision"), APART)
def test_reruns_that_contradict_each_other_decide_nothing(slower: list[float], decision: str) -> None:
    judgement = judge([make_run(f"c{k}", shift) for k, shift in enumerate(slower)], BASELINE, FAMILY)
    assert judgement.decision == decision
    assert judgement.step_time is not None
    apart = judgement.step_time.reruns_apart_pct
    assert (apart is None) == (decision != "inconclusive")
    if apart is not None:
        assert apart == pytest.approx(100 * math.expm1(max(slower) - min(slower)))
        assert judgement.step_time.need_runs is None


def test_a_family_that_varies_more_allows_reruns_further_apart() -> None:
    reruns = [make_run("c0", 0.0), make_run("c1", 0.10)]
    judgement = judge(reruns, make_runs([0.0] * 5), Prior(0.03**2, 20, 7))
    assert judgement.step_time is not None
    assert judgement.step_time.reruns_apart_pct is None


def test_a_verdict_that_memory_decides_asks_for_no_more_runs() -> None:
    judged = verdict(0.013, **MORE_MEMORY)
    assert judged.decision == "regression"
    assert not any("would decide" in note for note in judged.notes)


CERTAINTY = [
    (0.05, {}, "beyond run-to-run variation"),
    (0.05, {"short": True}, "but on few iterations: a full run must confirm it"),
    (-0.05, {}, "beyond run-to-run variation"),
    (0.0, {}, "shown to be within 2 %"),
    (0.013, {}, "too uncertain to call"),
    (-0.017, {}, "too uncertain to call"),
]


@pytest.mark.parametrize(("slower", "candidate", "words"), CERTAINTY)
def test_certainty_explains_an_interval_of_one_direction(
    slower: float, candidate: dict[str, object], words: str
) -> None:
    time = verdict(slower, **candidate).step_time
    assert time is not None
    assert certainty(time).replace(THIN, " ") == words


def test_no_change_is_consistent_with_its_interval() -> None:
    """The interval is that of the deciding test, so it is within the limits of equality."""
    judged = verdict(0.009)
    time = judged.step_time
    assert time is not None
    assert time.decision == "no_change"
    assert -2 <= time.ci_low_pct < time.ci_high_pct <= 2.05
    assert certainty(time).replace(THIN, " ") == "shown to be within 2 %"
    assert "within 2 %: 0.90 % slower (" in judged.reason.replace(THIN, " ")


@pytest.mark.parametrize(
    "slower", [-0.2, -0.05, -0.03, -0.02, -0.012, -0.004, 0.0, 0.004, 0.012, 0.02, 0.03, 0.05, 0.2]
)
def test_no_interval_contradicts_its_decision(slower: float) -> None:
    time = verdict(slower).step_time
    assert time is not None
    excludes_zero = time.ci_low_pct > 0 or time.ci_high_pct < 0
    is_within = max(-time.ci_low_pct, time.ci_high_pct) <= time.equal_pct + 0.05
    agrees = {"no_change": is_within, "inconclusive": not excludes_zero}.get(time.decision, excludes_zero)
    assert agrees, time.decision


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_every_verdict_is_explained(outcome: str) -> None:
    document = Path(__file__).resolve().parents[3] / "docs" / "verdicts.md"
    assert f"| `{outcome}` |" in document.read_text()


def test_the_verdict_of_the_handbook_by_hand() -> None:
    """The worked example of `docs/verdicts.md`."""
    baseline = [RunEstimate(f"{ms}", math.log(ms), 0.001, 50) for ms in (400.0, 401.2, 399.1, 400.6, 400.3)]
    candidate = RunEstimate("candidate", math.log(409.0), 0.002, 50)
    judgement = judge([candidate], baseline, Prior(0.006**2, 5, 8))
    time = judgement.step_time
    assert time is not None
    assert judgement.decision == "regression"
    assert 100 * time.shift == pytest.approx(2.16, abs=0.005)
    assert 100 * time.standard_error == pytest.approx(0.510, abs=0.0005)
    assert time.degrees_of_freedom == 9
    assert (time.delta_pct, time.ci_low_pct, time.ci_high_pct) == pytest.approx((2.2, 0.50, 3.9), abs=0.05)
    assert time.smallest_callable_pct == pytest.approx(1.7, abs=0.05)


# --- Memory and loss: thresholds on either side.


@pytest.mark.parametrize(
    ("baseline", "candidate", "decision", "alarm_pct"),
    [
        ([60.0], 60.0, "no_change", 1.0),
        ([60.0, 60.0], 60.059, "no_change", 1.0),  # +0.098 %
        ([60.0, 60.0], 60.07, "changed", 1.0),
        ([60.0, 60.0], 60.59, "changed", 1.0),
        ([60.0, 60.0], 60.61, "regression", 1.0),  # +1.02 %
        ([60.0, 60.0], 59.93, "changed", 1.0),
        ([60.0, 60.0], 59.30, "improvement", 1.0),
        # a range of 0.6 of 60.3 is 0.995 %, three of them 2.985 %
        ([60.0, 60.3, 60.6], 62.0, "changed", 2.985),
        ([60.0, 60.3, 60.6], 62.2, "regression", 2.985),
        ([60.0, 60.3, 60.6], 58.4, "improvement", 2.985),
    ],
)
def test_memory(baseline: list[float], candidate: float, decision: str, alarm_pct: float) -> None:
    old = [make_run(f"run {i}", peak_memory_bytes=gib * GIB) for i, gib in enumerate(baseline)]
    memory = compare_memory([make_run(peak_memory_bytes=candidate * GIB)], old)
    assert memory is not None
    assert memory.decision == decision
    assert memory.alarm_pct == pytest.approx(alarm_pct, abs=1e-3)


def test_reruns_are_compared_by_their_median() -> None:
    reruns = [make_run(f"c{i}", peak_memory_bytes=gib * GIB) for i, gib in enumerate((60, 60, 70))]
    memory = compare_memory(reruns, [make_run("b", peak_memory_bytes=60 * GIB)])
    assert memory is not None
    assert (memory.decision, memory.delta_pct) == ("no_change", 0)


@pytest.mark.parametrize(("new", "old"), [(None, 60.0), (60.0, None), (0.0, 60.0), (float("nan"), 60.0)])
def test_unknown_memory_is_not_compared(new: float | None, old: float | None) -> None:
    assert compare_memory([make_run(peak_memory_bytes=new)], [make_run("b", peak_memory_bytes=old)]) is None


@pytest.mark.parametrize(
    ("baseline", "candidate", "decision"),
    [
        ([2.0, 2.0], 2.019, "no_worse"),
        ([2.0, 2.0], 2.021, "worse"),
        ([2.0, 2.0], 1.5, "no_worse"),
        ([1.98, 2.0, 2.02], 2.11, "no_worse"),  # a range of 2 %: 6 % is the alarm
        ([1.98, 2.0, 2.02], 2.13, "worse"),
    ],
)
def test_loss(baseline: list[float], candidate: float, decision: str) -> None:
    loss = compare_loss([make_run(loss=candidate)], [make_run(f"b{i}", loss=x) for i, x in enumerate(baseline)])
    assert loss is not None
    assert loss.decision == decision


def test_one_iteration_without_a_finite_loss_is_enough() -> None:
    loss = compare_loss([make_run("c0", loss=2.0), make_run("c1", loss=2.0, not_finite_iterations=3)], [])
    assert loss is not None
    assert (loss.decision, loss.not_finite_iterations) == ("not_finite", 3)


def test_unknown_loss_is_not_compared() -> None:
    assert compare_loss([make_run()], make_runs([0, 0], loss=2.0)) is None


# --- One test of step time, seen as each headline figure.


def run(name: str, step_time_ms: float, memory_gib: float | None = 60.0) -> RunEstimate:
    memory = None if memory_gib is None else memory_gib * GIB
    return RunEstimate(name, math.log(step_time_ms), 0.001, 50, peak_memory_bytes=memory)


def figures(step_time_ms: float, tokens: float | None) -> dict[str, Metric | None]:
    values = {"step_time_ms": step_time_ms, "tokens_per_s_per_gpu": None if tokens is None else tokens / step_time_ms}
    return {name: None if value is None else Metric(value, value, value, 50) for name, value in values.items()}


def test_throughput_falls_as_the_step_time_rises() -> None:
    verdict = judge([run("new", 500)], [run("a", 400), run("b", 400), run("c", 400)])
    changes = metric_changes(verdict, {"new": figures(500, 4e6)} | {name: figures(400, 4e6) for name in "abc"})
    time, tokens = changes["step_time_ms"], changes["tokens_per_s_per_gpu"]
    assert time is not None
    assert tokens is not None
    assert (time.delta_pct, tokens.delta_pct) == (pytest.approx(25), pytest.approx(-20))
    assert (tokens.baseline, tokens.candidate) == (pytest.approx(10_000), pytest.approx(8_000))
    assert tokens.ci_low_pct == pytest.approx(100 / (1 + time.ci_high_pct / 100) - 100)
    assert tokens.decision == time.decision == "regression"


def test_figures_of_steps_with_different_work_are_not_judged() -> None:
    verdict = judge([run("new", 400)], [run("a", 400)])
    tokens = metric_changes(verdict, {"new": figures(400, 8e6), "a": figures(400, 4e6)})["tokens_per_s_per_gpu"]
    assert tokens is not None
    assert (tokens.delta_pct, tokens.decision) == (pytest.approx(100), "not_judged")


def test_an_unknown_value_on_one_side_is_not_a_change() -> None:
    verdict = judge([run("new", 400, None)], [run("a", 400)])
    changes = metric_changes(verdict, {"new": figures(400, None), "a": figures(400, 4e6)})
    assert [name for name, change in changes.items() if change is not None] == ["step_time_ms"]


def test_memory_is_in_gib_without_an_interval() -> None:
    memory = metric_changes(
        judge([run("new", 400, 66.0)], [run("a", 400)]), {"new": figures(400, 4e6), "a": figures(400, 4e6)}
    )["peak_memory_gib"]
    assert memory is not None
    assert (memory.baseline, memory.candidate, memory.ci_low_pct) == (60, pytest.approx(66), None)
    assert memory.decision == "regression"


# --- The first sentence of a page about a verdict, for each kind of answer.


def plain(text: str) -> str:
    return text.replace(THIN, " ")


def test_the_answer_of_a_contrast_names_the_runs_that_it_leaves_out() -> None:
    earlier = [*make_baseline(commit="0123456789"), make_record("13", slower=0.4, commit="0123456789")]
    candidate = make_record(fields={"container": "train:2026.10"}, slower=0.5, commit="0123456789", steady=False)
    document = make_document(candidate, earlier)
    assert document.contrast
    assert (document.contrast.counted, document.needs_confirmation) == ("12 of 13 runs", True)
    assert "Left out: #13, 49.2 % slower than the other baseline runs." in plain(answer(document))
    assert plain(lead(document)).startswith("64.9 % slower than 12 of 13 runs with train:2026.09, not steady")


@pytest.mark.parametrize(
    ("candidate", "text"),
    [
        (make_record(slower=0.0334), "3.4 % slower than the last 12 runs of this stack, beyond run-to-run variation."),
        (
            make_record(slower=-0.0334),
            "3.3 % faster than the last 12 runs of this stack, beyond run-to-run variation.",
        ),
        (make_record(slower=0.001), "As fast as the last 12 runs of this stack, within 2 %."),
        (
            make_record(slower=0.0334, short=True),
            "3.4 % slower than the last 12 runs of this stack, but on few iterations: a full run must confirm it.",
        ),
        (
            make_record(steady=False),
            "No significant difference from the last 12 runs of this stack: the same (10.1 faster to 11.3 slower), too "
            "uncertain to call: the run is not steady, which widens the interval.",
        ),
        (
            make_record(outcome="out_of_memory"),
            "The job ran out of memory, so its speed does not count.",
        ),
        (
            make_record(outcome="failed"),
            "The job failed, so its speed does not count.",
        ),
        (
            make_record(outcome="failed", slower=math.nan),
            "No step time was read, so there is no speed to compare.",
        ),
        (
            make_record(fields={"dispatcher": "hybridep"}, slower=-0.2, purpose="experiment", commit="0123456789"),
            "18.1 % faster with dispatcher hybridep instead of alltoall (matched A/B, one knob), "
            "beyond run-to-run variation.",
        ),
        (
            make_record(fields={"dispatcher": "hybridep", "tp": 2}, slower=-0.2, purpose="experiment"),
            "18.1 % faster than the last 12 runs of this stack, which used other knobs, beyond run-to-run "
            "variation. 2 knobs differ, so the change is not attributed to any of them.",
        ),
        (
            make_record(fields={"container": "train:2026.10"}, slower=0.05, commit="89abcdef01"),
            "This stack has no baseline yet. 5.1 % slower than 12 runs with container "
            "train:2026.09 instead of train:2026.10, beyond run-to-run variation. Container and commit "
            "(01234567 → 89abcdef) changed together. This is a contrast, not a verdict on the code.",
        ),
        (
            make_record(fields={"container": "train:2026.10", "tp": 4}, slower=0.05, commit="0123456789"),
            "This stack has no baseline yet. 5.1 % slower than 12 runs with container "
            "train:2026.09 instead of train:2026.10, beyond run-to-run variation. Other fields also differ, so no "
            "single field explains the difference: tp (8 → 4). This is a contrast, not a verdict on the code.",
        ),
        (
            make_record(fields={"container": "train:2026.10"}, slower=0.05, commit="0123456789"),
            "This stack has no baseline yet. 5.1 % slower than 12 runs with container "
            "train:2026.09 instead of train:2026.10, beyond run-to-run variation. The contracts attribute the "
            "difference to container. This is a single-field contrast, not a verdict on the code.",
        ),
        (
            make_record(fields={"container": "train:2026.10", "gpu": "B200"}),
            "No earlier run is comparable. The closest, #12, differs in gpu, container.",
        ),
    ],
)
def test_the_answer_states_change_baseline_and_certainty(candidate: RunRecord, text: str) -> None:
    assert plain(answer(make_document(candidate, make_baseline(commit="0123456789")))) == text


def test_the_first_run_of_all_has_nothing_to_be_compared_with() -> None:
    assert answer(make_document(make_record())).startswith("No earlier run")


def test_a_pinned_baseline_says_so() -> None:
    document = make_document(make_record(slower=0.05), make_baseline(), pinned=frozenset({"3"}))
    assert plain(answer(document)).startswith("4.9 % slower than the pinned run")


def test_unknown_fields_make_it_provisional() -> None:
    unknown = {"cluster": ..., "pp_layout": ...}
    document = make_document(make_record(fields=unknown, slower=0.05), make_baseline(fields=unknown))
    provisional = plain(answer(document)).partition("Provisional: ")[2]
    assert all(name in provisional for name in unknown)


def test_memory_that_counts_as_a_regression_comes_first() -> None:
    def holding(record: RunRecord, gib: float) -> RunRecord:
        return dataclasses.replace(record, estimate=dataclasses.replace(record.estimate, peak_memory_bytes=gib * 2**30))

    earlier = [holding(record, 60.0) for record in make_baseline()]
    document = make_document(holding(make_record(slower=-0.05), 63.0), earlier)
    first, second = plain(answer(document)).split(". ")
    assert (first.startswith("5.0 % more peak memory"), "limit 1.0 %" in first) == (True, True)
    assert second.startswith("4.9 % faster")


def test_an_inconclusive_verdict_says_what_would_decide_and_says_it_once() -> None:
    document = make_document(make_record(slower=0.03), make_baseline(2), prior=DEFAULT_PRIOR)
    assert document.decision == "inconclusive"
    assert "3.1 % slower (3.5 faster to 10.2 slower)" in plain(answer(document))
    advice = what_would_decide(document)
    assert "would" in advice
    assert not any("would decide" in note or note.startswith("Left out") for note in further_notes(document))
    assert any("smallest slowdown" in note for note in further_notes(document))
    assert what_would_decide(make_document(make_record(slower=0.03), make_baseline())) == ""


# --- The 200 labelled cases, through the product's own functions, within the promised error rates.


def test_the_labelled_cases_are_judged_as_well_as_the_method_promises() -> None:
    folder = shared_folder("detection")
    scored = score_verdicts(folder, [estimate(case) for case in read_cases(folder)])
    assert scored["answered"] == scored["cases"] == 200
    assert broken_bounds(scored) == []


# --- The plan of reruns: the first launch, then the requested ones, as one second look.


def planned(*slower: float, baseline: int = 5, spread: float = 0.006) -> Verdict:
    noise = (0.0, 0.002, -0.002, 0.001, -0.001)
    earlier = [make_record(f"b{k}", slower=noise[k % 5]) for k in range(baseline)]
    runs = [make_record(f"c{k}", slower=value, commit="c") for k, value in enumerate(slower)]
    return assess(runs, earlier, prior=Prior(spread**2, 5, 8)).verdict


def test_a_slow_launch_requests_one_rerun_to_confirm_it() -> None:
    first = planned(0.05)
    assert (first.decision, first.looks, reruns_wanted(first)) == ("regression", 1, 1)
    confirmed = planned(0.05, 0.048)
    assert (confirmed.decision, confirmed.looks) == ("regression", 2)
    assert confirmed.step_time is not None
    assert confirmed.step_time.planned_looks == 2
    assert planned(0.12, 0.001).decision == "inconclusive"  # a slow node


def test_requested_reruns_are_one_look_and_nothing_is_decided_before_all_are_in() -> None:
    wanted = reruns_wanted(planned(0.015, spread=0.008))
    assert wanted == 2
    some = planned(0.015, 0.015, spread=0.008)
    assert (some.decision, some.looks) == ("inconclusive", 2)
    assert some.step_time is not None
    assert some.step_time.awaits == 1
    assert "1 requested rerun" in decide.what_would_decide(some)
    all_of_them = planned(0.015, 0.015, 0.015, spread=0.008)
    assert (all_of_them.looks, all_of_them.step_time and all_of_them.step_time.awaits) == (2, 0)


def test_the_decision_after_reruns_is_final_unless_a_launch_contradicts_them() -> None:
    final = planned(0.05, 0.05)
    later = planned(0.05, 0.05, 0.01, 0.02)
    assert (later.decision, later.looks, later.step_time) == (final.decision, final.looks, final.step_time)
    assert [(run.run, run.why) for run in later.dropped] == [("c2", LATE), ("c3", LATE)]
    assert planned(0.05, 0.05, -0.1).decision == "inconclusive"


@pytest.mark.parametrize(("looks", "planned_looks"), [(1, 1), (2, 2), (3, 3), (5, 5)])
def test_the_certainty_is_corrected_for_every_look(looks: int, planned_looks: int) -> None:
    result = judge([make_run(slower=0.05)], BASELINE, FAMILY, looks=looks).step_time
    assert result is not None
    assert result.planned_looks == planned_looks


@pytest.mark.parametrize(("needed", "wanted"), [(3, 3), (4, 0)])
def test_more_than_three_reruns_are_not_requested(needed: int, wanted: int) -> None:
    first = verdict(0.013)
    assert first.step_time is not None
    assert reruns_wanted(replace(first, step_time=replace(first.step_time, need_runs=needed))) == wanted


def test_memory_counts_for_a_rerun_whose_step_time_does_not() -> None:
    reruns = [make_run("a", peak_memory_bytes=60 * GIB), make_run("b", window_length=4, peak_memory_bytes=80 * GIB)]
    result = judge(reruns, BASELINE, FAMILY)
    assert result.candidates_used == ("a",)
    assert result.memory is not None
    assert result.memory.candidate_bytes == 70 * GIB


def test_a_faster_run_may_skip_as_many_steps_as_any_baseline_run() -> None:
    baseline = [*make_runs([0.0, 0.001, -0.001, 0.002]), make_run("skips", skipped_share=0.005)]
    for share, decision in ((0.004, "improvement"), (0.006, "inconclusive")):
        result = judge([make_run(slower=-0.05, skipped_share=share)], baseline, FAMILY)
        assert ("skips" in result.baseline_used, result.decision) == (True, decision)


@pytest.mark.parametrize(
    ("launches", "wanted", "number"), [(1, 3, 1), (2, 1, 2), (4, 3, 2), (5, 3, 3), (2, 0, 2), (4, 0, 4)]
)
def test_every_launch_beyond_the_plan_is_one_more_look(launches: int, wanted: int, number: int) -> None:
    assert look_number(launches, wanted) == number

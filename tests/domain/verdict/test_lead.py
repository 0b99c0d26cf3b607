"""The lead of a run: its step time, or with reruns their mean, and that of the baseline."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.domain.contract.fields import STACK_FIELDS
from app.domain.numbers import THIN, step_time
from app.domain.verdict.lead import OngoingRegression, lead
from app.domain.verdict.record import RunRecord
from app.domain.verdict.words import answer
from tests.domain.verdict_documents import make_baseline, make_document, make_record

GIB = re.compile(rf"([\d.]+){THIN}GiB")
TIME = re.compile(rf"[\d.,]+{THIN}(?:ms|s)\b")


@pytest.mark.parametrize("seed", range(30))
def test_the_first_figure_is_the_run_s_own_or_the_mean_that_the_percentage_is_about(seed: int) -> None:
    draw = np.random.default_rng(seed)
    reruns = int(draw.integers(1, 5))
    level = float(draw.uniform(-0.1, 0.1))
    slower = [level + float(draw.normal(0, 0.006)) for _ in range(reruns)]
    runs = [make_record(f"again {k}", slower=share, commit="new") for k, share in enumerate(slower)]
    document = make_document(runs, make_baseline())
    time = document.verdict.step_time
    assert time is not None
    for share in slower:
        own = 400 * math.exp(share)
        figures = TIME.findall(lead(document, own_ms=own))
        shown = time.candidate_ms if len(document.verdict.candidates_used) > 1 else own
        assert figures == [step_time(shown), step_time(time.baseline_ms)]


def test_a_first_run_says_why_it_is_not_steady() -> None:
    first = make_document(make_record("first"), [])
    told, plain = (lead(first, own_ms=400, unsteady=why) for why in ("4 steps are too few", ""))
    assert told == plain.replace(" per step.", " per step, not steady (4 steps are too few).")
    assert told != plain
    assert len(told.split()) <= 16


@pytest.mark.parametrize(("dropped", "text"), [(1, "differs in `task`."), (16, "16 fields, all unknown.")])
def test_the_closest_run_is_described_by_few_fields_or_by_their_number(dropped: int, text: str) -> None:
    fields = [name for name in STACK_FIELDS if name not in ("model", "gpu")]
    bare = make_record(fields=dict.fromkeys(fields[:dropped], ...))
    sentence = lead(make_document(bare, make_baseline()))
    assert text in sentence
    assert len(sentence.split()) <= 16


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"model": ...}, "`model` is unknown."),
        ({"model": ..., "gpu": ...}, "`model` and `gpu` are unknown."),
        ({"model": "Mixtral-8x7B"}, "No run of this model"),
    ],
)
def test_a_run_without_a_stated_model_or_of_another_model_has_no_closest_run(fields: dict[str, Any], text: str) -> None:
    sentence = lead(make_document(make_record(fields=fields), make_baseline()))
    assert text in sentence
    assert len(sentence.split()) <= 16


@pytest.mark.parametrize(
    ("steady", "end", "badge"),
    [
        (True, "with container train:2026.09.", ("", "")),
        (False, "not steady: rerun before acting.", ("regression", "slower, unconfirmed")),
    ],
)
def test_a_drifting_run_after_an_upgrade_asks_for_a_rerun(steady: bool, end: str, badge: tuple[str, str]) -> None:
    upgraded = make_record("new", slower=0.4, fields={"container": "train:2026.10"}, steady=steady, commit="c")
    document = make_document(upgraded, make_baseline(commit="c"))
    assert document.badge(in_regression=()) == badge
    assert document.badge(in_regression={"step_time_ms"}) == ("regression", "")
    mild = make_record("mild", slower=0.03, fields={"container": "train:2026.10"}, steady=False, commit="c")
    undecided = make_document(mild, make_baseline(commit="c"))
    assert undecided.badge(in_regression=()) == ("inconclusive", "")
    compared = lead(undecided, unsteady="drifts")
    assert compared == "Inconclusive: not steady (drifts), so not comparable with container train:2026.09."
    sentence = lead(document, own_ms=400 * math.exp(0.4), unsteady=f"drifts 12{THIN}%")
    assert sentence.startswith("49.2")
    assert sentence.endswith(end)
    assert len(sentence.split()) <= 16


def test_an_undecided_change_is_inconclusive_and_not_without_difference() -> None:
    unclear = make_document(make_record("new", slower=0.015, commit="new"), make_baseline()[-1:])
    assert unclear.decision == "inconclusive"
    assert lead(unclear).startswith("Inconclusive: ")
    upgraded = make_record("new", slower=0.015, fields={"container": "train:2026.10"}, commit="c")
    contrast = make_document(upgraded, make_baseline(commit="c")[-1:])
    assert contrast.contrast is not None
    assert contrast.contrast.measured.decision == "inconclusive"
    sentence = lead(contrast, own_ms=400)
    assert sentence.startswith("Inconclusive: ")
    assert sentence.count("%") == 0  # the line below has the change with its interval
    assert TIME.findall(sentence) == [step_time(400), step_time(contrast.contrast.measured.step_time.baseline_ms)]
    assert not contrast.needs_more_memory


def test_a_run_that_is_only_back_at_the_level_before_a_regression_says_so() -> None:
    back = make_document(make_record("back", slower=-0.3, commit="new"), make_baseline())
    assert lead(back, recovered_from=14).startswith("Back to the level before regression 14: ")


def test_a_slow_run_of_a_job_that_alternates_names_no_code() -> None:
    sentence = lead(make_document(make_record(slower=0.3, commit="new"), make_baseline()), alternates=True)
    assert "slower" in sentence
    assert sentence.endswith(" The job alternates, whatever its code.")
    assert len(sentence.split()) <= 16


def test_a_change_from_a_single_run_says_so() -> None:
    slow = make_record("slow", slower=0.2, commit="new")
    single, several = (lead(make_document(slow, make_baseline()[-n:])).split(":")[0] for n in (1, 2))
    assert single.endswith("% slower than one run")
    assert several.endswith("% slower")


def test_a_run_as_fast_as_before_names_the_regression_that_it_continues() -> None:
    ongoing = OngoingRegression(2, 375.0, "with train:2026.09")
    same = make_document([make_record("same", slower=0.001, commit="new")], make_baseline())
    times = f"400.0{THIN}ms, was 375.0{THIN}ms with train:2026.09 (regression 2)"
    assert lead(same, own_ms=400.0, ongoing=ongoing) == f"Still 6.7{THIN}% slower: {times}."
    slower = make_document([make_record("slow", slower=0.1, commit="new")], make_baseline())
    assert "(regression 2)" not in lead(slower, own_ms=400.0, ongoing=ongoing)
    elsewhere = lead(same, own_ms=400.0, ongoing=replace(ongoing, is_elsewhere=True))
    assert elsewhere == f"Still 6.7{THIN}% slower than before regression 2: 400.0{THIN}ms."


@pytest.mark.parametrize(
    ("slower", "runs", "starts"),
    [(0.001, 1, f"As slow as #0: 400.0{THIN}ms, "), (0.001, 2, "As slow as the last 2 runs: "), (0.03, 1, "Incon")],
)
def test_an_inconclusive_run_names_the_regression_that_it_continues(slower: float, runs: int, starts: str) -> None:
    ongoing = OngoingRegression(2, 375.0, "with train:2026.09")
    earlier = [make_record(f"{k}", commit=f"{k}") for k in range(runs)]
    document = make_document([make_record("same", slower=slower, commit="new")], earlier)
    assert document.verdict.step_time is not None
    unclear = replace(document.verdict.step_time, decision="inconclusive", ci_low_pct=-9.0, ci_high_pct=9.0)
    document = replace(document, verdict=replace(document.verdict, step_time=unclear))
    sentence = lead(document, own_ms=400.0, ongoing=ongoing)
    assert sentence.startswith(starts)
    assert sentence.endswith(f"6.7{THIN}% slower than before regression 2.")
    assert len(sentence.split()) <= 16


@pytest.mark.parametrize(("slower", "gib", "also"), [(0.0, 60, ""), (0.0, 70, "Also 16.7"), (0.1, 60, "Also 10.")])
def test_a_worse_loss_leads_and_what_else_is_worse_follows(slower: float, gib: int, also: str) -> None:
    def measured(record: RunRecord, loss: float, gib: int) -> RunRecord:
        assert record.estimate is not None
        return replace(record, estimate=replace(record.estimate, loss=loss, peak_memory_bytes=gib << 30))

    earlier = [measured(record, 2.0, 60) for record in make_baseline()]
    sentence = lead(make_document(measured(make_record("new", slower=slower), 2.1, gib), earlier), own_ms=400)
    assert sentence.startswith(f"The loss is 5.0{THIN}% higher")
    rest = sentence.partition("first. ")[2]
    assert (rest.startswith(also), bool(rest)) == (True, bool(also))
    assert len(sentence.split()) <= 16


@pytest.mark.parametrize(("slower", "starts"), [(0.3, f"35.0{THIN}% slower"), (0.0, "The loss has")])
def test_a_loss_that_was_as_bad_before_leads_only_where_the_run_is_otherwise_fine(slower: float, starts: str) -> None:
    def measured(record: RunRecord, loss: float) -> RunRecord:
        assert record.estimate is not None
        return replace(record, estimate=replace(record.estimate, loss=loss))

    earlier = [measured(record, 2.0) for record in make_baseline()]
    worse = measured(earlier.pop(), 2.1)
    document = make_document(measured(make_record("new", slower=slower), 2.1), [*earlier, worse])
    assert lead(document, own_ms=400).startswith(starts)
    assert f"has been 5.0{THIN}% higher since #{worse.run}" in answer(document)


@pytest.mark.parametrize(
    ("slower", "metric", "starts", "ends"),
    [(0.1, "step_time_ms", "10.", f"Also 16.7{THIN}% more memory."), (0.0, "peak_memory_gib", "16.7", "(12 runs).")],
)
def test_a_run_leads_with_memory_only_if_its_step_time_is_not_worse(
    slower: float, metric: str, starts: str, ends: str
) -> None:
    earlier = [with_memory(record, 60) for record in make_baseline()]
    document = make_document(with_memory(make_record("new", slower=slower), 70), earlier)
    sentence = lead(document, own_ms=400)
    assert document.leading_metric(in_regression=()) == metric
    assert (sentence.startswith(starts), sentence.endswith(ends)) == (True, True), sentence
    assert len(sentence.split()) <= 16


def test_a_contrast_leads_with_memory_only_in_a_regression_of_memory_alone() -> None:
    earlier = [with_memory(record, 60) for record in make_baseline()]
    upgraded = make_document(with_memory(make_record("new", fields={"container": "train:2026.10"}), 70), earlier)
    assert upgraded.contrast is not None
    metrics = [upgraded.leading_metric(in_regression=of) for of in ((), ("peak_memory_gib",), ("step_time_ms",))]
    assert metrics == ["step_time_ms", "peak_memory_gib", "step_time_ms"]
    sentence = lead(upgraded, in_regression=("peak_memory_gib",))
    assert GIB.findall(sentence) == ["70.0", "60.0"]
    assert sentence.endswith("with container train:2026.09.")
    assert len(sentence.split()) <= 16


@pytest.mark.parametrize(
    ("fields", "commit", "cause", "end"),
    [
        ({}, "c", "", "with container train:2026.09."),
        ({"tp": 4}, "c", "", "`tp` differs, too."),
        ({"tp": 4, "dispatcher": "hybridep"}, "c", "", "` differ, too."),
        ({}, "0123456789", "commit", "Likely cause: code c..01234567."),
        ({}, "c", "container", "with container train:2026.09."),
        ({"tp": 4}, "c", "container", "Likely cause: `container` train:2026.09 → train:2026.10."),
    ],
)
def test_a_contrast_names_the_likely_cause_else_what_else_differs(
    fields: dict[str, Any], commit: str, cause: str, end: str
) -> None:
    slow = make_record("new", slower=0.2, fields={"container": "train:2026.10"} | fields, commit=commit)
    document = make_document(slow, make_baseline(commit="c"))
    assert document.contrast is not None
    differing = {item.field: item for item in document.contrast.comparability.differences}
    sentence = lead(document, differing.get(cause))
    assert sentence.endswith(end)
    assert len(sentence.split()) <= 16


def with_memory(record: RunRecord, gib: int) -> RunRecord:
    assert record.estimate is not None
    return replace(record, estimate=replace(record.estimate, peak_memory_bytes=gib << 30))

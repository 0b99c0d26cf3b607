"""What a page says first of a verdict, for each kind of answer."""

import dataclasses

import pytest

from app.domain.numbers import THIN
from app.domain.verdict.record import RunRecord
from app.domain.verdict.step_time import DEFAULT_PRIOR
from app.domain.verdict.words import answer, further_notes, what_would_decide
from tests.domain.verdict.matching_runs import make_record
from tests.domain.verdict_documents import make_baseline, make_document


def plain(text: str) -> str:
    return text.replace(THIN, " ")


@pytest.mark.parametrize(
    ("candidate", "text"),
    [
        (make_record(slower=0.0334), "3.4 % slower than the last 12 runs of this stack, certain enough to act on."),
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
            "No significant difference from the last 12 runs of this stack: the same (9.8 faster to 10.9 slower), too "
            "uncertain to call: the run is not steady, which widens the interval.",
        ),
        (
            make_record(outcome="out_of_memory"),
            "The job ran out of memory, so its speed does not count.",
        ),
        (
            make_record(fields={"dispatcher": "hybridep"}, slower=-0.2, purpose="experiment"),
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
            "No run of this stack can serve as its baseline yet. 5.1 % slower than 12 runs with container "
            "train:2026.09 instead of train:2026.10, certain enough to act on. The difference may come from "
            "container or from the code: commit (01234567 -> 89abcdef). This "
            "is a single-field contrast, not a verdict on the code.",
        ),
        (
            make_record(fields={"container": "train:2026.10"}, slower=0.05, commit="0123456789"),
            "No run of this stack can serve as its baseline yet. 5.1 % slower than 12 runs with container "
            "train:2026.09 instead of train:2026.10, certain enough to act on. The contracts attribute the "
            "difference to container. This is a single-field contrast, not a verdict on the code.",
        ),
        (
            make_record(fields={"container": "train:2026.10", "gpu": "B200"}),
            "No earlier run is comparable. The closest, #12, differs in gpu, container.",
        ),
    ],
)
def test_the_answer_says_how_much_against_what_and_how_sure_it_is(candidate: RunRecord, text: str) -> None:
    assert plain(answer(make_document(candidate, make_baseline(commit="0123456789")))) == text


def test_the_first_run_of_all_has_nothing_to_be_compared_with() -> None:
    assert answer(make_document(make_record())) == "No earlier run to compare with."


def test_a_pinned_baseline_says_so() -> None:
    document = make_document(make_record(slower=0.05), make_baseline(), pinned=frozenset({"3"}))
    assert plain(answer(document)) == "4.9 % slower than the pinned run, certain enough to act on."


def test_unknown_fields_make_it_provisional() -> None:
    unknown = {"cluster": ..., "pp_layout": ...}
    document = make_document(make_record(fields=unknown, slower=0.05), make_baseline(fields=unknown))
    assert plain(answer(document)).endswith("Provisional: cluster, pp_layout are not known on both sides.")


def test_memory_that_counts_as_a_regression_comes_first() -> None:
    def holding(record: RunRecord, gib: float) -> RunRecord:
        return dataclasses.replace(record, estimate=dataclasses.replace(record.estimate, peak_memory_bytes=gib * 2**30))

    earlier = [holding(record, 60.0) for record in make_baseline()]
    document = make_document(holding(make_record(slower=-0.05), 63.0), earlier)
    first, second = plain(answer(document)).split(". ")
    assert first == "5.0 % more peak memory than the last 12 runs of this stack (limit 1.0 %)"
    assert second.startswith("4.9 % faster than the last 12 runs")


def test_an_inconclusive_verdict_says_what_would_decide_and_says_it_once() -> None:
    document = make_document(make_record(slower=0.03), make_baseline(2), prior=DEFAULT_PRIOR)
    assert plain(answer(document)) == (
        "No significant difference from the last 2 runs of this stack: 3.1 % slower (3.5 faster to 10.2 slower), too "
        "uncertain to call."
    )
    told = what_would_decide(document)
    assert "would" in told
    assert not any("would decide" in note or note.startswith("Left out") for note in further_notes(document))
    assert any("smallest slow-down" in note for note in further_notes(document))
    assert what_would_decide(make_document(make_record(slower=0.03), make_baseline())) == ""

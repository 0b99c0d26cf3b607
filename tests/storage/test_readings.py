"""Stored readings and series give the same figures as the files; JSON columns keep their types."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.documents.metadata import read_metadata
from app.domain.documents.read import read_document
from app.domain.logs import parse_log
from app.domain.logs.merge import merge_logs
from app.domain.performance.summary import summarise, with_documents
from app.domain.run import LogPart, ParsedLog, RunSummary, Stated
from app.domain.verdict.assess import assess
from app.domain.verdict.baseline import BaselineRules
from app.domain.verdict.document import VerdictDocument, verdict_document
from app.storage import json_text, readings
from app.storage.json_text import from_json, to_json
from app.storage.readings import StoredReading, pack, pack_series, unpack, unpack_series
from app.storage.runs import stored_contract
from tests.domain.verdict.matching_runs import make_record
from tests.shared_papers import shared_folder
from tests.training_logs import training_log


def again(reading: StoredReading, summary: RunSummary) -> StoredReading:
    """Pack and unpack, with the columns as stored with the summary."""
    columns = dict(summary.series)
    columns.setdefault("log_line", summary.line_numbers.astype(float))
    return unpack(
        pack(reading), {name: readings.unpack_series(readings.pack_series(values)) for name, values in columns.items()}
    )


def assert_same(actual: RunSummary, other: RunSummary) -> None:
    for field in fields(RunSummary):
        a, b = getattr(actual, field.name), getattr(other, field.name)
        if field.name == "series":
            assert list(a) == list(b)
            for name in a:
                np.testing.assert_array_equal(a[name], b[name])
        elif field.name == "line_numbers":
            np.testing.assert_array_equal(a, b)
        else:
            assert repr(a) == repr(b), field.name  # NaN is not equal to itself, its spelling is


def assert_kept_whole(reading: StoredReading) -> None:
    metadata = read_metadata({"gpu": "H100", "gpus": 8, "container": "train:26.06"})
    first = summarise(reading.log, metadata, reading.documents)
    stored = again(reading, first)
    assert_same(first, summarise(stored.log, metadata, stored.documents))
    assert stored.warnings == reading.warnings


def logs_of_the_corpus() -> list[Path]:
    folder = shared_folder("corpus") / "logs"
    return sorted(path for kind in ("rendered", "real-excerpts", "real-full") for path in (folder / kind).glob("*.log"))


def test_every_log_of_the_corpus_is_kept_whole() -> None:
    paths = logs_of_the_corpus()
    assert len(paths) > 80
    for path in paths:
        log = merge_logs([LogPart(path.name, parse_log([path.read_bytes()]))])
        assert_kept_whole(StoredReading(log, (), ("one warning",)))


def test_a_log_of_two_slices_and_one_without_lines_are_kept_whole() -> None:
    log = training_log(iterations=60)
    half = log.index(b"\n", len(log) // 2) + 1
    parts = [LogPart("b.log", parse_log([log[half:]])), LogPart("a.log", parse_log([log[:half]]))]
    assert_kept_whole(StoredReading(merge_logs(parts), (), ()))
    assert_kept_whole(StoredReading(parse_log([]), (), ()))


def test_golden_values_are_kept_whole() -> None:
    path = next((shared_folder("corpus") / "golden").rglob("*.json"))
    document = read_document("golden values", [path.read_bytes()])
    log = with_documents(parse_log([]), [document])
    assert_kept_whole(StoredReading(log, (document,), ()))


def test_a_few_kilobytes_are_stored_with_the_series() -> None:
    largest = max(logs_of_the_corpus(), key=lambda path: path.stat().st_size)
    log = merge_logs([LogPart(largest.name, parse_log([largest.read_bytes()]))])
    assert len(pack(StoredReading(log, (), ()))) < largest.stat().st_size / 10


def test_every_field_of_a_parsed_log_is_kept() -> None:
    log = merge_logs([LogPart("a.log", parse_log([training_log()]))])
    marked = replace(log, trainer="other", line_count=7, unrecognised_lines=3, truncated=True, total_iterations=99)
    stored = again(StoredReading(marked, (), ()), summarise(marked, read_metadata({}))).log
    for field in fields(ParsedLog):
        assert repr(getattr(stored, field.name)) == repr(getattr(marked, field.name)), field.name


@given(st.lists(st.floats(width=64, allow_nan=True, allow_infinity=True)))
@settings(deadline=None)
def test_a_column_comes_back_as_it_was(values: list[float]) -> None:
    column = np.asarray(values, dtype=np.float64)
    assert np.array_equal(unpack_series(pack_series(column)), column, equal_nan=True)


def test_step_times_take_less_than_half_their_size() -> None:
    rng = np.random.default_rng(0)
    step_times_ms = np.round(412 + rng.normal(0, 2, 1000), 1)
    assert len(pack_series(step_times_ms)) < step_times_ms.nbytes / 2


@pytest.mark.parametrize("strided", [np.arange(20.0)[::2], np.arange(20.0).reshape(10, 2)[:, 0]])
def test_a_view_is_packed_like_its_copy(strided: np.ndarray) -> None:
    assert np.array_equal(unpack_series(pack_series(strided)), strided)


def documents() -> list[VerdictDocument]:
    """A verdict with suspects, one without a baseline but with a contrast, and one of a failed run."""
    earlier = [make_record(f"run {i}", {"recompute_modules": ("attn", "moe")}, slower=i % 3 * 0.001) for i in range(5)]
    candidates = [
        make_record(slower=0.1),
        make_record(fields={"container": "new", "recompute_modules": ("attn", "moe")}),
        make_record(outcome="failed"),
    ]
    return [
        verdict_document(
            assess([candidate], earlier, rules=BaselineRules("main")),
            (candidate.run,),
            {run.run: {} for run in (*earlier, candidate)},
            1,
        )
        for candidate in candidates
    ]


def test_a_document_comes_back_as_it_went_in() -> None:
    result = documents()
    assert result[1].contrast is not None
    for document in result:
        assert from_json(VerdictDocument, json.loads(json_text.dumps(to_json(document)))) == document


def test_missing_fields_have_defaults_and_unknown_fields_are_ignored() -> None:
    document = documents()[0]
    stored = to_json(document)
    del stored["rests_on"]
    stored["verdict"]["of a later version"] = 1
    assert from_json(VerdictDocument, stored) == document


def test_non_finite_numbers_are_restored() -> None:
    document = documents()[0]
    time = document.verdict.step_time
    assert time is not None
    strange = replace(document, verdict=replace(document.verdict, step_time=replace(time, delta_pct=math.nan)))
    back = from_json(VerdictDocument, json.loads(json_text.dumps(to_json(strange))))
    assert back.verdict.step_time is not None
    assert math.isnan(back.verdict.step_time.delta_pct)


def test_a_value_of_version_0_1_has_its_parts() -> None:
    """They used to be part of the detail; a value that is stored now is read back unchanged."""
    old = {
        "tp": {"value": 4, "source": "arguments", "detail": "line 12: tensor_model_parallel_size = 4", "file": 1},
        "cp_comm": {"value": None, "source": "derived", "detail": "not in use: cp is 1 (stated: p2p)", "file": 0},
        "recompute_layers": {"value": None, "source": "arguments", "detail": "line 3: recompute = 0 (stated: 0)"},
        "cluster": {"value": "west", "source": "metadata", "detail": "stated by mia on 2026-11-23", "file": 0},
    }
    contract = stored_contract(old)
    assert contract == {
        "tp": Stated(4, "arguments", "line 12: tensor_model_parallel_size = 4", file=1, line=12),
        "cp_comm": Stated(None, "derived", "not in use: cp is 1", in_use=False, stated_value="p2p"),
        "recompute_layers": Stated(None, "arguments", "line 3: recompute = 0", line=3, in_use=False, stated_value=0),
        "cluster": Stated("west", "metadata", "stated by mia on 2026-11-23", stated_by="mia"),
    }
    stored = to_json(contract)
    assert stored["tp"].keys() == {"value", "source", "detail", "file", "line"}
    assert stored_contract(stored) == contract

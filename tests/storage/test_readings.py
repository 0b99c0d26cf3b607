"""What is kept of a reading gives the same figures as the files themselves."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from app.domain.documents.metadata import read_metadata
from app.domain.documents.read import read_document
from app.domain.logs import parse_log
from app.domain.logs.merge import merge_logs
from app.domain.performance.summary import summarise, with_documents
from app.domain.run import LogPart, ParsedLog, RunSummary
from app.storage import readings
from app.storage.readings import Reading, pack, unpack
from tests.shared_papers import shared_folder
from tests.training_logs import training_log


def again(reading: Reading, summary: RunSummary) -> Reading:
    """Packed and unpacked, with the columns as they are stored with the summary."""
    columns = dict(summary.series)
    columns.setdefault("log_line", summary.line_numbers.astype(float))
    return unpack(
        pack(reading), {name: readings.unpack_series(readings.pack_series(values)) for name, values in columns.items()}
    )


def assert_same(one: RunSummary, other: RunSummary) -> None:
    for field in fields(RunSummary):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if field.name == "series":
            assert list(a) == list(b)
            for name in a:
                np.testing.assert_array_equal(a[name], b[name])
        elif field.name == "line_numbers":
            np.testing.assert_array_equal(a, b)
        else:
            assert repr(a) == repr(b), field.name  # NaN is not equal to itself, its spelling is


def assert_kept_whole(reading: Reading) -> None:
    metadata = read_metadata({"gpu": "H100", "gpus": 8, "container": "train:26.06"})
    first = summarise(reading.log, metadata, reading.documents)
    kept = again(reading, first)
    assert_same(first, summarise(kept.log, metadata, kept.documents))
    assert kept.warnings == reading.warnings


def logs_of_the_corpus() -> list[Path]:
    folder = shared_folder("corpus") / "logs"
    return sorted(path for kind in ("rendered", "real-excerpts", "real-full") for path in (folder / kind).glob("*.log"))


def test_every_log_of_the_corpus_is_kept_whole() -> None:
    paths = logs_of_the_corpus()
    assert len(paths) > 80
    for path in paths:
        log = merge_logs([LogPart(path.name, parse_log([path.read_bytes()]))])
        assert_kept_whole(Reading(log, (), ("one warning",)))


def test_a_log_of_two_slices_and_one_without_lines_are_kept_whole() -> None:
    log = training_log(iterations=60)
    half = log.index(b"\n", len(log) // 2) + 1
    parts = [LogPart("b.log", parse_log([log[half:]])), LogPart("a.log", parse_log([log[:half]]))]
    assert_kept_whole(Reading(merge_logs(parts), (), ()))
    assert_kept_whole(Reading(parse_log([]), (), ()))


def test_golden_values_are_kept_whole() -> None:
    path = next((shared_folder("corpus") / "golden").rglob("*.json"))
    document = read_document("golden values", [path.read_bytes()])
    log = with_documents(parse_log([]), [document])
    assert_kept_whole(Reading(log, (document,), ()))


def test_a_few_kilobytes_are_kept_beside_the_series() -> None:
    largest = max(logs_of_the_corpus(), key=lambda path: path.stat().st_size)
    log = merge_logs([LogPart(largest.name, parse_log([largest.read_bytes()]))])
    assert len(pack(Reading(log, (), ()))) < largest.stat().st_size / 10


def test_every_field_of_a_parsed_log_is_kept() -> None:
    log = merge_logs([LogPart("a.log", parse_log([training_log()]))])
    marked = replace(log, trainer="other", line_count=7, unrecognised_lines=3, truncated=True, total_iterations=99)
    kept = again(Reading(marked, (), ()), summarise(marked, read_metadata({}))).log
    for field in fields(ParsedLog):
        assert repr(getattr(kept, field.name)) == repr(getattr(marked, field.name)), field.name

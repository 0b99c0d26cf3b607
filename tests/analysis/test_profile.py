"""`threewalls profile`: from files to the printed profile."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.commands import threewalls
from tests.domain.profiles.traces import corpus, differences, expected, trace_bytes


def traced(name: str) -> Path:
    return corpus() / f"{name}.json.gz"


def test_one_file_gives_one_object_with_the_values_of_its_sidecar() -> None:
    answer = threewalls("profile", traced("ddp-a100-ns"), "--json")
    assert answer.code == 0
    assert differences(expected("ddp-a100-ns")["expected"], answer.document) == []
    assert answer.document["facts"]["launch_starved_frac"] == 0.792253


def test_several_files_give_a_list_with_who_waits_for_whom() -> None:
    objects: list[Any] = threewalls(
        "profile", traced("megatron-tp2-rank0"), traced("megatron-tp2-rank1"), "--json"
    ).document
    assert [item["rank"] for item in objects] == [0, 1]
    assert objects[1]["facts"]["exposed_wait_frac"] == pytest.approx(0.823258)
    assert objects[0]["facts"]["straggler_rank"] == 0


def test_a_compressed_export_is_recognised_by_content(tmp_path: Path) -> None:
    copy = tmp_path / "profile.bin"
    copy.write_bytes((corpus() / "nsys-sp2-before.sqlite.gz").read_bytes())
    document = threewalls("profile", copy, "--json").document
    assert list(document["devices"]) == ["16777360:0", "16777361:1"]


def test_an_archive_holds_several_ranks(tmp_path: Path) -> None:
    archive = tmp_path / "ranks.zip"
    with zipfile.ZipFile(archive, "w") as writer:
        for rank in range(4):
            writer.write(corpus() / f"synthetic/seed-11/ranks-{rank}.json.gz", f"torch_profile/rank-{rank}.json.gz")
    objects = threewalls("profile", archive, "--json").document
    assert [item["rank"] for item in objects] == [0, 1, 2, 3]
    assert objects[0]["ranks"]["straggler_rank"] == 2


def test_the_table_shows_the_four_parts_and_the_facts() -> None:
    lines = threewalls("profile", traced("ddp-a100-ns")).lines
    for part in ("compute", "exposed communication", "exposed copies", "idle"):
        assert any(line.strip().startswith(part) for line in lines)
    assert any("launch_starved_frac = 0.792253" in line for line in lines)


@pytest.mark.parametrize(
    "name",
    [
        "bomb.json.gz",
        "empty.json.gz",
        "truncated.json.gz",
        "view-instead-of-table.sqlite",
        "two-ranks-interleaved.json",
    ],
)
def test_a_bad_file_exits_with_2_and_names_itself(name: str) -> None:
    answer = threewalls("profile", corpus() / "bad" / name)
    assert answer.code == 2
    assert name in answer.errors


def test_a_report_of_nsight_gets_the_export_command(tmp_path: Path) -> None:
    report = tmp_path / "train.nsys-rep"
    report.write_bytes(b"\x01\0\0\0binary" * 100)
    answer = threewalls("profile", report)
    assert answer.code == 2
    assert "nsys export --type sqlite --output train.sqlite train.nsys-rep" in answer.errors


def test_a_rank_of_the_file_name_is_labelled(tmp_path: Path) -> None:
    trace = tmp_path / "rank-7.json"
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"device": 0}}
    trace.write_bytes(trace_bytes([event]))
    document = json.loads(threewalls("profile", trace, "--json").output)
    assert (document["rank"], document["rank_from"]) == (7, "file name")

"""`threewalls profile`: from files to the printed profile."""

import gzip
import json
import random
import sqlite3
import sys
import tarfile
import zipfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet

from app.domain.profiles.trace import UnusableProfile
from app.pipeline.profile_files import write_export
from tests.analysis.commands import threewalls
from tests.cases import sized
from tests.conftest import forget_settings
from tests.domain.profiles.traces import corpus, differences, expected, trace_bytes


def traced(name: str) -> Path:
    return corpus() / f"{name}.json.gz"


def test_one_file_yields_one_object_with_the_values_of_its_sidecar() -> None:
    answer = threewalls("profile", traced("ddp-a100-ns"), "--json")
    assert answer.code == 0
    assert differences(expected("ddp-a100-ns")["expected"], answer.document) == []
    assert answer.document["facts"]["launch_starved_frac"] == 0.742684


def test_several_files_yield_a_list_of_the_ranks_that_wait_for_each_other() -> None:
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


def test_an_archive_contains_several_ranks(tmp_path: Path) -> None:
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
    assert any("launch_starved_frac = 0.742684" in line for line in lines)


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


def test_a_team_adds_its_own_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def classes() -> Any:
        answer = threewalls("profile", traced("megatron-tp2-rank0"), "--json")
        return next(iter(answer.document["devices"].values()))["class_union_ms"]

    plain, rows = classes(), tmp_path / "kernels.toml"
    monkeypatch.setenv("THREEWALLS_KERNEL_CLASSES", str(rows))
    forget_settings()
    rows.write_text("[[row]]\nclass = 'comm.ep'\nis = ['^ncclDevKernel_AllReduce']\n")
    own = classes()
    assert (own.pop("comm.ep"), own) == (plain.pop("comm.collective"), plain)
    for wrong in ("[[row]]\nclass = 'mine'\nis = ['x']", "[[row]]\nclass = 'gemm'\nis = ['(']", "row = 3", "{"):
        rows.write_text(wrong)
        answer = threewalls("profile", traced("megatron-tp2-rank0"))
        assert (answer.code, "THREEWALLS_KERNEL_CLASSES" in answer.errors) == (2, True), wrong
    forget_settings()


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


def tables_of(export: Path, folder: Path, suffix: str) -> list[Path]:
    """Write the tables of an SQLite export as `nsys export --type parquetdir` or `arrowdir` does."""
    connection = sqlite3.connect(export)
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    paths = []
    for name in names:
        cursor = connection.execute(f'SELECT * FROM "{name}"')  # noqa: S608
        columns = [item[0] for item in cursor.description]
        rows = cursor.fetchall()
        table = pyarrow.table({column: [row[at] for row in rows] for at, column in enumerate(columns)})
        path = folder / f"{name}.{suffix}"
        if suffix == "parquet":
            parquet.write_table(table, path)
        else:
            with ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
        paths.append(path)
    connection.close()
    return paths


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_folder_of_tables_equals_the_export(tmp_path: Path, suffix: str) -> None:
    export = tmp_path / "export.sqlite"
    export.write_bytes(gzip.decompress((corpus() / "synthetic/seed-11/nsys-ranges.sqlite.gz").read_bytes()))
    archive = tmp_path / "tables.zip"
    with zipfile.ZipFile(archive, "w") as writer:
        for path in tables_of(export, tmp_path, suffix):
            writer.write(path, f"report/{path.name}")
    whole, tables = (threewalls("profile", path, "--json").document for path in (export, archive))
    assert tables["devices"] == whole["devices"]
    assert tables["facts"] == whole["facts"]


def test_an_archive_of_tar_may_be_compressed(tmp_path: Path) -> None:
    archive = tmp_path / "ranks.tar.gz"
    with tarfile.open(archive, "w:gz") as writer:
        for rank in range(2):
            writer.add(corpus() / f"synthetic/seed-11/ranks-{rank}.json.gz", f"rank-{rank}.json.gz")
    assert [item["rank"] for item in threewalls("profile", archive, "--json").document] == [0, 1]


def test_a_broken_table_names_itself(tmp_path: Path) -> None:
    archive = tmp_path / "tables.zip"
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("CUPTI_ACTIVITY_KIND_KERNEL.parquet", b"PAR1 but not really PAR1")
    answer = threewalls("profile", archive)
    assert answer.code == 2
    assert "CUPTI_ACTIVITY_KIND_KERNEL.parquet" in answer.errors


def test_tables_of_sums_state_their_limits(tmp_path: Path) -> None:
    table = tmp_path / "cuda_gpu_kern_sum.csv"
    table.write_text("Time (%),Total Time (ns),Instances,Name\n100.0,1000,1,ncclDevKernel_AllGather_RING_LL(int)\n")
    answer = threewalls("profile", table)
    assert answer.code == 0
    assert "nccl_share_of_summed_kernel_time = 1.0" in answer.output
    assert "Only sums" in answer.output


def test_tables_without_pyarrow_are_answered_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnusableProfile, match="nsys export --type sqlite"):
        write_export({"StringIds.parquet": tmp_path / "StringIds.parquet"}, tmp_path / "export.sqlite")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_damaged_tables_are_answered(tmp_path: Path, suffix: str) -> None:
    """Unchecked, pyarrow follows damaged offsets out of its memory and ends the process."""
    export = tmp_path / "export.sqlite"
    with closing(sqlite3.connect(export)) as connection:
        connection.execute("CREATE TABLE StringIds (id, value)")
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, "gemm"), (2, "a" * 40), (3, "µ")])
        connection.commit()
    (table,) = tables_of(export, tmp_path, suffix)
    whole = table.read_bytes()
    for seed in range(sized(80, 5_000)):
        chance = random.Random(seed)  # noqa: S311
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            at, length = chance.randrange(len(data)), chance.randint(1, 8)
            data[at : at + chance.choice([0, length])] = chance.randbytes(chance.choice([0, length]))
        table.write_bytes(data)
        target = tmp_path / f"{seed}.sqlite"
        with suppress(UnusableProfile):
            write_export({table.name: table}, target)
        target.unlink()

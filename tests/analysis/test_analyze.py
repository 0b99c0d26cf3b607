"""`threewalls analyze` as a person at a terminal meets it."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from app.domain.contract.fields import METRICS
from tests.analysis.commands import PLACE, generated_log, setting, threewalls, threewalls_process, write_logs
from tests.shared_papers import shared_folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_logs(tmp_path, [1], "train")[0]


def test_the_answer_comes_first_then_figures_then_the_contract(log: Path) -> None:
    answer = threewalls("analyze", log, *setting(PLACE))
    assert answer.code == 0
    assert answer.lines[0].startswith("train-1.log: 2")
    assert answer.lines[0].endswith(" to 50, steady.")
    rows = [line.split("  ")[0] for line in answer.lines[3:9]]
    assert rows == ["figure", "Step time", "Tokens, tokens/s/GPU", "Model FLOPs, TFLOP/s/GPU", "MFU", "Peak memory"]
    container = next(line.split() for line in answer.lines if line.split()[:1] == ["container"])
    assert container == ["container", "train:2026.09", "metadata", "meta.container"]
    assert "\u202f" not in answer.output


def test_the_document_has_what_the_api_has(log: Path) -> None:
    stated = ["--meta", '{"container": "a:1", "gpu": "H100"}', "--set", "container=a:2", "--set", "window=21-50"]
    answer = threewalls("analyze", log, *stated, "--json")
    run = answer.document
    assert (answer.code, run["schema"], run["status"]) == (0, "threewalls.analysis/1", "ready")
    assert run["contract"]["container"] == {"value": "a:2", "source": "metadata", "detail": "meta.container"}
    assert run["contract"]["dispatcher"]["value"] == "hybridep"
    assert (run["steady_state"]["first_iteration"], run["steady_state"]["method"]) == (21, "declared")
    assert list(run["metrics"]) == list(METRICS)
    time = run["metrics"]["step_time_ms"]
    assert time["ci_low"] < time["value"] < time["ci_high"]
    assert "cluster" in run["unknown"]
    assert run["provisional"]


def test_compressed_logs_and_pipes_are_read_alike(log: Path, tmp_path: Path) -> None:
    text = log.read_bytes()
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(text))
    (tmp_path / "train.log.zst").write_bytes(zstandard.compress(text))
    plain = threewalls("analyze", log, "--json").document["metrics"]
    assert threewalls("analyze", tmp_path / "train.log.gz", "--json").document["metrics"] == plain
    assert threewalls("analyze", tmp_path / "train.log.zst", "--json").document["metrics"] == plain
    assert threewalls_process("analyze", "-", "--json", stdin=text).document["metrics"] == plain


def test_a_compressed_log_that_ends_early_is_read_up_to_there(log: Path, tmp_path: Path) -> None:
    whole = gzip.compress(log.read_bytes())
    (tmp_path / "cut.log.gz").write_bytes(whole[: len(whole) * 3 // 4])
    answer = threewalls("analyze", tmp_path / "cut.log.gz")
    assert answer.code == 0
    assert "cut.log.gz" in answer.output


def test_several_files_are_one_run(log: Path, tmp_path: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    (tmp_path / "a.log").write_text("".join(lines[:150]))
    (tmp_path / "b.log").write_text("".join(lines[150:]))
    whole = threewalls("analyze", log, "--json").document
    parts = threewalls("analyze", tmp_path / "b.log", tmp_path / "a.log", "--json").document
    assert parts["files"] == ["b.log", "a.log"]
    assert parts["steady_state"] == whole["steady_state"]


def test_a_run_without_an_iteration_is_3_and_says_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(generated_log(1, failure="deepep missing"))
    answer = threewalls("analyze", path)
    assert answer.code == 3
    assert "DeepEP is not installed" in answer.lines[0]
    assert "\nFailures\n" in answer.output
    assert threewalls("analyze", path, "--json").document["failures"][0]["advice"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"", "is empty"), (b"PK\x03\x04...", "a zip archive"), (b"\x1f\x8bxx", "damaged")],
)
def test_what_cannot_be_read_is_3_with_a_sentence(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    if content is not None:
        path.write_bytes(content)
    answer = threewalls("analyze", path)
    assert (answer.code, answer.output) == (3, "")
    assert message in answer.errors
    assert "Nothing was saved" not in answer.errors


def test_a_terminal_without_unicode_gets_ascii(log: Path) -> None:
    answer = threewalls_process("analyze", log, env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert answer.code == 0
    assert answer.output.isascii()
    assert "+-" in answer.lines[0]


def test_every_complete_real_log_is_analysed() -> None:
    logs = sorted((shared_folder("corpus") / "logs/real-full").glob("*.log"))
    assert logs
    for path in logs:
        answer = threewalls("analyze", path, "--json")
        assert answer.code == (3 if answer.document["error"] else 0), path


def test_neither_database_nor_charts_are_loaded_for_it(log: Path) -> None:
    code = (
        "import sys; from app.cli import main; main(['analyze', sys.argv[1]]);"
        "print(sorted({'sqlalchemy', 'altair', 'celery', 'fastapi', 'alembic'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, log], capture_output=True, text=True, timeout=300, check=True)
    assert done.stderr.strip() == "[]"

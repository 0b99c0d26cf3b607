"""Whole summaries of the shared logs, against their sidecars: parsed, resolved, measured, explained."""

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.contract.fields import METRICS
from app.domain.documents.metadata import read_metadata
from app.domain.logs import parse_log
from app.domain.performance.summary import summarise
from app.domain.run import ParsedLog, RunSummary
from tests.shared_papers import shared_folder

RENDERED = 40
FLAGS = {
    "--tensor-model-parallel-size": "tp",
    "--pipeline-model-parallel-size": "pp",
    "--expert-model-parallel-size": "ep",
    "--num-experts": "num_experts",
    "--micro-batch-size": "mbs",
    "--global-batch-size": "gbs",
    "--seq-length": "seq_len",
}


@lru_cache
def parsed(path: Path) -> ParsedLog:
    return parse_log([path.read_bytes()])


def summary_of(path: Path, meta: dict[str, object] | None = None) -> RunSummary:
    return summarise(parsed(path), read_metadata(meta or {}))


def sidecar_of(path: Path) -> dict[str, Any]:
    return json.loads(path.with_suffix(".json").read_text())  # type: ignore[no-any-return]


@lru_cache
def golden_runs() -> dict[str, dict[str, Any]]:
    lines = (shared_folder("corpus") / "golden" / "index.jsonl").read_text().splitlines()
    return {run["run_id"]: run for run in map(json.loads, lines)}


def rendered() -> list[Path]:
    paths = sorted((shared_folder("corpus") / "logs" / "rendered").glob("*.log"))
    assert len(paths) == RENDERED
    return paths


def test_the_step_time_of_every_rendered_log_is_the_median_of_its_window() -> None:
    for path in rendered():
        summary, expected = summary_of(path), sidecar_of(path)["expected"]
        steady, metric = summary.steady_state, summary.metrics["step_time_ms"]
        assert summary.error is None, path.name
        assert steady is not None, path.name
        assert metric is not None, path.name
        last_printed = dict(zip(expected["iterations"], expected["step_time_ms"], strict=True))
        window = [t for i, t in last_printed.items() if steady.first_iteration <= i <= steady.last_iteration]
        assert metric.value == pytest.approx(math.exp(np.median(np.log(window))), rel=1e-6), path.name
        assert metric.n == len(window), path.name


def test_the_peak_memory_of_every_rendered_log_is_that_of_its_memory_lines() -> None:
    for path in rendered():
        expected = sidecar_of(path)["expected"]
        peaks = [value for value in expected.get("mem_max_allocated_bytes") or [] if value]
        metric = summary_of(path).metrics["peak_memory_gib"]
        if metric is None:
            assert not peaks or "memory (" not in path.read_text(), path.name
        else:
            assert metric.value * 2**30 <= max(peaks) * 1.0001, path.name


def test_the_contract_of_every_rendered_megatron_log_is_that_of_its_run() -> None:
    for path in (path for path in rendered() if path.name.endswith(".mlm.log")):
        run = golden_runs()[sidecar_of(path)["source_run"]]
        stated = json.loads((shared_folder("corpus") / run["file"]).read_text())["launch_args"]
        summary = summary_of(path, {"gpu": run["gpu"] or "H100", "cluster": "ci", "container": "x:1"})
        for flag, field in FLAGS.items():
            if flag in stated:
                assert summary.contract[field].value == int(stated[flag]), (path.name, field)
        if run["world_size"]:
            assert summary.contract["gpus"].value == run["world_size"], path.name
        assert not summary.provisional, (path.name, summary.warnings)


def test_the_launch_arguments_of_a_run_contradict_nothing_in_its_log() -> None:
    for path in (path for path in rendered() if path.name.endswith(".mlm.log")):
        run = json.loads((shared_folder("corpus") / golden_runs()[sidecar_of(path)["source_run"]]["file"]).read_text())
        summary = summary_of(path, {"launch_args": run["launch_args"]})
        assert not [warning for warning in summary.warnings if "in the metadata but" in warning], path.name


def test_the_two_renderings_of_a_run_have_the_same_steps_and_the_same_sentences_about_them() -> None:
    for path in (path for path in rendered() if path.name.endswith(".mlm.log")):
        ours, other = summary_of(path), summary_of(path.with_name(path.name.replace(".mlm.", ".bridge.")))
        if ours.health["restarts"] or ours.health["last_iteration"] != other.health["last_iteration"]:
            continue  # a restart or a cut end was added to one of them
        assert ours.metrics["step_time_ms"] is not None
        assert other.metrics["step_time_ms"] is not None
        assert ours.metrics["step_time_ms"].value == pytest.approx(other.metrics["step_time_ms"].value, rel=0.02)


@pytest.mark.parametrize(
    ("name", "outcome", "evidence", "semantic_class", "model"),
    [
        ("dsv2lite-fp8-mi355x-baseline", "completed", "screen", "benchmark_only", "DeepSeek-V2-Lite"),
        ("dense-llama3.1-8b-50iter", "completed", "validated", "benchmark_only", "32L-h4096-dense"),
        ("dsv4-p22-eager-pp2-ep4", "completed", "screen", "benchmark_only", "8L-h4096-8e-top2"),
    ],
)
def test_real_logs_are_read_whole(name: str, outcome: str, evidence: str, semantic_class: str, model: str) -> None:
    summary = summary_of(shared_folder("corpus") / "logs" / "real-full" / f"{name}.log")
    assert summary.health["outcome"] == outcome
    assert (summary.evidence_level, summary.semantic_class) == (evidence, semantic_class)
    assert summary.contract["model"].value == model
    assert summary.metrics["tokens_per_s_per_gpu"] is not None
    assert summary.metrics["tflops_per_gpu"] is not None
    assert summary.metrics["peak_memory_gib"] is not None


def test_the_flops_formula_agrees_with_what_a_real_run_prints() -> None:
    # DeepSeek-V2-Lite on 8 MI355X: printed 239.5 TFLOP/s/GPU, at a true step time of 32061.1 ms
    path = shared_folder("corpus") / "logs" / "real-full" / "dsv2lite-fp8-mi355x-baseline.log"
    summary = summary_of(path)
    metric = summary.metrics["tflops_per_gpu"]
    assert metric is not None
    assert metric.value == pytest.approx(239.506, abs=0.001)
    assert metric.note.endswith("the trainer prints 239.5, which is the same, rounded")
    assert not any("FLOPs formula" in warning for warning in summary.warnings)


def test_a_crash_before_the_first_iteration_is_an_error_with_its_line() -> None:
    summary = summary_of(shared_folder("corpus") / "logs" / "real-full" / "dsv4-p22-turbo-crash.log")
    assert summary.error == (
        "No iteration line was read. A process failed without a known reason (line 2548): torchrun reports a process "
        "that ended with an error; the process's own output is not in this log. Exit code 1."
    )
    assert summary.contract["gpus"].value == 8


def test_every_log_of_the_corpus_gives_an_answer_in_plain_sentences() -> None:
    for path in sorted((shared_folder("corpus") / "logs").glob("*/*.log")):
        summary = summary_of(path)
        assert summary.error is not None or summary.health["iterations"], path.name
        assert list(summary.metrics) == list(METRICS), path.name
        for sentence in summary.warnings:
            assert sentence.endswith("."), (path.name, sentence)
            assert not {"None", "nan", "True", "False"} & set(sentence.split()), (path.name, sentence)

"""Complete summaries of the shared logs against their sidecars: parsed, resolved, measured, explained."""

import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.contract.fields import METRICS
from app.domain.documents.metadata import read_metadata
from app.domain.logs import parse_log, parse_text
from app.domain.performance.figures import LARGEST, SMALLEST
from app.domain.performance.steady_state import MAX_STEP_MS
from app.domain.performance.summary import summarise
from app.domain.run import Metadata, ParsedLog, RunSummary
from app.storage.json_text import storable
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
    return json.loads(path.with_suffix(".json").read_text())


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
            continue  # a restart or a truncation was added to one of them
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
    # DeepSeek-V2-Lite on 8 MI355X: printed 239.5 to 239.6 TFLOP/s/GPU, at a true step time of 32059.2 ms (unprofiled)
    path = shared_folder("corpus") / "logs" / "real-full" / "dsv2lite-fp8-mi355x-baseline.log"
    summary = summary_of(path)
    metric = summary.metrics["tflops_per_gpu"]
    assert metric is not None
    assert metric.value == pytest.approx(239.520, abs=0.001)
    assert metric.note.endswith("239.6, which is the same, rounded")
    assert not any("FLOPs formula" in warning for warning in summary.warnings)


def test_a_crash_before_the_first_iteration_is_an_error_with_its_line() -> None:
    summary = summary_of(shared_folder("corpus") / "logs" / "real-full" / "dsv4-p22-turbo-crash.log")
    assert summary.error is not None
    assert [part in summary.error for part in ("(line 2548)", "Exit code 1.")] == [True, True]
    assert summary.contract["gpus"].value == 8


def test_every_log_of_the_corpus_is_answered_in_plain_sentences() -> None:
    for path in sorted((shared_folder("corpus") / "logs").glob("*/*.log")):
        summary = summary_of(path)
        assert summary.error is not None or summary.health["iterations"], path.name
        assert list(summary.metrics) == list(METRICS), path.name
        for sentence in summary.warnings:
            assert sentence.endswith("."), (path.name, sentence)
            assert not {"None", "nan", "True", "False"} & set(sentence.split()), (path.name, sentence)


# --- Logs with damaged numbers: they are read and explained, and produce no impossible figure.


CASES = 300
MOST = {"step_time_ms": MAX_STEP_MS, "mfu_pct": 100.0, **LARGEST}
MEGATRON = b"".join(
    (
        b"using world size: 8, data-parallel size: 1\n",
        b"--- arguments ---\n  num_experts ...... 64\n  seq_length ..... 4096\n  global_batch_size ..... 8\n"
        b"--- end of arguments ---\n",
        *(
            b" [2026-05-11 02:59:%02d.912300] iteration %d/ 12 | consumed samples: %d | elapsed time per iteration "
            b"(ms): 782.5 | throughput per GPU (TFLOP/s/GPU): 4.3 | tokens/sec/gpu: 123.4 | global batch size: 8 | "
            b"lm loss: 1.2E+01 | grad norm: 1.5 | number of skipped iterations: 0 | number of nan iterations: 0 |\n"
            b"(min, max) time across ranks (ms):\n    optimizer ........: (1.00, 2.00)\n" % (n, n, 8 * n)
            for n in range(1, 13)
        ),
        b"[Rank 3] (after 2 iterations) memory (MB) | allocated: 10.5 | max allocated: 20.5 | reserved: 5.0\n",
        b"[rank4]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has 1.02 GiB free.\n",
        b"WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600024 milliseconds before timing out.\n",
    )
)
OTHERS = b"".join(
    b"Training epoch 0, iteration %d/99 | lr: 1.9e-07 | train_step_timing in s: 2.008 | consumed_samples: 8\n"
    b"2026-01-01 10:00:00 | INFO | step %08d/00000015 | step-time 43.142 sec | tokens-per-second 48,611 |\n" % (n, n)
    for n in range(1, 10)
)
NUMBER = re.compile(rb"[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?")
DAMAGE = (
    b"inf",
    b"-inf",
    b"nan",
    b"1e308",
    b"-1e308",
    b"1e400",
    b"1e-320",
    b"-1",
    b"-0.0",
    b"0",
    b"9" * 30,
    b"1e18",
    b"",
)
FIELDS = (
    b"elapsed time per iteration (ms):", b"throughput per GPU (TFLOP/s/GPU):", b"tokens/sec/gpu:", b"lm loss:",
    b"number of skipped iterations:", b"number of nan iterations:", b"global batch size:", b"consumed samples:",
    b"max allocated:", b"train_step_timing in s:", b"step-time", b"tokens-per-second",
)  # fmt: skip


def damaged(case: int) -> bytes:
    """A log with some of its numbers replaced: all of one field, or any."""
    chance = random.Random(case)  # noqa: S311  # a sample that is the same every time
    log = chance.choice((MEGATRON, OTHERS, MEGATRON + OTHERS))
    if case % 2:
        field = re.escape(chance.choice(FIELDS))
        return re.sub(rb"(%b) *[-+.\w]+" % field, lambda match: match[1] + b" " + chance.choice(DAMAGE), log)
    share = chance.choice((0.005, 0.05, 0.5))
    return NUMBER.sub(lambda match: chance.choice(DAMAGE) if chance.random() < share else match[0], log)


def wrong_with(data: bytes) -> Iterator[str]:
    summary = summarise(parse_text(data), Metadata())
    json.dumps(storable(asdict(summary)), allow_nan=False)
    for name, metric in summary.metrics.items():
        if metric and not SMALLEST <= metric.ci_low <= metric.value <= metric.ci_high <= MOST[name]:
            yield f"{name} is {metric}"
    for name in ("skipped_iterations", "nan_iterations", "alloc_retries", "last_iteration"):
        count = summary.health[name]
        if isinstance(count, int) and not 0 <= count <= 10**12:
            yield f"{name} is {count}"


def test_damaged_numbers_never_raise_and_never_become_figures() -> None:
    wrong = []
    for case in range(CASES):
        try:
            wrong += [f"case {case}: {sentence}" for sentence in wrong_with(damaged(case))]
        except (ArithmeticError, ValueError, TypeError, RuntimeWarning) as error:
            wrong.append(f"case {case}: {error!r}")
    assert wrong == []

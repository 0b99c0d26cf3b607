"""Every log of the corpus against its sidecar, whose values were typed by hand or come from the real series.

The corpus is next to the checkout (`../shared/corpus/logs`); it is third-party data and not copied into the project.
"""

import json
import math
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.domain.logs import parse_log
from app.domain.run import ParsedLog
from tests.cases import every_case

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "logs"
LOGS = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.glob("*/*.log"))

NOT_IN_LOG = {
    "author_summary", "author_stated_steady_tflops", "author_stated_step_time_s", "implied_global_batch_size",
    "duplicate_lines", "n_steps", "failure_text",
}  # fmt: skip
"""What sidecars say about the text besides values."""

COLUMNS = {
    "step_time_ms": "step_time_ms",
    "lm_loss": "lm_loss",
    "tflops_per_gpu": "tflops_per_gpu",
    "tflops_per_gpu_derived": "tflops_per_gpu",
    "tokens_per_sec_per_gpu": "tokens_per_s_per_gpu",
    "tokens_per_sec": "tokens_per_second",
    "loss": "lm_loss",
    "step_time_ms_running_avg": "step_time_ms_running_avg",
    "tflops_per_gpu_running_avg": "tflops_per_gpu_running_avg",
    "peak_memory_bytes": "peak_memory_bytes",
    "peak_memory_gb": "peak_memory_bytes",
    "hip_mem_used_gb": "hip_mem_used_bytes",
    "grad_norm": "grad_norm",
    "params_norm": "params_norm",
    "num_zeros": "num_zeros",
    "load_balancing_loss": "load_balancing_loss",
    "seq_load_balancing_loss": "seq_load_balancing_loss",
    "mtp_1 loss": "mtp_1_loss",
    "samples_per_second": "samples_per_second",
    "mem_usage_fraction": "mem_usages",
    "skipped": "skipped_iterations",
    "nan": "nan_iterations",
}
UNITS = {"hip_mem_used_gb": 2.0**30, "peak_memory_gb": 2.0**30}
"""Factors of sidecars' values to the columns' units."""
STATED = {
    "world_size": "gpus",
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "ep": "ep",
    "num_experts": "num_experts",
    "seq_length": "seq_len",
    "global_batch_size": "gbs",
    "moe_token_dispatcher_type": "dispatcher_type",
    "moe_flex_dispatcher_backend": "flex_backend",
    "router_load_balancing_type": "lb_type",
    "force_load_balancing": "force_balance",
    "cuda_graph_impl": "graph_impl",
    "cuda_graph_scope": "graph_modules",
    "pipeline_layout": "pp_layout",
}
FAILURES = {"deepep-timeout": "deepep_timeout", "nan": "not_finite"}
OTHER = {
    "iterations", "total_iterations", "log_interval", "finished", "truncated_last_line", "true_step2_ms",
    "mem_max_allocated_bytes", "mem_max_allocated_mb", "mem_max_allocated_gb", "mem_max_reserved_gb", "alloc_retries",
    "mtp_losses", "validation", "failure", "failing_rank", "failing_iteration", "exit_reason", "exit_after_minutes",
    "moe_enable_deepep", "timers_ms", "theoretical_memory_mb",
}  # fmt: skip
"""Values that the tests below compare one by one."""


@cache
def read(name: str) -> tuple[ParsedLog, dict[str, Any]]:
    path = CORPUS / name
    sidecar = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    with path.open("rb") as file:
        return parse_log(iter(lambda: file.read(65_536), b"")), sidecar["expected"]


def kept_rows(iterations: list[int]) -> list[int]:
    """Rows that stay when a later process repeats iterations: the sidecars list every printed line."""
    return [
        row for row, iteration in enumerate(iterations) if all(later > iteration for later in iterations[row + 1 :])
    ]


def as_floats(values: list[Any]) -> np.ndarray:
    return np.array([math.nan if value is None else float(value) for value in values])


def test_corpus_is_next_to_the_checkout() -> None:
    assert LOGS or os.environ.get("CI") != "true", f"The corpus is missing: {CORPUS}"


def test_every_value_of_the_sidecars_is_compared_or_named() -> None:
    names = {*COLUMNS, *STATED, *OTHER, *NOT_IN_LOG}
    assert {key for name in LOGS for key in read(name)[1]} <= names


def test_a_log_yields_the_values_of_its_sidecar() -> None:
    with every_case() as case:
        for name in LOGS or [""]:
            with case(name):
                if not name:
                    continue  # no corpus: reported by test_corpus_is_next_to_the_checkout
                log, expected = read(name)
                iterations = expected["iterations"]
                if iterations is None:  # step lines have no numbers, so they were counted
                    iterations = list(range(1, expected["n_steps"] + 1))
                rows = kept_rows(iterations)
                np.testing.assert_array_equal(log.columns["iteration"], [iterations[row] for row in rows])
                assert log.n == len(rows)
                for key, column in COLUMNS.items():
                    compare_column(
                        log, column, in_units(key, expected.get(key)), rows, printed=key != "tflops_per_gpu_derived"
                    )
                compare_contract(log, expected)
                compare_memory(log, expected)
                compare_life(log, expected)


def in_units(key: str, values: Any) -> Any:
    if key not in UNITS or values is None:
        return values
    return [None if value is None else value * UNITS[key] for value in values]


TRAINERS = {
    "Megatron-LM": "Megatron-LM",
    "Megatron-Bridge": "Megatron-Bridge",
    "Megatron-Bridge (NeMo 26.06)": "Megatron-Bridge",
    "NeMo 2": "NeMo 2",
    "pith-train (not Megatron)": "pith-train",
    "Megatron-DeepSpeed": "Megatron-DeepSpeed",
    "Primus (AMD)": "Primus",
    "Primus (AMD) on Megatron-LM": "Primus",
    "ROCm Megatron-LM": "ROCm Megatron-LM",
}
"""The family that is recognised. Forks that print Megatron-LM's own line and no name are taken for Megatron-LM."""


SAME_LINE = {"bridge-mtp-doc-line.log"}
"""Excerpts of one line that Megatron-LM would have printed, too."""


def test_family_is_recognised() -> None:
    with every_case() as case:
        for name in LOGS or [""]:
            with case(name):
                if name:
                    sidecar = json.loads((CORPUS / name).with_suffix(".json").read_text(encoding="utf-8"))
                    log = read(name)[0]
                    wanted = sidecar.get("trainer") or sidecar["format"]
                    if log.n and Path(name).name not in SAME_LINE:
                        assert log.trainer == TRAINERS.get(wanted, log.trainer)
                    assert log.trainer or not log.n


def compare_column(log: ParsedLog, column: str, expected: Any, rows: list[int], *, printed: bool) -> None:
    if expected is None:
        return
    values = log.columns.get(column, np.full(log.n, np.nan))
    wanted = as_floats(expected if isinstance(expected, list) else [expected] * len(rows))
    if isinstance(expected, list):
        wanted = wanted[rows]
    if log.truncated and column.startswith("mtp"):
        wanted[-1] = values[-1]  # the sidecar has the series' value of a line that was cut before it
    if printed:
        np.testing.assert_allclose(values, wanted, rtol=1e-9, err_msg=column)
    elif column in log.columns:  # printed with one decimal where it was printed at all
        np.testing.assert_allclose(values, np.where(np.isnan(values), np.nan, wanted), atol=0.0501, err_msg=column)


def compare_contract(log: ParsedLog, expected: dict[str, Any]) -> None:
    for key, field in STATED.items():
        wanted, stated = expected.get(key), log.stated.get(field)
        if key == "pipeline_layout" and wanted:
            wanted = wanted.replace("\\", "")  # a shell's escapes, which the trainer never saw
        if wanted is None or stated is None:
            continue  # null in a sidecar: not stated; a summary leaves out world size and more
        if field in ("lb_type", "graph_modules"):
            assert set(stated.value) == ({wanted} if isinstance(wanted, str) else set(wanted)), field
        else:
            assert stated.value == wanted, field
    if expected.get("moe_token_dispatcher_type"):
        kind, backend = expected["moe_token_dispatcher_type"], expected["moe_flex_dispatcher_backend"]
        assert log.stated["dispatcher"].value == (backend if kind == "flex" else kind)
        for field in ("tp", "pp", "ep", "num_experts", "gbs", "seq_len", "lb_type"):
            assert field in log.stated


def compare_memory(log: ParsedLog, expected: dict[str, Any]) -> None:
    if peaks := expected.get("mem_max_allocated_bytes"):
        at = dict(zip(expected["iterations"], peaks, strict=True))
        assert log.memory
        for report in log.memory:
            # Megatron-Bridge prints five significant digits
            assert report.max_allocated_bytes == pytest.approx(at[report.iteration], rel=1e-4)
    if "mem_max_allocated_mb" in expected:
        assert log.memory[0].max_allocated_bytes == expected["mem_max_allocated_mb"] * 2**20
    if "mem_max_allocated_gb" in expected:
        (report,) = log.memory
        assert report.max_allocated_bytes == pytest.approx(expected["mem_max_allocated_gb"] * 1e9)
        assert report.max_reserved_bytes == pytest.approx(expected["mem_max_reserved_gb"] * 1e9)
        assert report.alloc_retries == expected["alloc_retries"]


def compare_life(log: ParsedLog, expected: dict[str, Any]) -> None:
    kinds = [event.kind for event in log.events]
    if expected.get("total_iterations") is not None:
        assert log.total_iterations == expected["total_iterations"]
    if "log_interval" in expected:
        assert log.log_interval == expected["log_interval"]
    if "true_step2_ms" in expected:
        # The sidecar has it from the timestamps, which include some milliseconds of printing
        assert log.columns["step_time_true_ms"][1] == pytest.approx(expected["true_step2_ms"], abs=1.0, rel=1e-3)
    if "finished" in expected:
        assert ("training_done" in kinds) is expected["finished"]
        assert log.truncated is not expected["finished"]
    if expected.get("truncated_last_line"):
        assert any(problem.kind == "cut off" for problem in log.problems)
    if expected.get("failure") in FAILURES:
        failure = next(event for event in log.events if event.kind == FAILURES[expected["failure"]])
        assert failure.rank == expected["failing_rank"]
        assert failure.iteration == expected.get("failing_iteration")
    elif expected.get("failure"):
        assert "process_failed" in kinds
    if "exit_reason" in expected:
        assert "exit_duration" in kinds
    for name, value in expected.get("timers_ms", {}).items():
        word = re.sub("[^a-z]", "_", name)
        column = log.columns.get(f"timer_{word}_ms")
        at_start = log.arguments.get(f"start-up timer: {word} (ms)")
        result = [at_start] if column is None else column.tolist()
        assert result == [max(value) if isinstance(value, list) else value]
    for name, value in expected.get("theoretical_memory_mb", {}).items():
        assert log.arguments[f"theoretical memory: {name.replace('_', ' ')} (MB)"] == value
    if "mtp_losses" in expected:
        np.testing.assert_allclose(log.columns["mtp_1_loss"], expected["mtp_losses"]["mtp_1"])
    if "validation" in expected:
        assert "validation" in kinds


def test_no_line_of_the_corpus_is_left_unread() -> None:
    with every_case() as case:
        for name in LOGS or [""]:
            with case(name):
                if name:
                    assert read(name)[0].unrecognised_lines == 0

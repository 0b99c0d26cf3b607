"""Rows for tests: a run as a worker would have stored it. Tests state only the values that they are about.

The numbers are those of the overlap case of the founding documents: Qwen3-30B-A3B on 16 H100, 31.31 s a step.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import cache
from types import EllipsisType
from typing import Any

import numpy as np
from sqlalchemy import insert
from sqlmodel import Session, col, select

from app.domain.contract.resolve import config_key, stack_key
from app.domain.definitions import DEFINITION_VERSION, DEFINITIONS
from app.domain.run import FloatArray, Metric, Stated, SteadyState, Value
from app.domain.verdict.record import shape_of
from app.pipeline import judge as judging
from app.pipeline import rank
from app.pipeline.rank import request_next_rankings
from app.pipeline.work import stack_queue
from app.settings import get_settings
from app.storage import readings
from app.storage.runs import settle_places
from app.storage.tables import (
    EVERYTHING,
    RESULT_COLUMNS,
    AvailabilityRow,
    ProjectRow,
    RunFileRow,
    RunResultRow,
    RunRow,
    SegmentRow,
    SeriesRow,
    utc_now,
)

GLOBAL_BATCH, SEQUENCE, GPUS = 1024, 4096, 16
GFLOP_PER_TOKEN = 23.006  # Qwen3-30B-A3B at sequence 4096
PEAK_TFLOPS = 989.0
WARM_UP = 4
FIRST_LINE = 40  # log lines before the first iteration line

UNITS = {
    "iteration": "",
    "step_time_ms": "ms",
    "step_time_true_ms": "ms",
    "tokens_per_s_per_gpu": "tokens/s/GPU",
    "tflops_per_gpu": "TFLOP/s/GPU",
    "lm_loss": "",
    "learning_rate": "",
    "global_batch_size": "samples",
    "grad_norm": "",
    "skipped_iterations": "iterations",
    "nan_iterations": "iterations",
    "log_line": "",
}

# name: (value, source, the argument that stated it or the reason)
CONTRACT = {
    "model": ("Qwen3-30B-A3B", "metadata", "meta.model"),
    "gpu": ("H100", "metadata", "meta.gpu"),
    "gpus": (GPUS, "arguments", "world_size"),
    "gpus_per_node": (8, "metadata", "meta.gpus_per_node"),
    "container": ("nvcr.io/nvidia/nemo:26.06", "metadata", "meta.container"),
    "tp": (1, "arguments", "tensor_model_parallel_size"),
    "pp": (1, "arguments", "pipeline_model_parallel_size"),
    "ep": (16, "arguments", "expert_model_parallel_size"),
    "etp": (1, "derived", "expert_tensor_parallel_size is unset, so it is tp"),
    "cp": (1, "arguments", "context_parallel_size"),
    "dp": (16, "derived", "gpus / (tp pp cp)"),
    "seq_len": (SEQUENCE, "arguments", "seq_length"),
    "gbs": (GLOBAL_BATCH, "arguments", "global_batch_size"),
    "mbs": (2, "arguments", "micro_batch_size"),
    "dispatcher_type": ("alltoall", "arguments", "moe_token_dispatcher_type"),
    "dispatcher": ("alltoall", "derived", "dispatcher_type"),
    "force_balance": (True, "arguments", "moe_router_force_load_balancing"),
    "routing_mode": ("forced-balance", "derived", "force_balance"),
    "ep_overlap": (False, "arguments", "overlap_moe_expert_parallel_comm"),
    "precision": ("bf16", "arguments", "bf16"),
    "data_mode": ("mock", "arguments", "mock_data"),
    "recompute_modules": (("moe_act", "layernorm"), "arguments", "recompute_modules"),
    "graph_modules": ((), "default", "not in the dump, which lists non-defaults only"),
}


def make_project(session: Session, slug: str = "moe-lab", *, generated: bool = False) -> ProjectRow:
    result = session.exec(select(ProjectRow).where(ProjectRow.slug == slug)).one_or_none()
    if result is None:
        result = ProjectRow(slug=slug, generated=generated)
        session.add(result)
        session.flush()
    return result


def make_run(
    session: Session,
    *,
    project: str = "moe-lab",
    generated: bool = False,
    step_time_ms: float = 31_310.0,
    iterations: int = 50,
    status: str = "ready",
    log_files: Any = None,
    **columns: Any,
) -> int:
    """Insert a run and return its id. `columns` overrides any column of RunRow; `log_files` also stores a log."""
    owner = make_project(session, project, generated=generated)
    new = _Run(project, step_time_ms, iterations, status, columns)
    (run_id,) = _insert(session, owner.id or 0, [new], log_files)
    return run_id


class _Run:
    """Return the columns of a run to insert, and its step times."""

    def __init__(
        self, project: str, step_time_ms: float, iterations: int, status: str, columns: Mapping[str, Any]
    ) -> None:
        content = repr((project, step_time_ms, iterations, status, columns)).encode()
        self.times = step_times(step_time_ms, iterations)
        self.is_ready = status == "ready"
        columns = (
            {"outcome": columns.get("health", {}).get("outcome", "")} | columns if "health" in columns else columns
        )
        stored = _stated() | _outcome(status) | (_result(self.times) if self.is_ready else {}) | columns
        stored["badge"] = columns.get("badge", columns.get("verdict", ""))
        now = utc_now()
        self.columns = _defaults() | {"created_at": now, "ordered_at": now} | stored
        self.columns["content_key"] = hashlib.sha256(content).hexdigest()


def _insert(session: Session, project_id: int, runs: Sequence[_Run], log_files: Any = None) -> list[int]:
    """Insert runs with their series. It makes no objects of the tables: they cost more than their rows."""
    session.flush()
    ids = insert_runs(session, [run.columns | {"project_id": project_id} for run in runs])
    series = [row for id_, run in zip(ids, runs, strict=True) if run.is_ready for row in _series_rows(id_, run.times)]
    if series:
        session.execute(insert(SeriesRow), series)
    if log_files is not None:
        for id_, run in zip(ids, runs, strict=True):
            _store_log(session, log_files, id_, run.times)
    return ids


@cache
def _defaults() -> dict[str, Any]:
    """Return the columns of a run without stated values, except those that differ between runs."""
    row = run_row()
    run = row.model_dump(exclude={"id", "project_id", "content_key", "created_at", "ordered_at"})
    return run | row.result.model_dump(exclude={"run_id"})


def run_row(**columns: Any) -> RunRow:
    """Return a run with its result, from columns of both tables."""
    result = {name: columns.pop(name) for name in RESULT_COLUMNS & columns.keys()}
    return RunRow(**columns, result=RunResultRow(**result))


def insert_runs(session: Session, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Insert many runs, given as columns of both tables (`run_columns`). Return their ids in the same order."""
    runs = [{name: value for name, value in row.items() if name not in RESULT_COLUMNS} for row in rows]
    added = session.execute(insert(RunRow).returning(col(RunRow.id), sort_by_parameter_order=True), runs)
    ids = list(added.scalars())
    results = [{name: row[name] for name in RESULT_COLUMNS & row.keys()} for row in rows]
    session.execute(insert(RunResultRow), [{"run_id": id_} | result for id_, result in zip(ids, results, strict=True)])
    return ids


FIRST_PLACE = datetime(2026, 9, 1, 4, tzinfo=UTC)


def make_stack(
    session: Session,
    step_times_ms: Sequence[float],
    *,
    project: str = "moe-lab",
    fields: Mapping[str, Value | Stated | EllipsisType] | None = None,
    commits: Sequence[str] | None = None,
    started: datetime = FIRST_PLACE,
    every: timedelta = timedelta(days=1),
    judged: bool = True,
    **columns: Any,
) -> list[int]:
    """CI runs of one configuration on the baseline branch, one a day, and their verdicts by the real judge.

    `fields`: contract fields that differ from CONTRACT, `...` for an unknown one, a Stated for a source other than
    metadata. Call it again with other fields for another configuration or stack. `commits`: one per run; by default all
    differ. `started`: position of the first. `columns` apply to all of them; the ids, in order.
    """
    stated = _contract(fields or {})
    keys = {"stack_key": stack_key(project, stated), "config_key": config_key(project, stated)}
    listed = _listed(stated)
    of_all = {name: columns[name] for name in ("iterations", "status", "log_files", "generated") if name in columns}
    own = {name: value for name, value in columns.items() if name not in of_all}
    owner = make_project(session, project, generated=of_all.get("generated", False)).id or 0
    runs = []
    for number, time in enumerate(step_times_ms):
        place = started + number * every
        commit = commits[number] if commits else hashlib.sha1(repr((place, columns)).encode()).hexdigest()  # noqa: S324
        facts: dict[str, Any] = {"name": f"nightly-{place:%m-%d}", "purpose": "ci", "tags": [], "commit": commit}
        facts |= {
            "ordered_at": place,
            "commit_time": place,
            "metadata_stated": {"commit_time": place.isoformat()},
            **listed,
            **keys,
        } | own
        runs.append(_Run(project, time, of_all.get("iterations", 50), of_all.get("status", "ready"), facts))
    result = _insert(session, owner, runs, of_all.get("log_files"))
    for commit in dict.fromkeys(run.columns["commit"] for run in runs):
        settle_places(session, owner, keys["config_key"], commit)
    if judged:
        judge(session, project, keys["stack_key"])
    return result


def run_columns(project: str, fields: Mapping[str, Value | EllipsisType], step_time_ms: float) -> dict[str, Any]:
    """Return the columns of a `ci` run of a stack, without its series, for `insert_runs`."""
    stated = _contract(fields)
    keys = {"stack_key": stack_key(project, stated), "config_key": config_key(project, stated)}
    columns = _stated() | _result(step_times(step_time_ms, 60)) | _listed(stated) | keys | {"purpose": "ci"}
    row = run_row(**columns)
    return row.model_dump(exclude={"id", "project_id", "content_key"}) | row.result.model_dump(exclude={"run_id"})


def judge(session: Session, project: str, stack: str) -> None:
    """Judge the whole stack again, in this transaction."""
    work_id = stack_queue.request(session, make_project(session, project).id or 0, stack, judge_from=EVERYTHING)
    judge_and_rank(session, work_id)
    session.expire_all()


def judge_and_rank(session: Session, work_id: int) -> None:
    """Do the same as `judging.judge_stack`, in this transaction."""
    settings = get_settings()
    if claim := stack_queue.claim(session, work_id, settings):
        judging._write(session, claim, judging._judge(session, judging.read_stack(session, claim), settings), settings)
        stack_queue.finish(session, claim)
        rank.keep(session, rank.rank(session, claim.project_id, claim.stack_key))


def make_leaderboard(session: Session, project: str = "moe-lab") -> dict[str, str]:
    """Stacks for every reading of a board, ranked by the real judge: name -> stack key.

    `tie`: deepep and hybridep lead, with a quarantined run and a short one. `leader`: hybridep leads in fp8 at EP 64
    with more memory; deepep was requested and did not run. `only`: two dispatchers could not be imported.
    `directional`: short runs with forced balance. `other`: the leader of another machine and model.
    """
    natural: dict[str, Value | EllipsisType] = {"force_balance": False, "routing_mode": "dropless", "data_mode": "real"}
    fields_of_stack: dict[str, dict[str, Value | EllipsisType]] = {
        "tie": natural,
        "leader": natural | {"precision": "fp8", "fp8_recipe": "mxfp8", "ep": 64, "gpus": 64, "dp": 64},
        "only": natural | {"container": "nvcr.io/nvidia/nemo:26.02"},
        "directional": {"container": "nvcr.io/nvidia/nemo:26.04"},
        "other": natural | {"model": "DeepSeek-V3", "gpu": "GB200", "gpus": 256, "ep": 64, "dp": 64, "pp": 4},
    }

    def add(stack: str, dispatcher: str, times: Sequence[float], **columns: Any) -> list[int]:
        fields = fields_of_stack[stack] | {"dispatcher": dispatcher}
        training = {"semantic_class": "training_equivalent"} if stack != "directional" else {}
        facts = {"activity": stated_activity(dispatcher), "evidence_level": "validated"} | training | columns
        started = FIRST_PLACE + timedelta(minutes=len(dispatcher))
        return make_stack(session, times, project=project, fields=fields, judged=False, started=started, **facts)

    add("tie", "alltoall", [400.0, 402.0, 399.0])
    add("tie", "deepep", [340.0, 341.5, 339.5], peak_memory_gib=66.0)
    add("tie", "hybridep", [341.0, 339.0], evidence_level="screen")
    add("tie", "alltoall", [120.0], quarantine="a bad node", quarantined_by="mara", name="broken-node")
    add("tie", "allgather", [510.0], window_length=4, short=True, evidence_level="smoke")
    add("leader", "alltoall", [300.0, 301.0, 299.5])
    add("leader", "hybridep", [250.0, 251.0, 249.0], peak_memory_gib=68.8)
    add("leader", "deepep", [270.0], activity=stated_activity("deepep", None))
    add("only", "alltoall", [31_310.0, 31_290.0])
    for dispatcher in ("deepep", "hybridep"):
        failed: dict[str, Any] = {
            "status": "failed",
            "outcome": "failed",
            "activity": stated_activity(dispatcher, None),
        }
        failed |= {"evidence_level": "", "definition_version": DEFINITION_VERSION}
        for run_id in add("only", dispatcher, [1.0], **failed):
            add_availability(session, run_id, dispatcher)
    for dispatcher, time in (("alltoall", 41_250.0), ("deepep", 31_200.0)):
        add("directional", dispatcher, [time], window_length=6, short=True, evidence_level="smoke")
    for dispatcher, time in (("alltoall", 9_000.0), ("hybridep", 7_400.0)):
        add("other", dispatcher, [time, time * 1.002])
    keys = {name: stack_key(project, _contract(fields)) for name, fields in fields_of_stack.items()}
    for key in keys.values():
        judge(session, project, key)
    settle_standings(session)
    return keys


def settle_standings(session: Session) -> None:
    """Rank what the service's sweep would rank, until nothing is left."""
    while work_ids := request_next_rankings(session):
        for work_id in work_ids:
            judge_and_rank(session, work_id)
    session.expire_all()


def stated_activity(requested: str, active: str | None = "as requested") -> dict[str, Any]:
    """Return the activity of a run that requested a dispatcher; `active` None: its log does not show that it ran."""
    ran = requested if active == "as requested" else active
    sides = {"requested": requested, "active": ran}
    stated = {side: None if name is None else asdict(Stated(name, "arguments", "")) for side, name in sides.items()}
    return {"dispatcher": stated | {"agrees": None if ran is None else ran == requested}}


def add_availability(session: Session, run_id: int, dispatcher: str, *, available: bool = False) -> None:
    """The run's log shows that the container has the dispatcher's package, or that it has not."""
    run = session.get_one(RunRow, run_id)
    text = f"{dispatcher} buffers were made" if available else f"ModuleNotFoundError: {dispatcher} is not installed"
    container = str((run.result.contract.get("container") or {}).get("value") or "")
    session.add(
        AvailabilityRow(
            run_id=run_id, dispatcher=dispatcher, project_id=run.project_id, container=container, available=available,
            evidence=[{"file": 0, "line": 12, "text": text}],
        )
    )  # fmt: skip
    session.flush()


def _contract(fields: Mapping[str, Value | Stated | EllipsisType]) -> dict[str, Stated]:
    stated = {
        name: Stated(value, source, _detail(value, source, detail))
        for name, (value, source, detail) in CONTRACT.items()
    }
    stated |= {
        name: value if isinstance(value, Stated) else Stated(value, "metadata")
        for name, value in fields.items()
        if not isinstance(value, EllipsisType)
    }
    return {name: value for name, value in stated.items() if fields.get(name) is not ...}


def _listed(stated: Mapping[str, Stated]) -> dict[str, Any]:
    """The columns that repeat fields of the contract."""
    value = {name: item.value for name, item in stated.items()}
    return {
        "contract": {name: asdict(item) for name, item in stated.items()},
        "shape": ",".join(shape_of(stated)),
        "model": value.get("model"),
        "gpu": value.get("gpu"),
        "gpus": value.get("gpus"),
        "dispatcher": value.get("dispatcher"),
    }


def step_times(median_ms: float, n: int) -> FloatArray:
    """A slow start, 1 % noise, and a spike every fifteen iterations."""
    rng = np.random.default_rng(7)
    times = median_ms * (1 + rng.normal(0, 0.01, n))
    times[:WARM_UP] = median_ms * np.array([19.0, 2.1, 1.4, 1.1])[: min(n, WARM_UP)]
    times[15::15] *= 1.27
    return np.round(times, 1)


def megatron_log(times: FloatArray) -> str:
    """A log in Megatron-LM's format; iteration k is on line FIRST_LINE + k."""
    head = ["using world size: 16, data-parallel size: 16", "-" * 24 + " arguments " + "-" * 24]
    head += [f"  {argument + ' ':.<48} {value}" for argument, value in _arguments()]
    head += ["-" * 20 + " end of arguments " + "-" * 21]
    head += [f"> rank 0: loading shard {k} <b>of</b> 8" for k in range(FIRST_LINE - len(head))]
    lines = [
        f" [2026-11-18 04:{k // 60:02d}:{k % 60:02d}.000000] iteration {k + 1:8d}/{len(times):8d} | consumed samples: "
        f"{(k + 1) * GLOBAL_BATCH:12d} | elapsed time per iteration (ms): {time:.1f} | throughput per GPU "
        f"(TFLOP/s/GPU): {_tflops(time):.1f} | learning rate: 1.000000E-05 | global batch size: {GLOBAL_BATCH:5d} | "
        f"lm loss: {_losses(len(times))[k]:.6E} | loss scale: 1.0 | grad norm: 1.250 | number of skipped iterations:   "
        f"0 | number of nan iterations:   0 |"
        for k, time in enumerate(times)
    ]
    return "\n".join([*head, *lines, "", ""])


@cache
def _arguments() -> list[tuple[str, object]]:
    return sorted((detail, value) for value, source, detail in CONTRACT.values() if source == "arguments")


def _detail(value: object, source: str, detail: str) -> str:
    """Return the source of a value as the parser states it: the arguments begin on line 3 of the log."""
    return f"line {_arguments().index((detail, value)) + 3}: {detail} = {value}" if source == "arguments" else detail


@cache
def _stated_contract() -> dict[str, Any]:
    return {
        name: {"value": value, "source": source, "detail": _detail(value, source, detail)}
        for name, (value, source, detail) in CONTRACT.items()
    }


def _stated() -> dict[str, Any]:
    return {
        "name": "qwen3-30b-overlap-off",
        "purpose": "experiment",
        "branch": "main",
        "commit": "067f987df03b8355b03192d88d70f1709fedf51a",
        "tags": ["overlap"],
        "metadata_stated": {"name": "qwen3-30b-overlap-off", "purpose": "experiment"},
        "status": "ready",
    }


def _outcome(status: str) -> dict[str, Any]:
    if status == "failed":
        return {
            "status": status,
            "attempts": 1,
            "error": "No iteration line was read. The log ends in: ModuleNotFoundError: No module named 'deep_ep'.",
            "outcome": "failed",
            "health": {"outcome": "failed", "evidence": "ModuleNotFoundError: No module named 'deep_ep'"},
        }
    return {"status": status, "attempts": int(status != "received")}


def _result(times: FloatArray) -> dict[str, Any]:
    steady = _steady(times)
    metrics = _metrics(times, steady)
    return {
        "attempts": 1,
        "trainer": "megatron-lm",
        "contract": _stated_contract(),
        "unknown": ["cluster", "pp_layout", "attention"],
        "warnings": ["gpus_per_node: the metadata say 8, the log shows 16 ranks on one host. The metadata win."],
        "stack_key": hashlib.sha256(b"stack").hexdigest()[:16],
        "config_key": hashlib.sha256(b"config").hexdigest()[:16],
        "steady_state": asdict(steady),
        "metrics": {name: asdict(metric) for name, metric in metrics.items()},
        "health": {
            "outcome": "completed",
            "evidence": f"The last planned iteration, {len(times)}, was printed.",
            "evidence_line": None,
            "iterations": len(times),
            "last_iteration": len(times),
            "total_iterations": len(times),
            "restarts": 0,
            "loss_finite": True,
            "first_loss": 12.1,
            "last_loss": float(_losses(len(times))[-1]),
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "last_grad_norm": 1.25,
            "largest_grad_norm": 1.25,
            "peak_allocated_gib": 61.4,
            "peak_reserved_gib": 70.2,
            "alloc_retries": None,
        },
        "evidence_level": "screen",
        "semantic_class": "benchmark_only",
        "definition_version": DEFINITION_VERSION,
        "definitions": dict(DEFINITIONS),
        "outcome": "completed",
        "log_step_time": steady.log_step_time,
        "step_time_se": steady.se,
        "window_length": steady.n,
        "is_steady": steady.is_steady,
        "short": steady.short,
        "model": "Qwen3-30B-A3B",
        "gpu": "H100",
        "gpus": GPUS,
        "dispatcher": "alltoall",
    } | {name: metric.value for name, metric in metrics.items()}


def _steady(times: FloatArray) -> SteadyState:
    window = times[WARM_UP:]
    median = float(np.median(window))
    return SteadyState(
        first_iteration=WARM_UP + 1,
        last_iteration=len(times),
        n=len(window),
        method="detected",
        is_steady=True,
        reasons=(),
        short=len(window) < 15,
        log_step_time=float(np.log(median)),
        se=0.003,
        step_time_ms=median,
        ci_low_ms=median * 0.987,
        ci_high_ms=median * 1.0132,
        mean_step_time_ms=float(window.mean()),
        spike_threshold_ms=median * 1.05,
        spike_share=float(np.mean(window > median * 1.05)),
    )


def _metrics(times: FloatArray, steady: SteadyState) -> dict[str, Metric]:
    def per_step(scale: float) -> Metric:
        return Metric(scale / steady.step_time_ms, scale / steady.ci_high_ms, scale / steady.ci_low_ms, steady.n)

    tokens = GLOBAL_BATCH * SEQUENCE * 1000 / GPUS
    return {
        "step_time_ms": Metric(steady.step_time_ms, steady.ci_low_ms, steady.ci_high_ms, steady.n),
        "tokens_per_s_per_gpu": per_step(tokens),
        "tflops_per_gpu": per_step(tokens * GFLOP_PER_TOKEN / 1000),
        "mfu_pct": per_step(tokens * GFLOP_PER_TOKEN / 1000 / PEAK_TFLOPS * 100),
        "peak_memory_gib": Metric(61.4, 61.4, 61.4, 2, "highest of the ranks that reported"),
    }


def _tflops(times: FloatArray) -> FloatArray:
    return GLOBAL_BATCH * SEQUENCE * GFLOP_PER_TOKEN / GPUS / times


def _losses(n: int) -> FloatArray:
    return 12.1 - 4 * (1 - np.exp(-np.arange(n) / 30))


def _series_rows(run_id: int, times: FloatArray) -> list[dict[str, Any]]:
    n = len(times)
    packed = {
        "step_time_ms": (step_time := _packed(times)),
        "step_time_true_ms": step_time,
        "tokens_per_s_per_gpu": _packed(GLOBAL_BATCH * SEQUENCE * 1000 / GPUS / times),
        "tflops_per_gpu": _packed(np.round(_tflops(times), 1)),
        **_same_series(n),
    }
    return [
        {"run_id": run_id, "metric": name, "unit": unit, "n": n, "blob": packed[name]} for name, unit in UNITS.items()
    ]


@cache
def _same_series(n: int) -> dict[str, bytes]:
    """Return the packed columns that are the same in all runs of `n` iterations."""
    columns = {
        "iteration": np.arange(1, n + 1),
        "lm_loss": _losses(n),
        "learning_rate": np.full(n, 1e-5),
        "global_batch_size": np.full(n, GLOBAL_BATCH),
        "grad_norm": np.full(n, 1.25),
        "skipped_iterations": np.zeros(n),
        "nan_iterations": np.zeros(n),
        "log_line": FIRST_LINE + np.arange(1, n + 1),
    }
    return {name: _packed(values) for name, values in columns.items()}


def _packed(values: FloatArray) -> bytes:
    return readings.pack_series(values.astype(np.float64))


def _store_log(session: Session, log_files: Any, run_id: int, times: FloatArray) -> None:
    text = megatron_log(times).encode()
    stored = log_files.put([text])
    row = RunFileRow(
        run_id=run_id,
        kind="log",
        name="train.log",
        size_bytes=len(text),
        sha256=hashlib.sha256(text).hexdigest(),
    )
    session.add(row)
    session.flush()
    session.add(SegmentRow(file_id=row.id or 0, position=0, size_bytes=len(text), object_key=stored.key))

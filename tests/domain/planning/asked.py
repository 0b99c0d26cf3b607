"""Requests for tests, which state only the values that they are about."""

from app.domain.planning.estimate import Record
from app.domain.planning.plan import Plan, make_plan
from app.domain.planning.records import UsedLayout, records_of
from app.domain.planning.request import PlanRequest, read_request
from app.domain.references.point import published

QWEN_30B = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "seq_len": 4096}
QWEN_235B = {"model": "Qwen3-235B-A22B", "gpu": "GB200", "gpus": 128, "seq_len": 131_072}
DEEPSEEK = {"model": "DeepSeek-V3", "mtp": 1, "gpu": "H100", "gpus": 256, "seq_len": 4096}
EXPERTS_64 = {
    "model": "ours", "num_layers": 32, "num_attention_heads": 32, "num_experts": 64, "gpu": "H100", "gpus": 16,
    "seq_len": 4096,
}  # fmt: skip


def request(*parts: dict[str, object], **fields: object) -> PlanRequest:
    merged: dict[str, object] = {}
    for part in (*parts, fields):
        merged |= part
    return read_request({name: str(value) for name, value in merged.items()})


def plan(*parts: dict[str, object], records: tuple[Record, ...] = (), **fields: object) -> Plan:
    return make_plan(request(*parts, **fields), records)


def published_records(model: str) -> tuple[Record, ...]:
    """Return the published figures of a model as records."""
    return records_of(
        UsedLayout(
            title=point.source,
            href="",
            whose=point.measured_by,
            values=point.contract,
            step_time_s=point.step_time_ms / 1000 if point.step_time_ms else None,
            tokens_per_s_per_gpu=point.tokens_per_s_per_gpu,
            tflops_per_gpu=point.tflops_per_gpu,
            by=point.measured_by,
        )
        for point in published()
        if point.contract["model"] == model
    )


def broken(*parts: dict[str, object], **fields: object) -> set[str]:
    """Constraints that the stated layout breaks."""
    given = plan(*parts, **fields).given
    assert given is not None
    return {violation.constraint.id for violation in given.violations}

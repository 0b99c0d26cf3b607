"""Runs with something to advise on, as a worker would have left them."""

from types import EllipsisType
from typing import Any

from sqlmodel import Session

from app.domain.run import Stated, Value
from tests.builders import make_stack

PROJECT = "advised"
LAUNCH = (
    "python pretrain_gpt.py --tensor-model-parallel-size 1 --expert-model-parallel-size 16 --micro-batch-size 2 "
    "--moe-token-dispatcher-type alltoall --wandb-api-key=0123456789abcdef"
)
PROFILED = {"exposed_comm_frac": 0.3, "gpu_idle_frac": 0.05}
FIELDS: dict[str, Value | Stated | EllipsisType] = {"pp": 1, "vpp": None}


def make_advised(
    session: Session,
    *,
    fields: dict[str, Value | Stated | EllipsisType] | None = None,
    ms: float = 31_310.0,
    project: str = PROJECT,
    **columns: Any,
) -> int:
    """One judged run of the overlap case, with its launch arguments and no profile."""
    stated: dict[str, Any] = {"launch_args": LAUNCH} | columns.pop("metadata_stated", {})
    run_ids = make_stack(
        session, [ms], project=project, fields=FIELDS | (fields or {}), metadata_stated=stated, **columns
    )
    return run_ids[0]

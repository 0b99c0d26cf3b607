"""What is to be planned: a model, the GPUs, the work of a step, and what is fixed already."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import read_value
from app.domain.planning.model import SHAPE, PlannedModel, planned_model
from app.domain.run import Value

WORK = ("model", "gpu", "gpus", "seq_len", "gbs", "mbs", "precision")
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp")
SPLIT = ("pp_layout", "pp_account", "mtp")
INPUTS = (*WORK, *DEGREES, *SPLIT, *SHAPE)
"""Contract fields that a plan takes, in the order in which they are asked for."""
REQUIRED = ("gpu", "gpus", "seq_len")
LARGEST: Mapping[str, int] = {
    "gpus": 2**17,
    "seq_len": 2**27,
    "gbs": 10**8,
    "mbs": 10**5,
    "num_layers": 1000,
    "num_attention_heads": 4096,
    "num_query_groups": 4096,
    "num_experts": 8192,
    "mtp": 100,
}
"""Beyond what is built today, and small enough that every layout can be tried in a moment."""
LEAST: Mapping[str, int] = {"count": 1, "whole": 0}
"""By the kind of the field."""


class InvalidPlan(ValueError):  # noqa: N818  # named for what it is said of
    """`fields`: what is wrong or missing, by the name of the field."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {why}" for name, why in fields.items()))
        self.fields = dict(fields)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """`gbs` None: not decided, so nothing that depends on it is checked. `fixed`: degrees that stay as they are; a
    `vpp` of 1 means no virtual pipeline. `account` None: embedding and loss may count as layers or not.
    """

    model: PlannedModel
    gpu: str
    gpus: int
    seq_len: int
    gbs: int | None = None
    mbs: int = 1
    precision: str = "bf16"
    fixed: Mapping[str, int] | None = None
    pp_layout: str | None = None
    account: tuple[str, ...] | None = None

    def fix(self, name: str) -> int | None:
        return (self.fixed or {}).get(name)

    @property
    def is_complete(self) -> bool:
        """True when one layout is stated: its degrees, those of the experts only where there are any."""
        wanted = ("tp", "pp", "cp", "ep") if self.model.experts else ("tp", "pp", "cp")
        return all(self.fix(name) for name in wanted)


def read_request(stated: Mapping[str, str]) -> PlanRequest:
    """A request from texts by field name, as in an address; blanks say nothing. Raises InvalidPlan."""
    wrong = {name: "is not known to the planner" for name in stated if name not in INPUTS}
    values: dict[str, Value] = {}
    for name in INPUTS:
        text = stated.get(name, "").strip()
        if not text:
            continue
        try:
            value = read_value(name, text)
        except ValueError as error:
            wrong[name] = _within(name) if FIELDS[name].kind in LEAST else str(error)
            continue
        if isinstance(value, int) and value > _largest(name):
            wrong[name] = _within(name)
        values[name] = value
    for name in REQUIRED:
        if values.get(name) is None:
            wrong.setdefault(name, f"is required. {FIELDS[name].meaning}")
    model, missing = planned_model(values)
    if model is None and "model" not in values and not any(name in values for name in SHAPE):
        missing = {"model": "is required: a name, or the layers and heads of a shape of your own"}
    if wrong or missing or model is None:
        raise InvalidPlan(missing | wrong)
    return PlanRequest(
        model=model,
        gpu=str(values["gpu"]),
        gpus=_int(values["gpus"]),
        seq_len=_int(values["seq_len"]),
        gbs=_int(values["gbs"]) if values.get("gbs") else None,
        mbs=_int(values.get("mbs") or 1),
        precision=str(values.get("precision") or "bf16"),
        fixed={name: _int(value) for name in DEGREES if (value := values.get(name))} | _no_vpp(values),
        pp_layout=str(values["pp_layout"]) if values.get("pp_layout") else None,
        account=_words(values["pp_account"]) if "pp_account" in values else None,
    )


def _largest(name: str) -> int:
    return LARGEST.get(name, LARGEST["gpus"])


def _within(name: str) -> str:
    return f"must be a whole number from {LEAST[FIELDS[name].kind]} to {_largest(name):,}"


def _int(value: Value) -> int:
    assert isinstance(value, int)  # noqa: S101  # the registry reads these fields as whole numbers
    return value


def _no_vpp(values: Mapping[str, Value]) -> dict[str, int]:
    """A virtual pipeline that is stated as unset."""
    return {"vpp": 1} if "vpp" in values and values["vpp"] is None else {}


def _words(value: Value) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, tuple) else ()

"""One or several knobs turned in a contract: what the candidate's contract will be, and so its config key.

Values that follow from a turned knob are worked out again; those that cannot be (a value that only the log of a run
shows) stay as they are. What nobody can tell beforehand is left unknown, and a candidate's key with it.
"""

from collections.abc import Mapping, Sequence

from app.domain.contract.derived import derive
from app.domain.contract.fields import FIELDS
from app.domain.contract.unused_knobs import FLEX_BACKENDS
from app.domain.contract.values import is_stated, read_value, same_value
from app.domain.experiments.values import KnobChange
from app.domain.matching.differences import axis_of
from app.domain.run import Stated, Value
from app.errors import FieldError, InvalidChange

Contract = Mapping[str, Stated]
_INPUTS = {
    "dispatcher": ("dispatcher_type", "flex_backend"),
    "routing_mode": ("force_balance", "capacity", "pad_to_capacity", "rank_capacity"),
    "dp": ("gpus", "tp", "pp", "cp"),
    "edp": ("gpus", "pp", "ep", "etp"),
    "ga": ("gbs", "mbs", "dp", "tp", "pp", "cp"),
}
"""Fields that follow from others, also where a log or a person stated them."""
_STATED_UNDER = "(stated: "
"""How the detail of a knob that is not in use keeps what was stated of it (`contract/unused_knobs.py`)."""
_OF_THE_TASK = ("gpu", "gpus", "gpus_per_node")
MOST_KNOBS = 20


def read_knobs(stated: Mapping[str, object], contract: Contract) -> tuple[KnobChange, ...]:
    """What a person wants to turn, by field. What is so already is left out.

    Raises InvalidChange naming each field that is none, that takes no such value, or that would be another task.
    """
    errors, found = [], []
    if len(stated) > MOST_KNOBS:
        errors.append(FieldError("knobs", f"must be at most {MOST_KNOBS}"))
    for name, raw in list(stated.items())[:MOST_KNOBS]:
        path = f"knobs.{name[:100]}"
        if name not in FIELDS:
            errors.append(FieldError(path, "is no field of the contract; the glossary lists them"))
            continue
        if axis_of(name) == "workload" or name in _OF_THE_TASK:
            errors.append(FieldError(path, "is part of the task; with another one nothing can be compared"))
            continue
        try:
            value = read_value(name, raw)
        except ValueError as problem:
            errors.append(FieldError(path, str(problem)))
            continue
        if not is_stated(name, value):
            errors.append(FieldError(path, "must have a value"))
        else:
            found.append(knob_change(name, value, contract))
    changed = tuple(one for one in found if not one.known or not same_value(one.field, one.before, one.after))
    if not errors and not changed:
        errors.append(FieldError("knobs", "must change something: the run has these values already"))
    if errors:
        names = ", ".join(error.field for error in errors)
        raise InvalidChange(f"Correct {names}. Nothing was planned.", tuple(errors))
    return changed


def knob_change(name: str, value: Value, contract: Contract) -> KnobChange:
    now = contract.get(name)
    return KnobChange(name, None if now is None else now.value, value, known=now is not None)


def turned(contract: Contract, knobs: Sequence[KnobChange]) -> dict[str, Stated]:
    """The contract of a run like this one, with the knobs turned and all that follows from them."""
    wanted = _with_dispatcher({one.field: Stated(one.after, "metadata", "the plan") for one in knobs})
    base = _base(contract, wanted)
    before, after = derive(_base(contract, {})), derive(base | wanted)
    found: dict[str, Stated] = {}
    for name in FIELDS:
        is_left_alone = name not in wanted and _is_same(name, before.get(name), after.get(name))
        value = contract.get(name) if is_left_alone else after.get(name)
        if value is not None:
            found[name] = value
    return found


def _is_same(name: str, a: Stated | None, b: Stated | None) -> bool:
    return a is b if a is None or b is None else same_value(name, a.value, b.value)


def _base(contract: Contract, wanted: Contract) -> dict[str, Stated]:
    """What does not follow from other fields; of knobs that were not in use what was stated of them."""
    base: dict[str, Stated] = {}
    for name, stated in contract.items():
        if name in wanted or any(one in wanted for one in _INPUTS.get(name, ())):
            continue
        if stated.source != "derived":
            base[name] = stated
        elif wanted and _STATED_UNDER in stated.detail and (under := _stated_under(name, stated)) is not None:
            base[name] = under
    return _not_worked_out_again(contract, wanted) | base


def _not_worked_out_again(contract: Contract, wanted: Contract) -> dict[str, Stated]:
    """Derived while the log was read (the precision from `bf16 = True`), which nothing but that log derives."""
    again = derive({name: stated for name, stated in contract.items() if stated.source != "derived"})
    return {
        name: stated
        for name, stated in contract.items()
        if stated.source == "derived" and stated.value is not None and name not in again and name not in wanted
        and not any(one in wanted for one in _INPUTS.get(name, ()))
    }  # fmt: skip


def _stated_under(name: str, stated: Stated) -> Stated | None:
    try:
        value = read_value(name, stated.detail.rpartition(_STATED_UNDER)[2].rstrip(")"))
    except ValueError:
        return None
    return Stated(value, "arguments", stated.detail)


def _with_dispatcher(wanted: dict[str, Stated]) -> dict[str, Stated]:
    """The name of a dispatcher and its two flags say the same."""
    named = wanted.get("dispatcher")
    if named is None:
        return wanted
    is_flex = named.value in FLEX_BACKENDS
    flags = {
        "dispatcher_type": Stated("flex" if is_flex else named.value, "metadata", named.detail),
        "flex_backend": Stated(named.value if is_flex else None, "metadata", named.detail),
    }
    return flags | wanted

"""What differs, as the page shows it: by axis, each value with who said so, what is unknown with how to supply it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.compare.comparison import Comparison
from app.domain.comparison.same import SameField
from app.domain.contract.fields import FIELDS
from app.domain.contract.fields.environment import PREFIX
from app.domain.matching import AXES, Axis, Difference, axis_of
from app.domain.numbers import contract_value, short_commit
from app.domain.run import Stated

_BY_HAND = "stated by "
"""How the detail of a value begins that a person stated after the upload."""


@dataclass(frozen=True, slots=True)
class SideValue:
    """`text` None: nobody states it. `said`: who does; `address`: where it stands, or can be supplied."""

    text: str | None
    said: str
    detail: str
    address: str


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """`follows`: the field that this one only follows. `part`: of the stack, a knob, or beside both."""

    field: str
    meaning: str
    unit: str
    part: str
    follows: str
    a: SideValue
    b: SideValue


@dataclass(frozen=True, slots=True)
class AxisGroup:
    """`folded`: variables of the environment that are known on one side only, which stand further down."""

    axis: Axis
    rows: tuple[DifferenceRow, ...]
    folded: int


@dataclass(frozen=True, slots=True)
class Missing:
    """A field that holds a comparison up, and the ways to state it. `both`: neither side does."""

    field: str
    meaning: str
    meta: str
    flag: str
    bridge: str
    both: bool


_PARTS = {"stack": "must be equal", "config": "a knob", "info": "beside"}


def axis_groups(comparison: Comparison) -> tuple[AxisGroup, ...]:
    found = comparison.sides.comparability.by_axis()
    return tuple(_group(comparison, axis, found[axis]) for axis in AXES if axis in found)


def missing_fields(comparison: Comparison) -> tuple[Missing, ...]:
    """Members that somebody left unknown, those of the stack first."""
    contracts = [run.record.contract for run in (comparison.newest_a, comparison.newest_b)]
    return tuple(
        Missing(
            field=name,
            meaning=FIELDS[name].meaning if name in FIELDS else "Environment variables that change results.",
            meta=f"meta.{name}",
            flag=FIELDS[name].megatron_lm if name in FIELDS else "",
            bridge=FIELDS[name].bridge if name in FIELDS else "env_vars",
            both=not any(name in contract for contract in contracts),
        )
        for name in comparison.sides.comparability.unknown
    )


def environment_rows(comparison: Comparison) -> tuple[DifferenceRow, ...]:
    """Variables, packages and driver that are known on a side and not equal on both."""
    a, b = comparison.newest_a.record.contract, comparison.newest_b.record.contract
    return tuple(
        _row(comparison, Difference(name, FIELDS[name].role, axis_of(name), a.get(name), b.get(name)))
        for name in _environment()
        if (name in a or name in b) and not _equal(a.get(name), b.get(name))
    )


def environment_same(comparison: Comparison) -> int:
    """How many of them are equal on both sides."""
    a, b = comparison.newest_a.record.contract, comparison.newest_b.record.contract
    return sum(name in a and name in b and _equal(a[name], b[name]) for name in _environment())


def same_rows(same: Iterable[SameField]) -> tuple[tuple[str, str, str], ...]:
    """Field, unit and the value that both sides have."""
    return tuple((one.field, FIELDS[one.field].unit, contract_value(one.a.value)) for one in same)


def _environment() -> Sequence[str]:
    """The container itself is a difference of its own."""
    software = [name for name, field in FIELDS.items() if field.group == "Software" and field.role != "stack"]
    return [*software, "driver", *(name for name in FIELDS if name.startswith(PREFIX))]


def _equal(a: Stated | None, b: Stated | None) -> bool:
    return a is not None and b is not None and a.value == b.value


def _group(comparison: Comparison, axis: Axis, found: Sequence[Difference]) -> AxisGroup:
    folded = [one for one in found if one.field.startswith(PREFIX) and not one.is_certain]
    shown = [one for one in found if one not in folded]
    rows = tuple(_row(comparison, one) for one in shown)
    return AxisGroup(axis, rows, len(folded))


def _row(comparison: Comparison, one: Difference) -> DifferenceRow:
    name = one.field
    field = FIELDS.get(name)
    return DifferenceRow(
        field=name,
        meaning=field.meaning if field else {"commit": "The code that ran."}.get(name, "Whose runs they are."),
        unit=field.unit if field else "",
        part=_PARTS[one.role],
        follows=one.follows,
        a=_side(name, one.a, comparison.newest_a.id),
        b=_side(name, one.b, comparison.newest_b.id),
    )


def _side(name: str, stated: Stated | None, run: int) -> SideValue:
    if stated is None:
        return SideValue(None, "", "", f"/runs/{run}#a-field.{name}")
    text = contract_value(stated.value)
    said = stated.detail if stated.detail.startswith(_BY_HAND) else stated.source
    anchor = f"#contract-{name}" if name in FIELDS else ""
    return SideValue(
        short_commit(text) if name.endswith("commit") else text, said, stated.detail, f"/runs/{run}{anchor}"
    )

"""Published figures as pages show them: a row of the list, the parts of one, and the claim check beside our figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.contract.fields import FIELDS
from app.domain.numbers import step_time
from app.domain.reference_points import FIGURES, ReferencePoint
from app.domain.run import Value
from app.references.nearest import Held
from app.storage.references import Reference
from app.web.numbers import contract_value, grouped, percent

LABELS = {"tokens_per_s_per_gpu": "tokens/s/GPU", "tflops_per_gpu": "TFLOP/s/GPU", "step_time_ms": "step time"}
_WORK = (("seq_len", "seq"), ("gbs", "GBS"), ("mbs", "MBS"))
_LAYOUT = (("tp", "TP"), ("pp", "PP"), ("vpp", "VPP"), ("cp", "CP"), ("ep", "EP"), ("etp", "ETP"))


@dataclass(frozen=True, slots=True)
class PointRow:
    """One row of the list. Empty text: the publisher does not say it. `figures`: texts by name."""

    id: str
    title: str
    hardware: str
    precision: str
    work: str
    layout: str
    routing: str
    dispatcher: str
    figures: Mapping[str, str]
    rounded: bool
    measured_by: str
    source: str
    url: str
    date: str
    own: bool
    project: str


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One contract field of a point, as its page shows it."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure, ours and theirs; empty text: unknown. `more`: how far apart they are, "" where not comparable."""

    label: str
    ours: str
    theirs: str
    more: str


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    field: str
    ours: str
    theirs: str
    known: bool


def point_row(one: Reference) -> PointRow:
    point, contract = one.point, one.point.contract
    return PointRow(
        id=one.id,
        title=point.family.name,
        hardware=f"{contract['gpus']} × {contract['gpu']}",
        precision=precision_of(point),
        work=_joined(contract, _WORK),
        layout=_joined(contract, _LAYOUT),
        routing=_words(contract.get("routing_mode")),
        dispatcher=_words(contract.get("dispatcher")),
        figures=figure_texts(point.figures),
        rounded=point.rounded,
        measured_by=point.measured_by,
        source=point.source,
        url=point.url,
        date=point.date,
        own=one.entered is not None,
        project=one.entered.project if one.entered else "",
    )


def title_of(point: ReferencePoint) -> str:
    """`Qwen3-30B-A3B · 16 × H100 · bf16`."""
    return f"{point.family.name} · {point.contract['gpus']} × {point.contract['gpu']} · {precision_of(point)}"


def precision_of(point: ReferencePoint) -> str:
    return _words(point.contract["precision"])


def figures_told(point: ReferencePoint) -> str:
    """`about 370 TFLOP/s/GPU`, `13,011 tokens/s/GPU, 299.4 TFLOP/s/GPU, 20.15 s a step`."""
    texts = figure_texts(point.figures)
    parts = [f"{texts[name]} {'a step' if name == 'step_time_ms' else LABELS[name]}" for name in FIGURES if texts[name]]
    return f"{'about ' if point.rounded else ''}{', '.join(parts)}"


def figure_texts(figures: Mapping[str, float | None]) -> dict[str, str]:
    return {name: _figure(name, figures[name]) for name in FIGURES}


def field_rows(point: ReferencePoint) -> tuple[FieldRow, ...]:
    """All that is known, in the order of the registry."""
    known = [name for name in FIELDS if name in point.contract]
    return tuple(FieldRow(name, _shown(name, point.contract[name]), FIELDS[name].meaning) for name in known)


def figure_rows(held: Held) -> tuple[FigureRow, ...]:
    """Figures that are known on a side."""
    if held.nearest is None:
        return ()
    ours = {name: getattr(held.ours.figures, name) for name in FIGURES}
    mine, theirs = figure_texts(ours), figure_texts(held.nearest.point.figures)
    more = {name: _more(name, pct) for name, pct in held.nearest.more_pct.items()}
    rows = (FigureRow(LABELS[name], mine[name], theirs[name], more.get(name, "")) for name in FIGURES)
    return tuple(row for row in rows if row.ours or row.theirs)


def difference_rows(held: Held) -> tuple[DifferenceRow, ...]:
    """What is known to differ first, then what a side leaves open."""
    found = held.nearest.differences if held.nearest else ()
    rows = [
        DifferenceRow(
            one.field,
            _shown(one.field, one.ours) if one.ours_known else "",
            _shown(one.field, one.theirs) if one.theirs_known or one.theirs is not None else "",
            one.is_known,
        )
        for one in found
    ]
    return tuple(sorted(rows, key=lambda row: not row.known))


def _more(name: str, pct: float) -> str:
    if name == "step_time_ms":
        return f"{percent(abs(pct))} {'slower' if pct >= 0 else 'faster'}"
    return f"{percent(abs(pct))} {'more' if pct >= 0 else 'less'}"


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name == "step_time_ms":
        return step_time(value)
    return grouped(value, 0 if value >= 1000 or value == int(value) else 1)


def _joined(contract: Mapping[str, Value], names: Sequence[tuple[str, str]]) -> str:
    return " · ".join(f"{label}\u00a0{_shown(name, contract[name])}" for name, label in names if name in contract)


def _shown(name: str, value: Value) -> str:
    if FIELDS[name].kind == "count" and isinstance(value, int):
        return grouped(value)
    return contract_value(value)


def _words(value: Value) -> str:
    return "" if value is None else contract_value(value).replace("-", " ") if isinstance(value, str) else str(value)

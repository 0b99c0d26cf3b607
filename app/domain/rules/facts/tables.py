"""Reads the tables of facts beside it: `derived.yaml`, `measured.yaml` and `asked.yaml`."""

from pathlib import Path

import yaml

from app.domain.rules.facts.fact import Fact

FOLDER = Path(__file__).resolve().parent
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Both are safe; the one in C is ten times as fast."""

_SUPPLY = {
    "log": "A log that reaches iterations holds it; or state `{name}` in the metadata.",
    "profile": "Measure it with a profile of steady steps and state `{name}` in the metadata.",
    "stated": "State `{name}` in the metadata.",
    "asked": "State `{name}` in the metadata.",
    "software": "State `{name}` in the metadata.",
    "compared": "Compare the run with another one.",
    "setting": "A setting of this service.",
}
_GROUPS = {"log": "measured", "profile": "measured", "stated": "measured"}


def read_tables() -> tuple[Fact, ...]:
    """Every fact of the tables, in their order."""
    return tuple(
        _fact(section, name, row)
        for path in sorted(FOLDER.glob("*.yaml"))
        for section, rows in yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER).items()  # noqa: S506
        for name, row in rows.items()
    )


def _fact(section: str, name: str, row: dict[str, object]) -> Fact:
    unknown = set(row) - {"type", "meaning", "unit", "from", "argument", "default", "supply"}
    if unknown or not {"type", "meaning"} <= set(row):
        raise ValueError(f"{name}: a fact has type and meaning, and no {', '.join(sorted(unknown))}")
    supply = row.get("supply") or _SUPPLY.get(section, "")
    return Fact(
        name=name,
        type=row["type"],  # type: ignore[arg-type]
        group=_GROUPS.get(section, section),  # type: ignore[arg-type]
        meaning=str(row["meaning"]),
        unit=str(row.get("unit", "")),
        supply=str(supply).format(name=name),
        argument=tuple(row.get("argument", ())),  # type: ignore[arg-type]
        inputs=tuple(row.get("from", ())),  # type: ignore[arg-type]
        default=row.get("default"),  # type: ignore[arg-type]
        section=section,
    )

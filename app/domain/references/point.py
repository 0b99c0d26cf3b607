"""A published figure: what was measured, on what, by whom, and its source. It is not a run and is never ranked."""

import hashlib
import json
import math
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import is_stated, read_value
from app.domain.numbers import grouped, step_time
from app.domain.performance.flops import peak_flops
from app.domain.ranking.runs import Family, family_of
from app.domain.run import Value
from app.domain.text import InvalidFields

Kind = Literal["release_table", "verification_card", "model_zoo", "guide", "founding_document", "own"]
FIGURES = ("tokens_per_s_per_gpu", "tflops_per_gpu", "step_time_ms")
LABEL = "another lab's measurement"
FP8_OF_SOME_KIND = "fp8"
"""A precision that publishers state without its recipe."""

_TEXTS = ("measured_by", "source", "url", "window", "note")
_FLAGS = ("rounded", "untuned")
_LONGEST = 500
_LARGEST = 1e9

_family = lru_cache(maxsize=1000)(family_of)
"""Pages and suggestions ask for the families of all points."""


@dataclass(frozen=True, slots=True)
class ReferencePoint:
    """A published figure.

    `contract`: contract fields by canonical name, as far as the publisher states them. `date`: ISO 8601, of the
    publication: a day, or a month if only that is known. `window`: the iterations that the figure is a mean of, "" when
    not stated. `rounded`: printed as an approximate number. `untuned`: the publisher says that the job is not tuned for
    speed.
    """

    kind: Kind
    measured_by: str
    contract: Mapping[str, Value]
    source: str
    url: str
    date: str
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    step_time_ms: float | None = None
    window: str = ""
    note: str = ""
    rounded: bool = False
    untuned: bool = False

    @property
    def key(self) -> str:
        """Return its address: its title, and eight digits of the hash of all values."""
        parts = [self.kind, self.measured_by, self.source, self.date, self.note, *self.figures.values()]
        text = json.dumps([parts, sorted(self.contract.items())], default=list)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{self.family.slug}-{self.contract['gpus']}x{str(self.contract['gpu']).lower()}-{digest}"

    @property
    def family(self) -> Family:
        return _family(str(self.contract["model"]))

    @property
    def figures(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in FIGURES}

    @property
    def texts(self) -> dict[str, str]:
        """Return the figures as text, `about 370` where rounded; empty where not published."""
        about = "about " if self.rounded else ""
        return {name: about + figure_text(name, value) if value else "" for name, value in self.figures.items()}

    @property
    def rounding_pct(self) -> dict[str, float]:
        """Return how much the rounding of each published figure may hide, in percent: half a unit of its last digit.

        Zeros at the end of an approximate number are no digits, but its second digit always is one.
        """
        widths = {}
        for name, value in self.figures.items():
            if value:
                number = Decimal(repr(value)).normalize()
                last = int(number.as_tuple().exponent)
                last = min(last, number.adjusted() - 1) if self.rounded else min(last, 0)
                widths[name] = 100 * 0.5 * 10.0**last / value
        return widths

    @property
    def mfu_pct(self) -> float | None:
        """Return the TFLOP/s in percent of the GPU's dense peak at the precision; None where one is unknown."""
        peak = peak_flops(str(self.contract["gpu"]), str(self.contract["precision"]))
        if peak is None or not self.tflops_per_gpu or self.tflops_per_gpu > peak.tflops:
            return None
        return 100 * self.tflops_per_gpu / peak.tflops

    @property
    def implied_step_ms(self) -> float | None:
        """Return the step time, or what the tokens/s of the stated batch imply; None without either."""
        if self.step_time_ms or not self.tokens_per_s_per_gpu:
            return self.step_time_ms
        counts = [self.contract.get(name) for name in ("gbs", "seq_len", "gpus")]
        gbs, seq_len, gpus = (count if isinstance(count, int) else 0 for count in counts)
        return 1000 * gbs * seq_len / (self.tokens_per_s_per_gpu * gpus) if gbs and seq_len and gpus else None

    @property
    def gflops_per_token(self) -> float | None:
        if self.rounded or not self.tokens_per_s_per_gpu or not self.tflops_per_gpu:
            return None
        return 1000 * self.tflops_per_gpu / self.tokens_per_s_per_gpu

    @property
    def label(self) -> str:
        """Return the label shown with the figure everywhere."""
        return f"{LABEL}, entered by hand" if self.kind == "own" else LABEL


def figure_text(name: str, value: float | None) -> str:
    """Format a figure, ours or a published one: `13,011`, `276.0`, `370`, `20.15 s`; empty without a value."""
    if value is None:
        return ""
    if name == "step_time_ms":
        return step_time(value)
    return grouped(value, 0 if value >= 1000 or value == int(value) else 1)


class InvalidReference(InvalidFields):
    """The fields of a reference point are invalid."""


def read_reference(stated: Mapping[str, object]) -> ReferencePoint:
    """Build a point from plain values by name: contract fields, figures, and who, where and when.

    Required: model, gpu, gpus, precision, at least one figure, `measured_by`, `source`, `date`. Raises InvalidReference
    with a sentence for each wrong field.
    """
    wrong: dict[str, str] = {}
    contract = _contract(stated, wrong)
    figures = {name: _figure(name, stated, wrong) for name in FIGURES}
    texts = {name: _text(name, stated, wrong) for name in _TEXTS}
    kind, when = _kind(stated, wrong), _date(stated, wrong)
    flags = {name: stated.get(name, False) for name in _FLAGS}
    wrong |= {name: "must be true or false" for name, value in flags.items() if not isinstance(value, bool)}
    for name in stated:
        if name not in FIELDS and name not in (*FIGURES, *_TEXTS, *_FLAGS, "kind", "date"):
            wrong[name] = "is not known"
    for name in ("model", "gpu", "gpus", "precision"):
        if contract.get(name) is None:
            wrong.setdefault(name, "is required")
    for name in ("measured_by", "source"):
        if not texts[name]:
            wrong.setdefault(name, "is required")
    if not any(figures.values()) and not wrong.keys() & set(FIGURES):
        wrong.setdefault(FIGURES[0], "at least one figure is required")
    if wrong:
        raise InvalidReference(wrong)
    return ReferencePoint(
        kind=kind,
        measured_by=texts["measured_by"],
        contract=contract,
        source=texts["source"],
        url=texts["url"],
        date=when,
        window=texts["window"],
        note=texts["note"],
        rounded=bool(flags["rounded"]),
        untuned=bool(flags["untuned"]),
        **figures,
    )


def _contract(stated: Mapping[str, object], wrong: dict[str, str]) -> dict[str, Value]:
    contract: dict[str, Value] = {}
    for name, raw in stated.items():
        if name not in FIELDS:
            continue
        try:
            some_fp8 = name == "precision" and isinstance(raw, str) and raw.strip().lower() == FP8_OF_SOME_KIND
            value = FP8_OF_SOME_KIND if some_fp8 else read_value(name, raw)
        except ValueError as error:
            wrong[name] = str(error)
            continue
        if is_stated(name, value):
            contract[name] = value
    return contract


def _figure(name: str, stated: Mapping[str, object], wrong: dict[str, str]) -> float | None:
    raw = stated.get(name)
    if raw is None:
        return None
    if isinstance(raw, int | float) and not isinstance(raw, bool) and math.isfinite(raw) and 0 < raw < _LARGEST:
        return float(raw)
    wrong[name] = "must be a number above 0"
    return None


def _text(name: str, stated: Mapping[str, object], wrong: dict[str, str]) -> str:
    raw = stated.get(name, "")
    if not isinstance(raw, str) or len(raw) > _LONGEST:
        wrong[name] = f"must be text of at most {_LONGEST} characters"
        return ""
    text = raw.strip()
    if name == "url" and text and not _is_web_address(text):
        wrong[name] = "must be a URL starting with https:// or http://"
    return text


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("https", "http") and bool(parts.netloc)


def _kind(stated: Mapping[str, object], wrong: dict[str, str]) -> Kind:
    raw = stated.get("kind", "own")
    for kind in get_args(Kind):
        if raw == kind:
            checked: Kind = kind
            return checked
    wrong["kind"] = f"must be one of {', '.join(get_args(Kind))}"
    return "own"


def _date(stated: Mapping[str, object], wrong: dict[str, str]) -> str:
    raw = str(stated.get("date") or "").strip()
    day = f"{raw}-01" if len(raw) == len("2026-08") else raw
    try:
        date.fromisoformat(day)
    except ValueError:
        wrong["date"] = "must be a day or a month, for example 2026-08-15 or 2026-08" if raw else "is required"
    return raw


# --- Reads the tables of published figures: a row per line, columns separated by spaces, `-` for not stated.

_NUMBERS = (*FIGURES, "gpus", "seq_len", "gbs", "mbs", "tp", "pp", "vpp", "cp", "ep", "etp", "mtp")
NOT_STATED = "-"
ABOUT = "~"
_PARTS = ("release", "card", "tag")
"""Columns and values that only name the source in the texts `_WITH_PARTS`."""
_WITH_PARTS = ("source", "url", "container")


def read_rows(
    rows: str,
    columns: str,
    *,
    notes: Mapping[str, str] | None = None,
    untuned: Collection[str] = (),
    **common: object,
) -> Iterator[ReferencePoint]:
    """Yield the points of a table with these `columns`; `common` holds for all rows.

    The last column `note` is optional; its words name entries of `notes`, and those in `untuned` say that the job is
    not tuned for speed. A figure after `~` is rounded. `{card}` in a common text is the column or common value of that
    name, which is then only part of texts. Raises ValueError, with the line, for an invalid row or point.
    """
    names = columns.split()
    for line in rows.strip().splitlines():
        cells = line.split()
        if not len(names) - ("note" in names) <= len(cells) <= len(names):
            raise ValueError(f"{len(cells)} cells, {len(names)} columns: {line}")
        stated: dict[str, object] = dict(common)
        try:
            for name, cell in zip(names, cells, strict=False):
                if cell != NOT_STATED:
                    _read_cell(stated, name, cell, notes or {})
                if name == "note":
                    stated["untuned"] = cell in untuned
            parts = {name: stated.pop(name) for name in _PARTS if name in stated}
            stated |= {name: str(text).format_map(parts) for name, text in stated.items() if name in _WITH_PARTS}
            yield read_reference(stated)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{error}: {line}") from error


def _read_cell(stated: dict[str, object], name: str, cell: str, notes: Mapping[str, str]) -> None:
    if name == "note":
        stated["note"] = notes[cell]
    elif name in FIGURES:
        stated[name] = float(cell.removeprefix(ABOUT))
        stated["rounded"] = bool(stated.get("rounded")) or cell.startswith(ABOUT)
    else:
        stated[name] = int(cell) if name in _NUMBERS else cell


# --- The published figures that come with the service.

_PUBLISHED = Path(__file__).with_name("published.toml")


@cache
def published() -> tuple[ReferencePoint, ...]:
    """Return the published points, newest first."""
    points: list[ReferencePoint] = []
    for group in tomllib.loads(_PUBLISHED.read_text(encoding="utf-8"))["group"]:
        for table in group.pop("table"):
            points += read_rows(**group, **table)
    return tuple(sorted(points, key=lambda point: (point.date, point.key), reverse=True))

"""The accepted changes of a journey as a waterfall: a bar for the start, one for each change, one for the result."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from app.domain.experiments.journey import AcceptedChange
from app.domain.numbers import signed, step_time
from app.experiments.journey_page import cut

# --- Layout in drawing units. The axis of step times starts at zero, so that bars are in proportion.

_COLUMN, _BAR, _PLOT, _TOP, _BELOW, _LEFT = 148, 92, 240, 34, 62, 12
_LETTERS = 20


@dataclass(frozen=True, slots=True)
class WaterfallBar:
    """`kind`: start, result, improvement or regression; `join`: where the line to the next bar runs, None at the end.

    `above`: the figure over the bar; `label`, `note`: under it. `href`: its page, "" without one.
    """

    x: int
    y: int
    height: int
    kind: str
    above: str
    label: str
    note: str
    title: str
    href: str
    join: int | None


@dataclass(frozen=True, slots=True)
class Waterfall:
    width: int
    height: int
    base: int
    bars: tuple[WaterfallBar, ...]
    label: str

    bar_width = _BAR
    column = _COLUMN


def waterfall(changes: Sequence[AcceptedChange]) -> Waterfall | None:
    """Lay out the bars; None without an accepted change."""
    if not changes:
        return None
    most = max(max(change.before_ms, change.after_ms) for change in changes)
    base = _TOP + _PLOT

    def level(ms: float) -> int:
        return base - round(_PLOT * ms / most)

    first, last = changes[0].before_ms, changes[-1].after_ms
    bars = [_whole(0, level(first), base, (step_time(first), "start", ""))]
    for place, change in enumerate(changes, 1):
        top, bottom = sorted((level(change.before_ms), level(change.after_ms)))
        pct = 100 * math.expm1(math.log(change.after_ms / change.before_ms))
        bars.append(
            WaterfallBar(
                x=_LEFT + place * _COLUMN,
                y=top,
                height=max(bottom - top, 2),
                kind="improvement" if change.after_ms <= change.before_ms else "regression",
                above=signed(pct),
                label=cut(change.title, _LETTERS),
                note=_note(change),
                title=f"{change.title}: {step_time(change.before_ms)} to {step_time(change.after_ms)}",
                href=f"/experiments/{change.experiment_id}",
                join=level(change.after_ms),
            )
        )
    # What the A/Bs measured where that is known, because single runs vary.
    measured = changes[-1].cumulative_pct
    total = 100 * math.expm1(math.log(first / last)) if measured is None else measured
    texts = (step_time(last), "now", f"{signed(total)} throughput")
    bars.append(_whole(len(bars), level(last), base, texts, end=True))
    label = f"Step time from {step_time(first)} to {step_time(last)} in {len(changes)} accepted changes"
    return Waterfall(2 * _LEFT + len(bars) * _COLUMN, base + _BELOW, base, tuple(bars), label)


def _whole(place: int, y: int, base: int, texts: tuple[str, str, str], *, end: bool = False) -> WaterfallBar:
    """Draw a bar from zero. `texts`: the figure above it, its label and its note."""
    above, label, note = texts
    kind, join = ("result", None) if end else ("start", y)
    return WaterfallBar(_LEFT + place * _COLUMN, y, base - y, kind, above, label, note, f"{label}: {above}", "", join)


def _note(change: AcceptedChange) -> str:
    """The cumulative gain, which the A/Bs measured."""
    return "" if change.cumulative_pct is None else f"{signed(change.cumulative_pct)} so far"


# --- The picture as a file, with its styles, always on white; as PNG for slides.

_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#5b6472}.name{fill:#1b2130;font-weight:600}line{stroke:#8a93a1}"
    ".start rect,.result rect{fill:#2457d6}.improvement rect{fill:#00734f}.regression rect{fill:#b3400a}"
)
_PNG_SCALE = 2.0


def waterfall_svg(picture: Waterfall) -> str:
    """Return the SVG file. Titles come from users, so every text is escaped."""
    size = f'width="{picture.width}" height="{picture.height}" viewBox="0 0 {picture.width} {picture.height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(picture.label)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect width="{picture.width}" height="{picture.height}" style="fill:#fff"/>',
            *(part for bar in picture.bars for part in _svg_bar(bar, picture)),
            "</svg>",
            "",
        ]
    )


def waterfall_png(picture: Waterfall) -> bytes:
    import vl_convert  # noqa: PLC0415  takes a tenth of a second to import

    image: bytes = vl_convert.svg_to_png(waterfall_svg(picture), scale=_PNG_SCALE)
    return image


def _svg_bar(bar: WaterfallBar, picture: Waterfall) -> Iterator[str]:
    middle = bar.x + _BAR // 2
    yield f'<g class="{bar.kind}"><title>{escape(bar.title)}</title>'
    yield f'<rect x="{bar.x}" y="{bar.y}" width="{_BAR}" height="{bar.height}"/>'
    if bar.join is not None:
        yield f'<line x1="{bar.x + _BAR}" y1="{bar.join}" x2="{bar.x + _COLUMN}" y2="{bar.join}"/>'
    for y, text, kind in (
        (bar.y - 8, bar.above, "name"),
        (picture.base + 20, bar.label, "name"),
        (picture.base + 38, bar.note, "note"),
    ):
        yield f'<text x="{middle}" y="{y}" text-anchor="middle" class="{kind}">{escape(text)}</text>'
    yield "</g>"

"""Pictures for slides, chats and pull requests: 1600 by 900, as SVG or PNG, with title, date, address and marks.

A picture is SVG text, which is built in a millisecond. Its hash is the ETag, so a PNG is drawn only for callers that do
not have it yet. A limited number of recent PNGs is kept in memory.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from html import escape
from typing import Literal

from fastapi import Request
from starlette.responses import Response

from app.domain.numbers import THIN
from app.domain.text import cut, shortened
from app.web.templating import public_address

WIDTH, HEIGHT = 1600, 900
LEFT, TOP, BODY_WIDTH, BODY_HEIGHT = 64, 190, 1472, 600
SMALL = 26
"""Smallest font size. On the overview, which shows pictures at least 680 pixels wide, it is 11 pixels."""
_MOST_STORED = 64
_CLASS = re.compile(r'class="(?P<name>[a-z-]+?)(?P<line>-line)?"')
_LETTERS = 66
"""Maximum characters of a title in one line."""
_LETTER_WIDTH = 0.69
"""Mean width of a bold letter of the widest font, DejaVu Sans, as a multiple of the font size."""
FONT = "system-ui, 'Segoe UI', 'Liberation Sans', 'DejaVu Sans', sans-serif"

NO_BREAK = "\N{NO-BREAK SPACE}"
"""Replaces the thin space, which few fonts have."""

Kind = Literal["svg", "png"]
Theme = Literal["light", "dark"]
Colour = Literal[
    "background", "text", "muted", "border", "worse", "better", "neutral", "accent", "side-a", "side-b",
    "alltoall", "deepep", "hybridep", "ncclep", "allgather",
]  # fmt: skip
_DISPATCHERS: dict[Colour, str] = {
    "alltoall": "#56708a", "deepep": "#cf7b00", "hybridep": "#0b84c6", "ncclep": "#8a63c9", "allgather": "#868e98",
}  # fmt: skip
_LIGHT: dict[Colour, str] = _DISPATCHERS | {
    "background": "#ffffff", "text": "#1b2130", "muted": "#5b6472", "border": "#dfe3e8", "worse": "#b3400a",
    "better": "#00734f", "neutral": "#5b6472", "accent": "#2457d6", "side-a": "#00756b", "side-b": "#a81f86",
}  # fmt: skip
_DARK: dict[Colour, str] = _DISPATCHERS | {
    "background": "#0e1116", "text": "#e6e9ef", "muted": "#9aa4b2", "border": "#2a313c", "worse": "#f0824a",
    "better": "#3fc08f", "neutral": "#9aa4b2", "accent": "#7aa2ff", "side-a": "#43c9ba", "side-b": "#f283d6",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Picture:
    """A slide. `body`: SVG of BODY_WIDTH by BODY_HEIGHT with colours as classes. `path`: its page."""

    title: str
    lead: str
    path: str
    generated: bool
    body: str


def picture_response(request: Request, picture: Picture, kind: Kind, theme: Theme) -> Response:
    """Return the picture, or 304 if the caller has it. Routes must check that the caller may see its page."""
    svg = picture_svg(picture, public_address(request), datetime.now(UTC), dark=theme == "dark")
    headers = {"ETag": f'"{hashlib.sha256(f"{kind} {svg}".encode()).hexdigest()[:32]}"', "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    if kind == "svg":
        return Response(svg, media_type="image/svg+xml", headers=headers)
    return Response(_png(svg), media_type="image/png", headers=headers)


@lru_cache(maxsize=_MOST_STORED)
def _png(svg: str) -> bytes:
    import vl_convert  # noqa: PLC0415  takes a tenth of a second to import

    return bytes(vl_convert.svg_to_png(svg))


def picture_svg(picture: Picture, base_url: str, now: datetime, *, dark: bool = False) -> str:
    """Return the whole slide as SVG. All texts are escaped, because users enter them."""
    colours = {str(name): colour for name, colour in (_DARK if dark else _LIGHT).items()}
    foot = HEIGHT - 34
    title = cut(picture.title, _LETTERS)
    title_size = min(44, int(BODY_WIDTH / (_LETTER_WIDTH * max(len(title), 1))))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' font-family="{FONT}" role="img">',
        f"<title>{escaped(picture.title)}</title>",
        f'<rect class="background" width="{WIDTH}" height="{HEIGHT}"/>',
        text(LEFT, 84, title, title_size, "text", bold=True),
        *(text(LEFT, 128 + 34 * row, line, SMALL, "muted") for row, line in enumerate(_wrapped(picture.lead, 104, 2))),
        f'<g transform="translate({LEFT} {TOP})">{picture.body}</g>',
        text(LEFT, foot, f"{now:%Y-%m-%d}   {cut(f'{base_url}{picture.path}', 72)}", SMALL, "muted"),
        text(WIDTH - LEFT, foot, "generated" if picture.generated else "Threewalls", SMALL, "worse" if picture.generated
             else "muted", bold=picture.generated, anchor="end"),
        "</svg>",
    ]  # fmt: skip
    # Colours become attributes, because the content security policy blocks style sheets in a document.
    return _CLASS.sub(lambda match: _with_colours(match, colours), "\n".join(parts))


def _with_colours(match: re.Match[str], colours: Mapping[str, str]) -> str:
    colour = colours.get(match["name"])
    if colour is None:
        return match[0]
    return f'stroke="{colour}" fill="none"' if match["line"] else f'fill="{colour}"'


def dispatcher_colour(name: str) -> Colour:
    """Return the colour of a dispatcher, which is the same on every chart."""
    return next((colour for colour in _DISPATCHERS if colour == name), "neutral")


# --- Bodies of slides.


@dataclass(frozen=True, slots=True)
class DotRow:
    """A dot with its interval on a common axis. `figure`: text at the right. `note`: text below the label."""

    label: str
    value: float
    low: float | None
    high: float | None
    figure: str
    colour: Colour
    note: str = ""


_LABELS, _FIGURES = 520, 250
_MOST_ROWS = 8


def rows_body(rows: Sequence[DotRow], axis: str, *, with_zero: bool = True) -> str:
    """Return rows with dots on one axis. `with_zero`: the axis includes zero, as for changes."""
    shown, left_out = rows[:_MOST_ROWS], len(rows) - _MOST_ROWS
    ends = [end for row in shown for end in (row.low, row.value, row.high) if end is not None]
    ends += [0.0] if with_zero else []
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    begin, width = _LABELS, BODY_WIDTH - _LABELS - _FIGURES
    scale = width / ((high - low) or 1.0)
    step = min((BODY_HEIGHT - 60) / max(len(shown), 1), 180)
    bottom = step * len(shown)

    def x(value: float) -> float:
        return begin + (value - low) * scale

    parts = [_line(x(0), 0, x(0), bottom, "muted-line", width=2)] if with_zero else []
    for place, row in enumerate(shown):
        y = step * (place + 0.5)
        parts.append(text(0, y + (0 if row.note else 9), shortened(row.label, 34), 28, "text", bold=True))
        if row.note:
            parts.append(text(0, y + 32, cut(row.note, 36), SMALL, "muted"))
        if row.low is not None and row.high is not None:
            parts.append(_line(x(row.low), y, x(row.high), y, f"{row.colour}-line", width=8, opacity=0.5))
        parts.append(f'<circle class="{row.colour}" cx="{x(row.value):.1f}" cy="{y:.1f}" r="13"/>')
        parts.append(text(BODY_WIDTH, y + 10, row.figure, 30, row.colour, bold=True, anchor="end"))
    note = f"{axis}; {left_out} more not shown" if left_out > 0 else axis
    parts.append(text(0, bottom + 40, note, SMALL, "muted"))
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class Strip:
    """Runs of a regression's member before and after the change, in percent of the usual level, in commit order."""

    label: str
    figure: str
    before: Sequence[float]
    after: Sequence[float]


_MOST_STRIPS = 4


def strips_body(strips: Sequence[Strip]) -> str:
    """Return a row per member, all on one scale, with the usual level as a line."""
    shown, left_out = strips[:_MOST_STRIPS], len(strips) - _MOST_STRIPS
    values = [value for strip in shown for value in (*strip.before, *strip.after)]
    low, high = min([*values, -1.0]), max([*values, 1.0])
    step = min((BODY_HEIGHT - 50) / max(len(shown), 1), 300)
    begin, width = _LABELS, BODY_WIDTH - _LABELS - _FIGURES
    parts = []
    for place, strip in enumerate(shown):
        top, height = step * place + 16, step - 32

        def y(value: float, top: float = top, height: float = height) -> float:
            return top + height * (high - value) / (high - low)

        spacing = width / (len(strip.before) + len(strip.after) + 1)
        change = begin + spacing * (len(strip.before) + 0.5)
        parts += [
            text(0, step * (place + 0.5) + 9, shortened(strip.label, 34), 28, "text", bold=True),
            _line(begin, y(0), begin + width, y(0), "border-line", width=3),
            _line(change, top, change, top + height, "worse-line", width=2, dash="6 6"),
            text(BODY_WIDTH, step * (place + 0.5) + 10, strip.figure, 30, "worse", bold=True, anchor="end"),
        ]
        for number, value in enumerate((*strip.before, *strip.after), 1):
            colour = "neutral" if number <= len(strip.before) else "worse"
            parts.append(f'<circle class="{colour}" cx="{begin + spacing * number:.1f}" cy="{y(value):.1f}" r="8"/>')
    more = f"; {left_out} more members not shown" if left_out > 0 else ""
    parts.append(text(0, step * len(shown) + 34, f"runs in commit order; up is slower, the line is before{more}",
                      SMALL, "muted"))  # fmt: skip
    return "".join(parts)


_VALUES = 190
_LEAST_RANGE = 0.02
"""Minimum range of the axis as a share of the value, so that noise does not look like a change."""


def points_body(points: Sequence[tuple[float, Colour]], label: Callable[[float], str]) -> str:
    """Return values from left to right. The axis does not start at zero; `label` formats its ends."""
    if not points:
        return ""
    values = [value for value, _ in points]
    low, high = min(values), max(values)
    middle, span = (low + high) / 2, max(high - low, _LEAST_RANGE * (low + high) / 2) or 1.0
    height, width = BODY_HEIGHT - 60, BODY_WIDTH - _VALUES
    spacing = width / len(points)
    places = [
        (_VALUES + spacing * (number + 0.5), height / 2 - (value - middle) / span * (height - 60))
        for number, (value, _) in enumerate(points)
    ]
    parts = []
    for value in dict.fromkeys((high, low)):
        y = height / 2 - (value - middle) / span * (height - 60)
        parts += [
            _line(_VALUES, y, BODY_WIDTH, y, "border-line", width=3),
            text(0, y + 10, label(value), 30, "muted"),
        ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(f'<polyline class="muted-line" points="{line}" stroke-width="3" stroke-opacity="0.5"/>')
    for (x, y), (_, colour) in zip(places, points, strict=True):
        parts.append(f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="{min(11, spacing / 2):.1f}"/>')
    parts.append(text(_VALUES, BODY_HEIGHT, "step time of runs in commit order; the axis does not start at zero", SMALL,
                      "muted"))  # fmt: skip
    return "".join(parts)


def nested_body(svg: str, width: float, height: float) -> str:
    """Return another SVG drawing as an image, as large as the body allows. An image keeps its own styles."""
    scale = min(BODY_WIDTH / width, BODY_HEIGHT / height)
    data = base64.b64encode(svg.encode()).decode()
    size = f'width="{width * scale:.0f}" height="{height * scale:.0f}"'
    return f'<image {size} href="data:image/svg+xml;base64,{data}"/>'


def text(
    x: float, y: float, content: str, size: int, colour: Colour, *, bold: bool = False, anchor: str = "start"
) -> str:
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{colour}" {place} font-size="{size}"{weight}>{escaped(content)}</text>'


def escaped(content: str) -> str:
    return escape(
        "".join(letter for letter in content.replace(THIN, NO_BREAK) if letter.isprintable() or letter == NO_BREAK)
    )


def _line(
    x1: float, y1: float, x2: float, y2: float, colour: str, *, width: int, opacity: float = 1, dash: str = ""
) -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{colour}" {ends} stroke-width="{width}" stroke-opacity="{opacity}"{dashes}/>'


def _wrapped(content: str, width: int, most: int) -> Iterable[str]:
    lines = list(_lines(content, width))
    return [*lines[: most - 1], cut(" ".join(lines[most - 1 :]), width)] if len(lines) > most else lines


def _lines(content: str, width: int) -> Iterator[str]:
    line = ""
    for word in content.split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    if line:
        yield line

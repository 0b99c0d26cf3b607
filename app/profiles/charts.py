"""The three walls of a run as a picture to download, as SVG or PNG."""

from collections.abc import Iterator
from xml.sax.saxutils import escape

from app.domain.numbers import share_text
from app.domain.text import cut
from app.profiles.views import ProfilePage, Wall

COLOURS = {
    "compute": "#2457d6",
    "communication": "#d98200",
    "copy": "#8a63c9",
    "idle-launch-starved": "#b3400a",
    "idle-host-sync": "#9b2c6f",
    "idle-issued-other": "#a0a7b0",
    "idle-unresolved": "#dfe3e8",
}
WALLS_WIDTH, WALLS_HEIGHT, WALLS_TOP = 1_040, 330, 70
_WIDEST = 46
"""Characters of a line of a card."""


def walls_svg(page: ProfilePage, top: int = 0) -> str:
    """Draw the bar of the step and the three cards. `top`: where the drawing begins; WALLS_TOP leaves out its title."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {top} {WALLS_WIDTH} {WALLS_HEIGHT - top}"'
        f' width="{WALLS_WIDTH}" height="{WALLS_HEIGHT - top}" '
        'font-family="Liberation Sans, Helvetica, Arial, sans-serif">',
        f'<rect width="{WALLS_WIDTH}" height="{WALLS_HEIGHT}" fill="#ffffff"/>',
        _text(20, 36, f"{page.run.name} #{page.run.id}", 20, "#1b2130", weight="bold"),
        _text(20, 60, page.answer, 14, "#1b2130"),
    ]
    for segment in page.segments:
        parts.append(
            f'<rect x="{20 + segment.x:.2f}" y="78" width="{max(segment.width, 0.5):.2f}" height="40" '
            f'fill="{COLOURS[segment.kind]}"/>'
        )
    x = 20.0
    for segment in page.segments:
        if segment.share >= 0.005:
            parts.append(f'<rect x="{x:.0f}" y="130" width="10" height="10" fill="{COLOURS[segment.kind]}"/>')
            label = f"{segment.label} {share_text(segment.share, 1)}"
            parts.append(_text(x + 14, 140, label, 12, "#5b6472"))
            x += 30 + 6.2 * len(label)
    for column, wall in enumerate(page.walls):
        left = 20 + column * 338
        border = "#b3400a" if wall.is_wall else "#dfe3e8"
        parts.append(
            f'<rect x="{left}" y="160" width="324" height="150" rx="6" fill="#f6f7f9" stroke="{border}" '
            f'stroke-width="{2 if wall.is_wall else 1}"/>'
        )
        parts.append(_text(left + 16, 186, wall.label, 15, "#1b2130", weight="bold"))
        parts += _figures(wall, left + 16)
        if wall.suggestions:
            parts.append(_text(left + 16, 296, cut(f"Next: {wall.suggestions[0][1]}", _WIDEST), 13, "#2457d6"))
    parts.append("</svg>")
    return "".join(parts)


def _figures(wall: Wall, left: float) -> Iterator[str]:
    """Yield the leading figure in large type and the other known figures below it."""
    leading = wall.leading
    if leading.share is None:
        yield _text(left, 216, "unknown", 15, "#5b6472")
        return
    yield _text(left, 218, share_text(leading.share, 1), 24, "#1b2130", weight="bold")
    yield _text(left + 86, 207 if leading.threshold else 217, cut(leading.label, _WIDEST - 13), 13, "#5b6472")
    if leading.threshold is not None:
        yield _text(left + 86, 222, f"threshold {share_text(leading.threshold)}", 12, "#5b6472")
    others = [(item.share, item.label) for item in wall.numbers if item is not leading and item.share is not None]
    for row, (share, label) in enumerate(others[:3]):
        yield _text(left, 241 + 18 * row, share_text(share, 1), 13, "#1b2130", weight="bold")
        yield _text(left + 48, 241 + 18 * row, cut(label, _WIDEST - 8), 13, "#5b6472")


def walls_png(page: ProfilePage) -> bytes:
    import vl_convert  # noqa: PLC0415  takes a tenth of a second to import

    return bytes(vl_convert.svg_to_png(walls_svg(page), scale=2))


def _text(x: float, y: float, text: str, size: int, colour: str, *, weight: str = "normal") -> str:
    shown = escape("".join(letter for letter in text if letter.isprintable()))
    return f'<text x="{x:.0f}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{colour}">{shown}</text>'

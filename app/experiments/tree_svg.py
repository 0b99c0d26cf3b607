"""The picture of a journey as a file of its own, for documents and slides: SVG with its styles, always on white.

https://www.w3.org/TR/SVG2/. Titles come from outside, so every text is escaped.
"""

from collections.abc import Iterator
from html import escape

from app.experiments.tree_picture import BOX_HEIGHT, BOX_WIDTH, Box, Line, Picture

_MARGIN = 16
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#5b6472}.name{font-size:13px;font-weight:600;fill:#1b2130}"
    ".knob{font:11px ui-monospace,monospace;fill:#1b2130}.improvement{fill:#00734f}.regression{fill:#b3400a}"
    "path{fill:none;stroke:#8a93a1;stroke-width:1.5}rect{fill:#f6f7f9;stroke:#8a93a1}"
    ".won path{stroke:#2457d6;stroke-width:4}.accepted path{stroke:#2457d6}"
    ".won rect,.root rect{fill:#fff;stroke:#2457d6;stroke-width:2}.accepted rect{fill:#fff;stroke:#2457d6}"
    ".open path,.undecided path,.open rect,.undecided rect{stroke-dasharray:5 4}"
)
"""The light colours of the page's `experiments.css`."""


def svg(picture: Picture, title: str) -> str:
    """The whole file; `title` is what it is called to readers."""
    width, height = picture.width + 2 * _MARGIN, picture.height + 2 * _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="{-_MARGIN} {-_MARGIN} {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect x="{-_MARGIN}" y="{-_MARGIN}" width="{width}" height="{height}" style="fill:#fff;stroke:none"/>',
            *(part for line in picture.lines for part in _line(line)),
            *(part for box in picture.boxes for part in _box(box)),
            "</svg>",
            "",
        ]
    )


def _line(line: Line) -> Iterator[str]:
    yield f'<g class="{line.edge.kind}"><path d="{line.path}"/>'
    yield _text(line.text_x, line.text_y - 7, line.knob, "knob")
    yield _text(line.text_x, line.text_y + 15, line.values, "knob")
    yield _text(line.text_x, line.text_y + 31, line.effect, line.edge.tone)
    yield "</g>"


def _box(box: Box) -> Iterator[str]:
    size = f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"'
    yield f'<g class="{box.node.kind}"><rect x="{box.x}" y="{box.y}" {size}/>'
    yield _text(box.x + 12, box.y + 21, box.title, "name")
    for y, text in box.lines:
        yield _text(box.x + 12, y, text, "")
    yield "</g>"


def _text(x: int, y: int, text: str, of: str) -> str:
    kind = f' class="{of}"' if of else ""
    return f'<text x="{x}" y="{y}"{kind}>{escape(text)}</text>'

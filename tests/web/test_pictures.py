"""Pictures for slides: every dot is at its value, every text is escaped and inside, and marks are where they belong."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime

import pytest

from app.web.pictures import (
    BODY_HEIGHT,
    BODY_WIDTH,
    WIDTH,
    DotRow,
    Picture,
    Strip,
    nested_body,
    picture_svg,
    points_body,
    rows_body,
    strips_body,
)

SVG = "{http://www.w3.org/2000/svg}"
NOW = datetime(2026, 10, 1, tzinfo=UTC)
ATTACK = '"><script>alert(1)</script>'


def body(content: str) -> ET.Element:
    return ET.fromstring(f'<svg xmlns="http://www.w3.org/2000/svg">{content}</svg>')  # noqa: S314


def dots(content: str) -> list[tuple[float, float]]:
    return [(float(dot.get("cx", 0)), float(dot.get("cy", 0))) for dot in body(content).iter(f"{SVG}circle")]


def test_rows_are_at_their_values_on_one_axis() -> None:
    values = [-4.0, 0.0, 2.0, 8.0]
    drawn = dots(rows_body([DotRow("x", value, value - 1, value + 1, "", "worse") for value in values], "axis"))
    scale = (drawn[3][0] - drawn[0][0]) / (values[3] - values[0])
    for (x, y), value in zip(drawn, values, strict=True):
        assert x - drawn[1][0] == pytest.approx(scale * value, abs=0.2)
        assert 0 < x < BODY_WIDTH
        assert 0 < y < BODY_HEIGHT


def test_strips_are_at_their_values_and_say_how_many_are_left_out() -> None:
    strips = [Strip("x", "5 % slower", (0.0, 1.0, -1.0), (5.0, 6.0))] * 6
    drawn = dots(strips_body(strips))
    assert len(drawn) == 4 * 5  # four strips of five runs
    level, *others = [y for _, y in drawn[:5]]
    assert [(level - y) / (level - others[0]) for y in others] == pytest.approx([1, -1, 5, 6], rel=0.02)
    assert "2 more members" in strips_body(strips)


@pytest.mark.parametrize("generated", [True, False])
def test_a_slide_has_title_date_address_and_mark(generated: bool) -> None:
    picture = Picture(ATTACK * 4, "lead " * 100, f"/runs/1?{ATTACK}", generated, rows_body([], "axis"))
    for dark in (False, True):
        svg = picture_svg(picture, "https://perf.example", NOW, dark=dark)
        assert "<script" not in svg
        slide = ET.fromstring(svg)  # noqa: S314
        texts = ["".join(text.itertext()) for text in slide.iter(f"{SVG}text")]
        assert any(text.startswith("2026-10-01") and "https://perf.example/runs/1" in text for text in texts)
        assert ("generated" in texts) == generated
        assert max(map(len, texts)) <= 140
        title = next(text for text in slide.iter(f"{SVG}text") if text.get("font-weight"))
        assert 0.69 * float(title.get("font-size", "0")) * len(title.text or "") <= BODY_WIDTH


def test_letters_are_readable_on_the_overview_and_inside_the_slide() -> None:
    """It shows slides at least 680 pixels wide."""
    rows = rows_body(
        [DotRow("x" * 60, 1.0, 0.0, 2.0, "1 %", "worse", "note " * 20)] * 12, "% more throughput than " * 2
    )
    strips = strips_body([Strip("x", "5 % slower", (0.0,), (5.0,))] * 6)
    points = points_body([(400.0, "neutral"), (410.0, "worse")], "{:.0f} ms".format)
    for drawn in (rows, strips, points):
        slide = ET.fromstring(picture_svg(Picture("t", "l", "/runs/1" + "x" * 200, True, drawn), "", NOW))  # noqa: S314
        for text in slide.iter(f"{SVG}text"):
            size = float(text.get("font-size", "0"))
            assert size * 680 / WIDTH >= 11
            assert 0.55 * size * len(text.text or "") <= BODY_WIDTH


def test_a_drawing_inside_keeps_its_styles_to_itself() -> None:
    inner = "<svg xmlns='http://www.w3.org/2000/svg' width='100' height='50'><style>text{fill:red}</style></svg>"
    content = nested_body(inner, 100, 50)
    assert "<style" not in content
    (image,) = body(content).iter(f"{SVG}image")
    assert (image.get("width"), image.get("height")) == ("1200", "600")
    assert re.fullmatch(r"data:image/svg\+xml;base64,[\w+/=]+", image.get("href", ""))

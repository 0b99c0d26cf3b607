"""Charts: axis, points, values off the axis, and the script that draws them."""

import json
import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import vl_convert
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis.strategies import booleans, floats, lists
from jinja2 import nodes

from app.domain.numbers import THIN
from app.domain.performance.steady_state import steady_state
from app.domain.run import FloatArray
from app.runs import charts
from app.runs.charts import series_chart
from app.runs.run_page import table_of
from app.settings import RESOURCES
from app.web.charts import TIME_LABEL, _compiled, off_scale_note, vega
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
from app.web.templating import environment
from tests.builders import UNITS, step_times

ROOT = Path(__file__).resolve().parents[2]


def points_of(times: FloatArray) -> charts.Points:
    iterations = np.arange(1, len(times) + 1, dtype=np.float64)
    columns = {"iteration": iterations, "step_time_ms": times, "lm_loss": 10 / iterations, "log_line": iterations + 40}
    return charts.points(columns, UNITS, "step_time_ms", steady_state(iterations, times))


@pytest.mark.parametrize(("milliseconds", "title"), [(412.0, "Step time (ms)"), (31_310.0, "Step time (s)")])
def test_step_time_is_drawn_in_the_unit_of_its_figure(milliseconds: float, title: str) -> None:
    assert points_of(step_times(milliseconds, 50)).title == title


def test_warm_up_does_not_squeeze_the_window() -> None:
    data = points_of(step_times(400.0, 50))
    linear, log = charts.fitting_scale(data, log=False), charts.fitting_scale(data, log=True)
    window = [value for value, role in zip(data.values, data.roles, strict=True) if role == "window"]
    assert linear.low < min(window)
    assert linear.high < 2 * max(window)
    assert len(charts.outside(data, linear)) >= 2
    assert log.high > max(data.values)
    assert charts.outside(data, log) == []


def test_an_artefact_is_drawn_as_it_was_and_not_as_it_was_printed() -> None:
    columns = {"step_time_ms": np.array([90.0, 55.0, 30.0]), "step_time_true_ms": np.array([90.0, 20.0, np.nan])}
    assert charts.step_times(columns).tolist() == [90.0, 20.0, 30.0]


def test_the_speed_of_a_corrected_step_is_corrected_with_its_time() -> None:
    columns = {
        "iteration": np.arange(1.0, 5.0), "step_time_ms": np.array([90.0, 55.0, 20.0, np.nan]),
        "step_time_true_ms": np.array([90.0, 20.0, 20.0, np.nan]), "tflops_per_gpu": np.array([20.0, 80.0, 220.0, 7.0]),
    }  # fmt: skip
    data = charts.points(columns, UNITS, "tflops_per_gpu", None)
    assert data.values.tolist() == [20.0, 220.0, 220.0, 7.0]
    rows = table_of([charts.points(columns, UNITS, "step_time_ms", None), data], 1).items
    assert [(row.values, row.printed) for row in rows] == [
        (("90.00", "20.00"), ""), (("20.00", "220.0"), "55.00\u202fms"), (("20.00", "220.0"), ""), (("–", "7.000"), ""),
    ]  # fmt: skip


def test_thinning_keeps_every_extreme() -> None:
    times = step_times(400.0, 50_000)
    times[31_234] = 4_000.0
    data = points_of(times)
    drawn = charts.drawable(data, log=False)
    assert len(drawn.values) <= charts.MAX_POINTS + 2
    assert 4_000.0 in drawn.values
    assert (drawn.iterations[0], drawn.iterations[-1]) == (1, 50_000)
    assert np.all(np.diff(drawn.iterations) > 0)


def test_the_level_before_a_regression_is_on_the_axis_and_drawn_at_its_value() -> None:
    data = points_of(step_times(400.0, 50))
    usual = charts.baseline_band([330.0], 330.0, data.unit, "with train:1")
    assert usual is not None
    scale = charts.fitting_scale(data, log=False, bands=[usual])
    datasets = series_chart(data, scale, None, usual=usual)["datasets"]
    assert scale.low < 330.0
    assert [row["value"] for row in datasets["usual"]] == [330.0]
    assert series_chart(data, scale, None)["datasets"]["usual"] == []


def test_a_second_level_is_marked_where_it_begins() -> None:
    times = np.array([9000.0] + [100.0, 104.0] * 30 + [117.0, 121.0] * 20)
    data, steady = points_of(times), steady_state(np.arange(1, len(times) + 1), times)
    scale = charts.fitting_scale(data, log=False)
    datasets = series_chart(data, scale, steady)["datasets"]
    (row,) = datasets["level"]
    assert (row["iteration"], row["label"]) == (62, f"+16.7{THIN}%")
    assert (len(datasets["figure"]), datasets["interval"]) == (1, []), "a median, but no level to be sure of"
    assert series_chart(charts.between(data, 1, 61), scale, steady)["datasets"]["level"] == []


@pytest.mark.parametrize("values", [[], [5.0], [5.0] * 30, [np.nan] * 30, [0.0] * 30])
@pytest.mark.parametrize("log", [False, True])
def test_any_series_has_an_axis(values: list[float], log: bool) -> None:
    data = charts.drawable(points_of(np.array(values)), log)
    scale = charts.fitting_scale(data, log)
    assert np.isfinite([scale.low, scale.high]).all()
    assert scale.low < scale.high


def test_a_specification_contains_every_role_and_the_window() -> None:
    times = step_times(400.0, 50)
    data = points_of(times)
    steady = steady_state(np.arange(1, 51), times)
    spec = series_chart(data, charts.fitting_scale(data, log=False), steady, pointed_at=16)
    datasets = spec["datasets"]
    assert "window" in {row["role"] for row in datasets["points"]}
    assert {row["role"] for row in datasets["lane"]} == {"warm-up", "spike"}
    assert datasets["window"][0]["last"] == 50
    assert datasets["pointed"] == [{"iteration": 16}]
    lines = {row["iteration"]: row["line"] for row in datasets["points"]}
    assert lines[7] == 47
    assert all(0 <= line["to_y"] <= line["from_y"] <= 300 for line in datasets["hatch"])


@bounded(deadline=None, max_examples=40)
@given(lists(floats(0.1, 9_000), min_size=2, max_size=80), booleans())
def test_every_mark_is_at_its_value_or_shows_it_as_text(values: list[float], log: bool) -> None:
    data = charts.drawable(points_of(np.array(values)), log)
    scale = charts.fitting_scale(data, log)
    datasets = series_chart(data, scale, None)["datasets"]
    rows = [*datasets["points"], *datasets["lane"]]
    assert sorted((row["iteration"], row["value"]) for row in rows) == list(enumerate(values, 1))
    assert all(row["shown"] == row["value"] for row in datasets["points"])
    assert all(scale.low <= row["shown"] <= scale.high for row in datasets["points"])
    assert all(row["lane"] in ("", row["text"]) for row in datasets["lane"])
    assert not datasets["lane"] or max(datasets["lane"], key=lambda row: row["value"])["lane"]


def test_the_note_names_the_values_off_the_scale_and_of_many_the_ends() -> None:
    assert off_scale_note([4_166.0, 29_934.0]) == "2 off scale: 29,934; 4,166."
    assert off_scale_note([4_166.0, 29_934.0, 3_900.0]) == "3 off scale: 3,900 to 29,934."
    assert off_scale_note([float(100 + k) for k in range(30)]) == "30 off scale: 100.0 to 129.0."


def test_colours_are_tokens_of_the_stylesheet() -> None:
    data = points_of(step_times(400.0, 50))
    spec = series_chart(data, charts.fitting_scale(data, log=False), None)
    assert "#" not in str(spec["config"])
    assert "#" not in str(spec["layer"])


def test_a_chart_is_compiled_once_for_all_data() -> None:
    """The result equals compiling with the data."""
    specs = []
    for middle in (400.0, 700.0):
        data = points_of(step_times(middle, 50))
        specs.append(
            series_chart(data, charts.fitting_scale(data, log=False), steady_state(data.iterations, data.values))
        )
    misses = _compiled.cache_info().misses
    for spec in specs:
        compiled = vega(spec)
        whole = vl_convert.vegalite_to_vega(spec)
        for source in compiled["data"]:
            if source["name"] in spec["datasets"]:
                source["values"] = spec["datasets"][source["name"]]
        del compiled["datasets"], whole["$schema"]
        assert compiled == whole
    assert _compiled.cache_info().misses <= misses + 1
    assert specs[0]["datasets"] != specs[1]["datasets"]


def test_the_notice_names_what_the_script_is_built_from() -> None:
    locked = json.loads((ROOT / ".ci/vega/package-lock.json").read_text())["packages"]
    named = re.findall(
        r"^([a-z0-9-]+) (\d[\w.]+) \(\S+\)$", (RESOURCES / "static/vega/NOTICE").read_text(), re.MULTILINE
    )
    assert {name: version for name, version in named if locked[f"node_modules/{name}"]["version"] != version} == {}
    assert {"vega-view", "vega-parser", "vega-interpreter", "d3-scale", "d3-time-format"} <= dict(named).keys()


def test_templates_use_only_filters_that_exist() -> None:
    """Jinja checks a filter inside of an `if` only when it is reached."""
    env = environment()
    for name in env.list_templates():
        tree = env.parse(Path(RESOURCES, "templates", name).read_text())
        assert {node.name for node in tree.find_all(nodes.Filter)} <= set(env.filters), name


@pytest.mark.parametrize(("end", "has_times"), [("2026-10-01T17:40:00Z", True), ("2026-10-20T17:40:00Z", False)])
def test_dates_of_a_short_axis_have_the_time_of_day(end: str, has_times: bool) -> None:
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": [{"at": "2026-10-01T17:20:00Z"}, {"at": end}]},
        "mark": "point",
        "encoding": {"x": {"field": "at", "type": "temporal", "scale": {"type": "utc"},
                           "axis": {"labelExpr": TIME_LABEL}}},
    }  # fmt: skip
    labels = re.findall(r">(\d+ Oct[^<]*)</text>", vl_convert.vegalite_to_svg(spec))
    assert len(labels) > 1
    assert {":" in label for label in labels} == {has_times}


# --- Charts as pictures.

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

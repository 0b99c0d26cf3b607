"""What a chart shows of a series: its axis, its points, what lies off it."""

import numpy as np
import pytest

from app.domain.performance.steady_state import steady_state
from app.domain.run import FloatArray
from app.runs import charts
from app.runs.charts import series_chart
from tests.builders import UNITS, step_times


def made(times: FloatArray, name: str = "step_time_ms") -> charts.Points:
    iterations = np.arange(1, len(times) + 1, dtype=np.float64)
    columns = {"iteration": iterations, "step_time_ms": times, "lm_loss": 10 / iterations, "log_line": iterations + 40}
    return charts.points(columns, UNITS, name, steady_state(iterations, times))


@pytest.mark.parametrize(("milliseconds", "title"), [(412.0, "Step time (ms)"), (31_310.0, "Step time (s)")])
def test_step_time_is_drawn_in_the_unit_of_its_figure(milliseconds: float, title: str) -> None:
    assert made(step_times(milliseconds, 50)).title == title


def test_warm_up_does_not_squeeze_the_window() -> None:
    data = made(step_times(400.0, 50))
    linear, log = charts.fitting_scale(data, log=False), charts.fitting_scale(data, log=True)
    window = [value for value, role in zip(data.values, data.roles, strict=True) if role == "window"]
    assert linear.low < min(window)
    assert linear.high < 2 * max(window)
    assert charts.outside(data, linear) == 2
    assert log.high > max(data.values)
    assert charts.outside(data, log) == 0


def test_an_artefact_is_drawn_as_it_was_and_not_as_it_was_printed() -> None:
    columns = {"step_time_ms": np.array([90.0, 55.0, 30.0]), "step_time_true_ms": np.array([90.0, 20.0, np.nan])}
    assert charts.step_times(columns).tolist() == [90.0, 20.0, 30.0]


def test_thinning_keeps_every_extreme() -> None:
    times = step_times(400.0, 50_000)
    times[31_234] = 4_000.0
    data = made(times)
    drawn = charts.drawable(data, log=False)
    assert len(drawn.values) <= charts.MAX_POINTS + 2
    assert 4_000.0 in drawn.values
    assert (drawn.iterations[0], drawn.iterations[-1]) == (1, 50_000)
    assert np.all(np.diff(drawn.iterations) > 0)


@pytest.mark.parametrize("values", [[], [5.0], [5.0] * 30, [np.nan] * 30, [0.0] * 30])
@pytest.mark.parametrize("log", [False, True])
def test_any_series_has_an_axis(values: list[float], log: bool) -> None:
    data = charts.drawable(made(np.array(values)), log)
    scale = charts.fitting_scale(data, log)
    assert np.isfinite([scale.low, scale.high]).all()
    assert scale.low < scale.high


def test_a_specification_holds_every_role_and_the_window() -> None:
    times = step_times(400.0, 50)
    data = made(times)
    steady = steady_state(np.arange(1, 51), times)
    spec = series_chart(data, charts.fitting_scale(data, log=False), steady, pointed_at=16)
    datasets = spec["datasets"]
    assert {row["mark"] for row in datasets["points"]} == {"above", "warm-up", "window", "spike"}
    assert datasets["window"][0]["last"] == 50
    assert datasets["pointed"] == [{"iteration": 16}]
    lines = {row["iteration"]: row["line"] for row in datasets["points"]}
    assert lines[7] == 47
    assert all(0 <= line["to_y"] <= line["from_y"] <= 300 for line in datasets["hatch"])


def test_colours_are_tokens_of_the_stylesheet() -> None:
    data = made(step_times(400.0, 50))
    spec = series_chart(data, charts.fitting_scale(data, log=False), None)
    assert "#" not in str(spec["config"])
    assert "#" not in str(spec["layer"])

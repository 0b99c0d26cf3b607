"""Changes, costs and badges as text: tables of values."""

import re

import pytest

from app.domain.changes import change_text, gpu_hours
from app.domain.numbers import THIN
from app.web.templating import environment


@pytest.mark.parametrize(
    ("values", "metric", "text"),
    [
        ((3.42, 2.1, 4.7), "step_time_ms", "+3.4 % slower (2.1 to 4.7)"),
        ((-24.1, -27.0, -20.13), "step_time_ms", "−24.1 % faster (20.1 to 27.0)"),
        ((-0.6, -1.5, 0.3), "step_time_ms", "−0.60 % faster (−0.3 to 1.5)"),
        ((0.31, -0.04, 0.66), "step_time_ms", "+0.31 % slower (−0.04 to 0.66)"),
        ((-3.3, -4.5, -2.1), "tokens_per_s_per_gpu", "−3.3 % lower (2.1 to 4.5)"),
        ((4.2, None, None), "peak_memory_gib", "+4.2 % more"),
        ((0.001, -0.2, 0.2), "step_time_ms", "the same (−0.20 to 0.20)"),
        ((1.0, float("nan"), float("inf")), "step_time_ms", "+1.0 % slower"),
    ],
)
def test_a_change_has_sign_percent_word_and_its_interval_in_the_direction_of_the_word(
    values: tuple[float, float | None, float | None], metric: str, text: str
) -> None:
    assert change_text(*values, metric).text == text.replace(" %", f"{THIN}%")


@pytest.mark.parametrize(
    ("hours", "text"), [(0.02, "under 0.1"), (0.44, "0.4"), (2.64, "2.6"), (41.3, "41"), (1180.0, "1,180")]
)
def test_a_cost_is_no_more_exact_than_an_estimate(hours: float, text: str) -> None:
    assert gpu_hours(hours) == text


def test_every_verdict_has_a_word_a_shape_and_a_colour_of_its_own() -> None:
    ui = environment().globals["ui"]
    decisions = ("regression", "improvement", "no_change", "inconclusive", "no_baseline", "failed")
    badges = [str(ui.verdict(decision)) for decision in decisions]  # type: ignore[attr-defined]
    for part in (r'class="badge ([\w-]+)"', r"<path d=\"(.+?)\"|<circle (.+?)/>", r"</svg>\s*([\w ]+)<"):
        found = [re.search(part, badge) for badge in badges]
        assert len({match and match.group() for match in found}) == 6
    experiment = str(ui.verdict("regression", ab=True))  # type: ignore[attr-defined]
    assert "A/B slower" in experiment
    assert ">regression<" not in experiment

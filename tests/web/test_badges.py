"""Changes, costs and badges as text: tables of values."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.numbers import THIN, change_text, gpu_hours, signed
from app.web.templating import environment


@pytest.mark.parametrize(
    ("values", "metric", "text"),
    [
        ((3.42, 2.1, 4.7), "step_time_ms", "3.4 % slower (2.1 to 4.7)"),
        ((-24.1, -27.0, -20.13), "step_time_ms", "24.1 % faster (20.1 to 27.0)"),
        ((-0.6, -1.5, 0.3), "step_time_ms", "0.60 % faster (0.3 slower to 1.5 faster)"),
        ((0.31, -0.04, 0.66), "step_time_ms", "0.31 % slower (0.04 faster to 0.66 slower)"),
        ((-3.3, -4.5, -2.1), "tokens_per_s_per_gpu", "3.3 % lower (2.1 to 4.5)"),
        ((4.2, None, None), "peak_memory_gib", "4.2 % more"),
        ((0.001, -0.2, 0.2), "step_time_ms", "the same (0.20 faster to 0.20 slower)"),
        ((-0.001, -9.3, 10.3), "step_time_ms", "the same (9.3 faster to 10.3 slower)"),
        ((-2.0, -3.7, -0.1), "step_time_ms", "2.0 % faster (0.1 to 3.7)"),
        ((-0.58, -2.2, 1.0), "step_time_ms", "0.58 % faster (1.0 slower to 2.2 faster)"),
        ((-0.57, -4.1, 3.1), "tokens_per_s_per_gpu", "0.57 % lower (3.1 higher to 4.1 lower)"),
        ((1.0, float("nan"), float("inf")), "step_time_ms", "1.0 % slower"),
    ],
)
def test_a_change_has_sign_percent_word_and_its_interval_in_the_direction_of_the_word(
    values: tuple[float, float | None, float | None], metric: str, text: str
) -> None:
    assert change_text(*values, metric).text == text.replace(" %", f"{THIN}%")


@pytest.mark.parametrize(
    ("delta", "text"), [(3.42, "+3.4 %"), (-2.0, "−2.0 %"), (0.001, "0.00 %"), (-0.001, "0.00 %"), (-0.006, "−0.01 %")]
)
def test_without_a_word_the_sign_tells_the_direction_and_zero_has_none(delta: float, text: str) -> None:
    assert signed(delta) == text.replace(" %", f"{THIN}%")


@given(st.floats(-60, 60), st.floats(0, 40), st.floats(0, 40))
def test_no_sign_stands_against_its_word(delta: float, below: float, above: float) -> None:
    """Words or signs give the direction, never both."""
    change = change_text(delta, delta - below, delta + above)
    assert not {"−", "+"} & set(change.text)
    both = delta - below < 0 < delta + above
    assert (" slower" in change.interval and " faster" in change.interval) == both


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

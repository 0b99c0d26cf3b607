"""Figures as text: tables of values."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from app.domain import numbers
from app.domain.numbers import Figure
from app.domain.run import Metric
from app.web import templating


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0.01234, "0.01234 ms"),
        (9.3, "9.300 ms"),
        (412.34, "412.3 ms"),
        (999.96, "1,000 ms"),
        (9_876.4, "9,876 ms"),
        (9_999.9, "10,000 ms"),
        (10_000, "10.00 s"),
        (20_147.29, "20.15 s"),
        (31_310, "31.31 s"),
        (594_890, "594.9 s"),
        (1_234_567, "1,235 s"),
    ],
)
def test_step_time_is_in_ms_below_10_s_and_has_four_digits(milliseconds: float, text: str) -> None:
    assert numbers.step_time(milliseconds) == text.replace(" ", numbers.THIN)


@pytest.mark.parametrize(
    ("name", "metric", "figure"),
    [
        ("step_time_ms", Metric(20_150, 19_970, 20_330, 46), ("20.15", "s", "0.18", "19.97", "20.33")),
        ("step_time_ms", Metric(812.34, 801.0, 823.0, 46), ("812.3", "ms", "11.0", "801.0", "823.0")),
        ("tokens_per_s_per_gpu", Metric(8373.4, 8263, 8483, 46), ("8,373", "", "110", "8,263", "8,483")),
        ("tflops_per_gpu", Metric(193.14, 190.6, 195.6, 46), ("193.1", "", "2.5", "190.6", "195.6")),
        ("mfu_pct", Metric(19.53, 19.3, 19.7, 46), ("19.5", "%", "0.2", "19.3", "19.7")),
        ("mfu_pct", Metric(0.4242, 0.41, 0.43, 46), ("0.42", "%", "0.01", "0.41", "0.43")),
        ("peak_memory_gib", Metric(61.42, 61.42, 61.42, 2), ("61.4", "GiB", "", "61.4", "61.4")),
        ("peak_memory_gib", Metric(4.256, 4.25, 4.26, 2), ("4.26", "GiB", "<\u202f0.01", "4.25", "4.26")),
    ],
)
def test_a_metric_and_its_interval_share_unit_and_decimals(name: str, metric: Metric, figure: tuple[str, ...]) -> None:
    shown = numbers.figure(metric, name)
    assert (shown.value, shown.unit, shown.half, shown.low, shown.high) == figure


def test_an_interval_names_its_unit_once() -> None:
    assert Figure("20.15", "s", "0.18", "19.97", "20.33", 46, "").interval == "19.97 to 20.33\u202fs"


@pytest.mark.parametrize(
    ("value", "text"), [(19.53, "19.5 %"), (0.424, "0.42 %"), (0.9996, "1.0 %"), (100, "100.0 %"), (-3.41, "−3.4 %")]
)
def test_percent_has_one_decimal_and_two_below_one(value: float, text: str) -> None:
    assert numbers.percent(value) == text.replace(" ", numbers.THIN)


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (1e-5, "0.00001000"), (12.3456, "12.35"), (math.nan, "–")])
def test_other_numbers_have_four_digits(value: float, text: str) -> None:
    assert numbers.significant(value) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (20_000, "20.0 kB"), (41_200_000, "41.2 MB"), (5e9, "5.0 GB")],
)
def test_sizes_are_decimal(size: int, text: str) -> None:
    assert numbers.file_size(int(size)).replace(numbers.THIN, " ") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "just now"),
        (44, "just now"),
        (50, "1 min ago"),
        (3599, "59 min ago"),
        (2 * 3600, "2 h ago"),
        (86_400 * 3, "3 d ago"),
        (86_400 * 40, "2026-10-11"),
    ],
)
def test_times_are_relative_for_a_month(seconds: int, text: str) -> None:
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert numbers.ago(now - timedelta(seconds=seconds), now).replace(numbers.THIN, " ") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unset"),
        (True, "on"),
        (False, "off"),
        (4096, "4096"),
        (1.5, "1.5"),
        ("alltoall", "alltoall"),
        ("", "empty"),
        ((), "none"),
        (("attn", "moe_router"), "attn, moe_router"),
    ],
)
def test_contract_values_in_words(value: object, text: str) -> None:
    assert numbers.contract_value(value) == text  # type: ignore[arg-type]


def test_runs_of_a_sentence_are_links_and_nothing_else_is() -> None:
    text = templating.with_runs("It ran before: #12, #3, and <b>it's a#5</b> in `code`.")
    assert text == (
        'It ran before: <a href="/runs/12">#12</a>, <a href="/runs/3">#3</a>, and &lt;b&gt;it&#39;s a#5&lt;/b&gt; in '
        "<code>code</code>."
    )

"""Numbers, changes, costs, text and badges as people read them."""

import math
import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain import numbers
from app.domain.badges import Badge, badge_key, new_badge_secret, opens, svg
from app.domain.naming import TitledStack, distinct_names, short_names, stack_names, stack_title
from app.domain.numbers import (
    THIN,
    Figure,
    change_text,
    change_verb,
    change_words,
    days_text,
    gain_change,
    gpu_hours,
    signed,
    with_sign,
)
from app.domain.run import Metric, Stated, Value
from app.domain.text import COMMIT, RANGE, commit_address, name_end, range_address, read_template, shortened
from app.web import templating
from app.web.templating import environment


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


def test_two_levels_share_a_unit() -> None:
    texts = [numbers.levels_text(levels) for levels in ((205.94, 292.8), (9_900.0, 12_345.0))]
    assert texts == [f"205.9 and 292.8{numbers.THIN}ms", f"9.900 and 12.35{numbers.THIN}s"]


@pytest.mark.parametrize(
    ("name", "metric", "figure"),
    [
        ("step_time_ms", Metric(20_150, 19_970, 20_330, 46), ("20.15", "s", "± 0.18", "19.97", "20.33")),
        ("step_time_ms", Metric(812.34, 801.0, 823.0, 46), ("812.3", "ms", "± 11.0", "801.0", "823.0")),
        ("tokens_per_s_per_gpu", Metric(8373.4, 8263, 8483, 46), ("8,373", "", "± 110", "8,263", "8,483")),
        ("tflops_per_gpu", Metric(193.14, 190.6, 195.6, 46), ("193.1", "", "± 2.5", "190.6", "195.6")),
        ("mfu_pct", Metric(19.53, 19.3, 19.7, 46), ("19.5", "%", "± 0.2", "19.3", "19.7")),
        ("mfu_pct", Metric(0.4242, 0.41, 0.43, 46), ("0.42", "%", "± 0.01", "0.41", "0.43")),
        ("step_time_ms", Metric(1202, 923.4, 1566, 96), ("1,202", "ms", "(923 to 1,566)", "923", "1,566")),
        ("peak_memory_gib", Metric(61.42, 61.42, 61.42, 2), ("61.4", "GiB", "", "61.4", "61.4")),
        ("peak_memory_gib", Metric(4.256, 4.25, 4.26, 2), ("4.26", "GiB", "± <\u202f0.01", "4.25", "4.26")),
    ],
)
def test_a_metric_and_its_interval_share_unit_and_decimals(name: str, metric: Metric, figure: tuple[str, ...]) -> None:
    shown = numbers.figure(metric, name)
    assert (shown.value, shown.unit, shown.width, shown.low, shown.high) == figure


def test_an_interval_names_its_unit_once() -> None:
    assert Figure("20.15", "s", "± 0.18", "19.97", "20.33", 46, "").interval == "19.97 to 20.33\u202fs"


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
    assert numbers.contract_value(value) == text


def test_runs_of_a_sentence_are_links_and_nothing_else_is() -> None:
    text = templating.with_runs("It ran before: #12, #3, and <b>it's a#5</b> in `code`.")
    assert text == (
        'It ran before: <a href="/runs/12">#12</a>, <a href="/runs/3">#3</a>, and &lt;b&gt;it&#39;s a#5&lt;/b&gt; in '
        "<code>code</code>."
    )


TITLE = "Qwen3-30B-A3B · 16 × H100"


def stack(key: str, title: str = TITLE, project: str = "lab", **fields: Value) -> TitledStack:
    return TitledStack(key, title, project, fields)


def test_a_stack_without_neighbours_has_its_title() -> None:
    assert stack_names([stack("a", seq_len=4096), stack("b", title="DeepSeek-V3", seq_len=8192)]) == {
        "a": TITLE,
        "b": "DeepSeek-V3",
    }


def test_neighbours_are_distinguished_by_the_size_of_their_work() -> None:
    named = stack_names([stack("a", seq_len=4096, gbs=1024, mbs=1), stack("b", seq_len=8192, gbs=512, mbs=1)])
    assert named == {"a": f"{TITLE} · seq 4096 · GBS 1024", "b": f"{TITLE} · seq 8192 · GBS 512"}


def test_other_fields_are_named_if_they_distinguish_more() -> None:
    named = stack_names(
        [
            stack("a", task="pretrain", precision="bf16", cluster="x", pp=1),
            stack("b", task="sft", precision="fp8", cluster="x", pp=1),
            stack("c", task="sft", precision="fp8", cluster="y", pp=1),
        ]
    )
    endings = {key: name.removeprefix(f"{TITLE} · ") for key, name in named.items()}
    assert endings == {"a": "task pretrain · cluster x", "b": "task sft · cluster x", "c": "task sft · cluster y"}


def test_only_stacks_of_one_size_name_other_fields() -> None:
    named = stack_names([stack("a", gbs=512), stack("b", gbs=1024, vpp=2), stack("c", gbs=1024)])
    endings = {key: name.removeprefix(f"{TITLE} · ") for key, name in named.items()}
    assert endings == {"a": "GBS 512", "b": "GBS 1024 · VPP 2", "c": "GBS 1024 · VPP unknown"}


def test_unknown_values_are_shown_as_unknown() -> None:
    assert stack_names([stack("a", cluster=None), stack("b")]) == {
        "a": f"{TITLE} · cluster unset",
        "b": f"{TITLE} · cluster unknown",
    }
    assert stack_names([stack("a"), stack("b", precision="bf16")])["a"] == f"{TITLE} · precision unknown"


def test_another_project_is_named() -> None:
    named = stack_names([stack("a", project="lab"), stack("b", project="ci")])
    assert named == {"a": f"{TITLE} · project lab", "b": f"{TITLE} · project ci"}


def test_the_key_distinguishes_stacks_without_differing_fields() -> None:
    named = stack_names([stack("a" * 64, container="x"), stack("b" * 64, container="x")])
    assert named == {"a" * 64: f"{TITLE} · aaaaaaaa", "b" * 64: f"{TITLE} · bbbbbbbb"}


# --- A stack in one line.


def contract(**values: str | int) -> dict[str, Stated]:
    return {name: Stated(value, "metadata") for name, value in values.items()}


def test_a_stack_is_known_by_model_hardware_dispatcher_routing_and_container() -> None:
    whole = contract(
        model="Qwen3-30B-A3B", gpu="H100", gpus=16, dispatcher="hybridep", routing_mode="forced-balance",
        container="nvcr.io/nvidia/nemo:26.06@sha256:0f3c",
    )  # fmt: skip
    assert stack_title(whole) == "Qwen3-30B-A3B · 16 × H100 · hybridep · forced balance · nemo:26.06"
    assert stack_title(whole, dispatcher=False) == "Qwen3-30B-A3B · 16 × H100 · forced balance · nemo:26.06"


def test_unstated_values_are_unknown_or_omitted() -> None:
    assert stack_title({}) == "unknown model · unknown GPU"
    assert stack_title(contract(model="DSV3", gpus=64)) == "DSV3 · 64 × unknown GPU"


# --- Templates of commit links: accepted forms; only the commit is inserted.


def test_a_commit_is_quoted_at_its_placeholder() -> None:
    template = read_template(" https://github.com/org/repo/commit/{commit} ", COMMIT)
    assert commit_address(template, "0f3c2a9d") == "https://github.com/org/repo/commit/0f3c2a9d"
    assert commit_address(template, '"><b>/..') == "https://github.com/org/repo/commit/%22%3E%3Cb%3E%2F.."
    assert commit_address(template, "") == ""
    assert commit_address("", "0f3c2a9d") == ""


def test_a_range_needs_two_commits() -> None:
    template = read_template("https://github.com/org/repo/compare/{from}...{to}", RANGE)
    assert range_address(template, "a", "b") == "https://github.com/org/repo/compare/a...b"
    assert range_address(template, "a", "a") == ""
    assert range_address(template, "", "b") == ""


def test_a_stored_template_with_another_scheme_yields_no_link() -> None:
    assert commit_address("javascript:alert('{commit}')", "a") == ""


@pytest.mark.parametrize(
    "template",
    [
        "javascript:alert({commit})",
        "//host/{commit}",
        "https://{commit}",
        "https://{commit}.host/",
        "https://me@host/{commit}",
        "https://host/",
        "https://host/{sha}",
        "https://host/{commit}/{branch}",
        "https://host/{commit",
        "https://host/a b/{commit}",
        "https://host/'{commit}",
        "https://[host/{commit}",
        "https://host/{commit}" + "a" * 500,
    ],
)
def test_an_invalid_template_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        read_template(template, COMMIT)


STACK, OTHER = "1a" * 32, "2b" * 32
SVG = "{http://www.w3.org/2000/svg}"


def test_it_says_in_words_what_it_shows() -> None:
    picture = ET.fromstring(svg(Badge("threewalls", "regression +9.4 %", "regression")))  # noqa: S314  our own text
    assert (picture.get("role"), picture.get("aria-label")) == ("img", "threewalls: regression +9.4 %")
    assert picture.findtext(f"{SVG}title") == "threewalls: regression +9.4 %"
    assert [text.text for text in picture.iter(f"{SVG}text")] == ["threewalls", "regression +9.4 %"]


@pytest.mark.parametrize(
    "evil", ["<script>alert(1)</script>", '"/><image href="x"/>', "a&b]]>", "x\n\x00\ufffe<", "'\" onload='x"]
)
def test_untrusted_content_stays_text(evil: str) -> None:
    picture = ET.fromstring(svg(Badge(evil, evil, evil)))  # noqa: S314
    tags = {element.tag.removeprefix(SVG) for element in picture.iter()}
    assert tags == {"svg", "title", "path", "rect", "g", "text"}
    assert not any(name.startswith("on") or name in ("href", "style") for e in picture.iter() for name in e.attrib)


def test_it_stays_small() -> None:
    assert float(ET.fromstring(svg(Badge("l" * 500, "W" * 500))).get("width", "")) < 1000  # noqa: S314


def test_a_key_opens_its_stack_until_the_secret_is_replaced() -> None:
    secret = new_badge_secret()
    key = badge_key(secret, STACK)
    assert opens(key, secret, STACK)
    assert not opens(key, secret, OTHER)
    assert not opens(key, new_badge_secret(), STACK)
    assert not opens("", secret, STACK)
    assert not opens("ключ", secret, STACK)
    assert not opens(badge_key("", STACK), "", STACK)


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
        ((-2.0, -3.8, -0.03), "step_time_ms", "2.0 % faster (0.03 to 3.8)"),
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
    ("delta", "metric", "up_to", "text"),
    [
        (9.84, "step_time_ms", True, "up to 9.8 % slower"),
        (-2.0, "step_time_ms", False, "2.0 % faster"),
        (None, "step_time_ms", True, "slower"),
        (3.3, "peak_memory_gib", False, "3.3 % more memory"),
        (0.0, "peak_memory_gib", True, "the same memory"),
        (None, "peak_memory_gib", False, "more memory"),
        (1.2, "lm_loss", False, "1.2 % higher loss"),
    ],
)
def test_a_change_in_words_names_its_metric(delta: float | None, metric: str, up_to: bool, text: str) -> None:
    assert change_words(delta, metric, up_to=up_to) == text.replace(" %", f"{THIN}%")


@pytest.mark.parametrize(
    ("delta", "text"), [(3.42, "+3.4 %"), (-2.0, "−2.0 %"), (0.001, "0.00 %"), (-0.001, "0.00 %"), (-0.006, "−0.01 %")]
)
def test_without_a_word_the_sign_sets_the_direction_and_zero_has_none(delta: float, text: str) -> None:
    assert signed(delta) == text.replace(" %", f"{THIN}%")


@given(st.floats(-60, 60), st.floats(0, 40), st.floats(0, 40))
@settings(deadline=None)
def test_no_sign_contradicts_its_word(delta: float, below: float, above: float) -> None:
    """Words or signs give the direction, never both."""
    change = change_text(delta, delta - below, delta + above)
    assert not {"−", "+"} & set(change.text)
    both = delta - below < 0 < delta + above
    assert (" slower" in change.interval and " faster" in change.interval) == both


@pytest.mark.parametrize(
    ("metric", "is_past", "of_many", "text"),
    [
        ("step_time_ms", False, False, "is 5.0 % slower"),
        ("step_time_ms", True, True, "were 5.0 % slower"),
        ("peak_memory_gib", False, False, "needs 5.0 % more memory"),
        ("peak_memory_gib", True, False, "needed 5.0 % more memory"),
        ("lm_loss", False, False, "has 5.0 % higher loss"),
    ],
)
def test_the_verb_of_a_change_fits_its_metric(metric: str, text: str, *, is_past: bool, of_many: bool) -> None:
    verb = change_verb(metric, is_past=is_past, of_many=of_many)
    assert f"{verb} {change_words(5.0, metric)}" == text.replace(" %", f"{THIN}%")


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (0.02, "under 0.1"),
        (0.433, "0.43"),
        (0.953, "0.95"),
        (0.997, "1.0"),
        (2.64, "2.6"),
        (41.3, "41"),
        (1180.0, "1,180"),
    ],
)
def test_a_cost_is_rounded_like_an_estimate(hours: float, text: str) -> None:
    assert gpu_hours(hours) == text


def test_every_verdict_has_a_word_a_shape_and_a_colour_of_its_own() -> None:
    ui = environment().globals["ui"]
    decisions = ("regression", "improvement", "no_change", "inconclusive", "no_baseline", "failed")
    badges = [str(ui.verdict(decision)) for decision in decisions]
    for part in (r'class="badge ([\w-]+)"', r"<(?:path|circle) (.+?)/>", r"</svg>\s*([\w ]+)<"):
        result = [re.search(part, badge) for badge in badges]
        assert len({match and match.group() for match in result}) == 6
    experiment = str(ui.verdict("regression", ab=True))
    assert "A/B slower" in experiment
    assert ">regression<" not in experiment


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [(1.25, 1, "+1.2"), (-1_234.5, 0, "−1,234"), (0.0, 3, "0.000"), (-0.0004, 3, "0.000"), (-0.05, 2, "−0.05")],
)
def test_a_difference_has_its_sign(value: float, decimals: int, text: str) -> None:
    assert with_sign(value, decimals) == text


def test_a_gain_of_throughput_is_a_change_of_step_time() -> None:
    """25 % more throughput is 20 % less step time, and 20 % less throughput is 25 % more step time."""
    assert gain_change(25.0, 0.0, 100.0).text == "20.0\u202f% faster (0.0 to 50.0)"
    assert gain_change(-20.0).text == "25.0\u202f% slower"
    assert gain_change(10.0, 10.0, 10.0).interval == ""


# --- Texts that are shortened for a place.


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("seq 4096 · GBS 1024", 22, "seq 4096 · GBS 1024"),
        ("mcore_te_tp2_pp1_8experts_overlap dgx_h100", 21, "mcore_te_t…p dgx_h100"),
        ("abcdef", 5, "ab…ef"),
        ("abcdef", 6, "abcdef"),
    ],
)
def test_start_and_end_of_a_name_stay(text: str, most: int, expected: str) -> None:
    assert shortened(text, most) == expected


@pytest.mark.parametrize("most", range(3, 60))
def test_a_shortened_name_never_exceeds_its_place(most: int) -> None:
    name = "moe_mcore_te_tp4_ep2_etp2_pp2_scoped_cudagraph dgx_gb200"
    short = shortened(name, most)
    assert len(short) <= most
    assert name.startswith(short.partition("…")[0])
    assert name.endswith(short.partition("…")[2])


def test_a_short_name_has_what_differs() -> None:
    names = [
        f"{model} · {gpus} × {gpu}" for model, gpus, gpu in (("12L-h512-8e", 8, "H100"), ("13L-h512-4e", 8, "A100"))
    ]
    assert short_names(names) == ["12L-8e · H100", "13L-4e · A100"]
    assert short_names(["seq 4096 · GBS 8", "seq 8192 · GBS 4"]) == ["seq 4096 · GBS 8", "seq 8192 · GBS 4"]
    assert short_names(["a-b-c", "a-b"]) == ["a-b-c", "a-b"], "pieces that do not correspond stay"
    assert short_names(["a-b"]) == ["a-b"]


def test_names_end_where_they_differ() -> None:
    assert distinct_names(["moe · seq 4096 · graph impl local", "moe · seq 8192"]) == ["seq 4096", "seq 8192"]
    needed = ["a · 1", "b · 2 · x", "b · 2 · y"]
    assert distinct_names(needed) == needed
    assert distinct_names(["a · 1"]) == ["a · 1"]


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        ((2026, 9, 13), (2026, 9, 17), "13 to 17 Sep"),
        ((2026, 8, 28), (2026, 9, 4), "28 Aug to 4 Sep"),
        ((2025, 12, 31), (2026, 1, 2), "31 Dec 2025 to 2 Jan 2026"),
        ((2026, 9, 4), (2026, 9, 4), "4 Sep"),
    ],
)
def test_a_period_names_months_and_years_where_they_differ(
    first: tuple[int, int, int], last: tuple[int, int, int], text: str
) -> None:
    assert days_text(datetime(*first, tzinfo=UTC), datetime(*last, tzinfo=UTC)) == text


def test_the_end_of_a_long_name_starts_with_a_word() -> None:
    name = "mcore_te_tp2_pp1_te_8experts2parallel_overlap_grad_reduce_param_gather_groupedGEMM dgx_gb200 2026-08-15"
    assert name[-name_end(name) :] == "groupedGEMM dgx_gb200 2026-08-15"
    assert name_end("x" * 90) == 28

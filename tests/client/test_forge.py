"""What is said of runs: the state, the marker by which a comment is found again, what fits into it."""

import pytest

from app.client.forge import MOST_BYTES, State, bounded, is_marked, message, newest_run
from tests.client.forge_runs import fine, said, undecided


@pytest.mark.parametrize(
    ("exit_code", "state"),
    [(0, "success"), (1, "failure"), (3, "failure"), (4, "neutral"), (5, "neutral"), (None, "neutral"), (9, "neutral")],
)
def test_the_state_is_that_of_the_exit_code_and_never_green_without_a_verdict(
    exit_code: int | None, state: str
) -> None:
    assert said(exit_code=exit_code).state == state


def test_one_run_is_said_as_its_report() -> None:
    one = message([said()])
    assert one.comment == f"{one.marker} run=41 -->\n{said().markdown}"
    assert (one.state, one.title, one.url) == (State.FAILURE, said().headline, said().url)
    assert one.name == "threewalls (1a2b3c4d5e6f)"


def test_several_runs_are_one_table_with_the_worst_first() -> None:
    one = message([fine(), undecided(), said()])
    lines = one.text.splitlines()
    assert one.state is State.FAILURE
    assert lines[0] == "**Regression or failed run: 1 failure, 1 neutral, 1 success**"
    assert lines[2:4] == ["| run | verdict |", "| --- | --- |"]
    assert [line[: line.index("](")] for line in lines[4:7]] == [
        f"| [nightly \\| `x` (run {run})" for run in (41, 39, 40)
    ]
    assert "| ↘ no baseline: this is the first run of its stack |" in lines[5]
    assert [line for line in lines if line.startswith("<details>")].count("<details><summary>Run 41</summary>") == 1


def test_a_run_without_baseline_among_good_ones_is_not_green() -> None:
    assert message([fine(), undecided()]).state is State.NEUTRAL


def test_the_marker_is_of_the_stacks_in_any_order_and_of_the_key_where_one_is_given() -> None:
    assert message([fine(), said()]).marker == message([said(42), fine(43)]).marker
    assert message([fine()]).marker != message([said()]).marker
    assert message([fine()], "nightly").marker == message([said()], "nightly").marker


@pytest.mark.parametrize(
    ("keys", "joint"),
    [
        (["perf"], "perf"),
        (["perf", "perf #2", "perf #3"], "perf"),
        (["perf #3", "perf #2", "other"], "other,perf #2"),
        (["perf", ""], ""),
    ],
)
def test_the_key_of_several_runs_is_that_of_their_jobs_however_many_each_makes(keys: list[str], joint: str) -> None:
    assert message([said(number, key=key) for number, key in enumerate(keys, 1)]).key == joint


def test_a_marker_cannot_be_left_by_a_name() -> None:
    one = message([said()], "--> <b>hello</b> -->")
    assert one.marker.count(">") == 0
    assert one.comment.split("\n")[0].endswith(" run=41 -->")


def test_a_comment_that_quotes_ours_is_not_ours() -> None:
    one = message([said()])
    assert is_marked(one.comment, one.marker)
    assert not is_marked(f"> {one.comment}", one.marker)
    assert not is_marked(message([said()], "other").comment, one.marker)
    assert newest_run(one.comment, one.marker) == 41
    assert newest_run(f"{one.marker} run=what -->", one.marker) == 0


def test_a_text_that_is_too_long_loses_what_is_folded_first() -> None:
    folded = "<details><summary>1</summary>\n" + "é" * MOST_BYTES + "\n</details>\n"
    assert bounded(f"**slow**\n{folded}[run](u)\n", "https://x") == "**slow**\n[run](u)\n"


def test_a_text_that_is_too_long_without_it_is_cut_at_a_line_and_says_where_the_rest_is() -> None:
    text = bounded("é" * 99 + "\n" + ("é" * 99 + "\n") * 1000, "https://x/runs/1")
    assert len(text.encode()) <= MOST_BYTES
    assert text.endswith("é\n\nThe rest is at https://x/runs/1\n")


def test_an_honest_text_is_as_it_was() -> None:
    assert bounded(said().markdown, "https://x") == said().markdown

"""Messages about runs: the state, the marker that identifies a comment, and the size limit."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.client.forge import (
    MOST_BYTES,
    ForgeOptions,
    State,
    bounded,
    github_target,
    gitlab_target,
    is_marked,
    message,
    newest_run,
    read_event,
)
from app.errors import UsageError
from tests.client.forge_runs import fine, judged, undecided


@pytest.mark.parametrize(
    ("exit_code", "state"),
    [(0, "success"), (1, "failure"), (3, "failure"), (4, "neutral"), (5, "neutral"), (None, "neutral"), (9, "neutral")],
)
def test_the_state_is_that_of_the_exit_code_and_never_green_without_a_verdict(
    exit_code: int | None, state: str
) -> None:
    assert judged(exit_code=exit_code).state == state


def test_one_run_is_posted_as_its_report() -> None:
    comment = message([judged()])
    assert comment.comment == f"{comment.marker} run=41 regression -->\n{judged().markdown}"
    assert (comment.state, comment.title, comment.url) == (State.FAILURE, judged().headline, judged().url)
    assert comment.name == "threewalls (1a2b3c4d5e6f)"


def test_several_runs_are_one_table_with_the_worst_first() -> None:
    comment = message([fine(), undecided(), judged()])
    lines = comment.text.splitlines()
    assert comment.state is State.FAILURE
    assert lines[0] == "**1 regression; 1 no baseline; 1 no change**"
    assert lines[2:4] == ["| run | verdict |", "| --- | --- |"]
    assert [line[: line.index("](")] for line in lines[4:7]] == [
        f"| [nightly \\| `x` (run {run})" for run in (41, 39, 40)
    ]
    assert "| ↘ no baseline" in lines[5]
    assert [line for line in lines if line.startswith("<details>")].count("<details><summary>Run 41</summary>") == 1


def test_an_unconfirmed_run_is_not_called_a_regression_among_others() -> None:
    assert message([fine(), judged(headline="slower, unconfirmed · 9.4 % slower."), fine(43)]).title == (
        "1 slower, unconfirmed; 2 no change"
    )


def test_a_run_without_baseline_among_good_ones_is_not_green() -> None:
    assert message([fine(), undecided()]).state is State.NEUTRAL


def test_the_marker_is_of_the_stacks_in_any_order_and_of_the_key_where_one_is_given() -> None:
    assert message([fine(), judged()]).marker == message([judged(42), fine(43)]).marker
    assert message([fine()]).marker != message([judged()]).marker
    assert message([fine()], "nightly").marker == message([judged()], "nightly").marker


@pytest.mark.parametrize(
    ("keys", "joint"),
    [
        (["perf"], "perf"),
        (["perf", "perf #2", "perf #3"], "perf"),
        (["perf #3", "perf #2", "other"], "other,perf #2"),
        (["perf", ""], ""),
    ],
)
def test_the_key_of_several_runs_combines_those_of_their_jobs(keys: list[str], joint: str) -> None:
    assert message([judged(number, key=key) for number, key in enumerate(keys, 1)]).key == joint


def test_a_marker_cannot_be_left_by_a_name() -> None:
    comment = message([judged()], "--> <b>hello</b> -->")
    assert comment.marker.count(">") == 0
    assert comment.comment.split("\n")[0].endswith(" run=41 regression -->")


def test_a_comment_that_quotes_ours_is_not_ours() -> None:
    comment = message([judged()])
    assert is_marked(comment.comment, comment.marker)
    assert not is_marked(f"> {comment.comment}", comment.marker)
    assert not is_marked(message([judged()], "other").comment, comment.marker)
    assert newest_run(comment.comment, comment.marker) == 41
    assert newest_run(f"{comment.marker} run=what -->", comment.marker) == 0


def test_a_text_that_is_too_long_loses_folded_parts_first() -> None:
    folded = "<details><summary>1</summary>\n" + "é" * MOST_BYTES + "\n</details>\n"
    assert bounded(f"**slow**\n{folded}[run](u)\n", "https://x") == "**slow**\n[run](u)\n"


def test_a_text_that_is_too_long_without_it_is_cut_at_a_line_and_says_where_the_rest_is() -> None:
    text = bounded("é" * 99 + "\n" + ("é" * 99 + "\n") * 1000, "https://x/runs/1")
    assert len(text.encode()) <= MOST_BYTES
    assert text.endswith("é\n\nThe rest is at https://x/runs/1\n")


def test_an_honest_text_is_as_it_was() -> None:
    assert bounded(judged().markdown, "https://x") == judged().markdown


# --- Where a report is posted, according to the environment of the job.


SHA, MERGE = "5f3a" * 10, "aaaa" * 10
ACTIONS = {
    "GITHUB_REPOSITORY": "moe/training",
    "GITHUB_API_URL": "https://api.github.com",
    "GITHUB_SHA": MERGE,
    "GITHUB_REF": "refs/pull/12/merge",
    "GITHUB_TOKEN": "ghs_x",
}
PULL = {"pull_request": {"number": 12, "head": {"sha": SHA}}}
GITLAB = {
    "CI_API_V4_URL": "https://git.example.org/api/v4",
    "CI_PROJECT_ID": "41",
    "CI_PIPELINE_ID": "9001",
    "CI_COMMIT_SHA": SHA,
    "CI_MERGE_REQUEST_IID": "7",
    "CI_MERGE_REQUEST_PROJECT_ID": "41",
    "CI_JOB_TOKEN": "glcbt-x",
}


def test_a_pull_request_is_reported_on_its_head_and_not_on_the_trial_merge() -> None:
    place = github_target(ACTIONS, PULL)
    assert (place.api, place.path) == ("https://api.github.com", "/repos/moe/training")
    assert (place.change, place.sha, place.token) == (12, SHA, "ghs_x")


def test_a_push_has_a_commit_and_no_change() -> None:
    place = github_target(ACTIONS | {"GITHUB_REF": "refs/heads/main"}, {})
    assert (place.change, place.sha) == (0, MERGE)


def test_a_comment_on_a_change_and_a_job_without_its_event_know_the_change_and_no_commit() -> None:
    commented = {"issue": {"number": 12, "pull_request": {"url": "x"}}}
    for env, event in ((ACTIONS | {"GITHUB_REF": "refs/heads/main"}, commented), (ACTIONS, {})):
        place = github_target(env, event)
        assert (place.change, place.sha) == (12, ""), "GITHUB_SHA is main's, or a merge that nobody sees"
    with pytest.raises(UsageError, match="--sha"):
        github_target(ACTIONS | {"GITHUB_REF": "refs/heads/main", "GITHUB_SHA": ""}, {})


def test_a_job_started_by_another_workflow_reports_on_the_change_of_that_workflow() -> None:
    event: dict[str, Any] = {"workflow_run": {"head_sha": SHA, "pull_requests": [{"number": 3, "head": {"sha": SHA}}]}}
    place = github_target(ACTIONS | {"GITHUB_REF": "refs/heads/main"}, event)
    assert (place.change, place.sha) == (3, SHA)
    event["workflow_run"]["pull_requests"] = []  # from a fork
    assert github_target(ACTIONS | {"GITHUB_REF": "refs/heads/main"}, event).sha == SHA


def test_what_is_stated_wins() -> None:
    place = github_target(
        ACTIONS | {"THREEWALLS_FORGE_TOKEN": "own"}, PULL, ForgeOptions("https://ghe.example.org/", "a/b", 5, MERGE)
    )
    assert (place.api, place.path, place.change, place.sha) == (
        "https://ghe.example.org/api/v3", "/repos/a/b", 5, MERGE,
    )  # fmt: skip
    assert place.token == "own"
    assert "own" not in repr(place)


@pytest.mark.parametrize(
    ("url", "api"),
    [
        ("https://github.com", "https://api.github.com"),
        ("https://api.github.com/", "https://api.github.com"),
        ("https://ghe.example.org/api/v3", "https://ghe.example.org/api/v3"),
        ("https://octo.ghe.com", "https://api.octo.ghe.com"),
        ("https://api.octo.ghe.com", "https://api.octo.ghe.com"),
    ],
)
def test_an_address_of_github_means_its_api(url: str, api: str) -> None:
    assert github_target(ACTIONS, PULL, ForgeOptions(url)).api == api


def test_the_api_address_of_the_job_is_used_unchanged() -> None:
    env = ACTIONS | {"GITHUB_API_URL": "https://api.octo.ghe.com/"}
    assert github_target(env, PULL).api == "https://api.octo.ghe.com"


@pytest.mark.parametrize(
    ("env", "stated", "says"),
    [
        ({"GITHUB_REPOSITORY": ""}, ForgeOptions(), "--repo"),
        ({}, ForgeOptions(repository="a/b/../c"), "--repo"),
        ({"GITHUB_TOKEN": ""}, ForgeOptions(), "GITHUB_TOKEN"),
        ({}, ForgeOptions(sha="HEAD"), "--sha"),
        ({}, ForgeOptions("ftp://x"), "--forge-url"),
        ({}, ForgeOptions("https://me:secret@x"), "without a password"),
        ({"GITHUB_TOKEN": "a\nb"}, ForgeOptions(), "characters"),
    ],
)
def test_what_is_missing_is_named(env: dict[str, str], stated: ForgeOptions, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        github_target(ACTIONS | env, PULL, stated)


def test_a_merge_request_is_known_with_its_pipeline() -> None:
    place = gitlab_target(GITLAB)
    assert (place.api, place.path, place.status_path) == (
        "https://git.example.org/api/v4", "/projects/41", "/projects/41",
    )  # fmt: skip
    assert (place.change, place.sha, place.pipeline, place.is_job_token) == (7, SHA, 9001, True)


def test_a_pipeline_of_the_merged_result_is_reported_on_the_head_of_the_change() -> None:
    place = gitlab_target(GITLAB | {"CI_COMMIT_SHA": MERGE, "CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": SHA})
    assert (place.sha, place.pipeline) == (SHA, 0)


def test_a_change_from_a_fork_is_of_one_project_and_its_commit_of_another() -> None:
    place = gitlab_target(GITLAB | {"CI_PROJECT_ID": "99", "GITLAB_TOKEN": "glpat-x"})
    assert (place.path, place.status_path, place.is_job_token) == ("/projects/41", "/projects/99", False)


def test_a_self_hosted_gitlab_and_a_project_by_its_path() -> None:
    place = gitlab_target(GITLAB, ForgeOptions("https://git.example.org", "group/sub/name", 9, MERGE))
    assert (place.api, place.path) == ("https://git.example.org/api/v4", "/projects/group%2Fsub%2Fname")
    assert (place.change, place.pipeline) == (9, 0)


def test_the_event_is_read_from_its_file_and_an_invalid_one_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps(PULL))
    assert read_event({"GITHUB_EVENT_PATH": str(file)}) == PULL
    file.write_text("[1]")
    assert read_event({"GITHUB_EVENT_PATH": str(file)}) == {}
    assert read_event({}) == {}

"""Where a report belongs, as jobs' environments say it."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.client.errors import UsageError
from app.client.forge import ForgeOptions, github_target, gitlab_target, read_event

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


def test_a_job_that_another_workflow_started_reports_on_that_ones_change() -> None:
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


def test_the_api_that_the_job_names_is_taken_as_it_stands() -> None:
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


def test_a_gitlab_of_ones_own_and_a_project_by_its_path() -> None:
    place = gitlab_target(GITLAB, ForgeOptions("https://git.example.org", "group/sub/name", 9, MERGE))
    assert (place.api, place.path) == ("https://git.example.org/api/v4", "/projects/group%2Fsub%2Fname")
    assert (place.change, place.pipeline) == (9, 0)


def test_the_event_is_read_from_its_file_and_one_that_is_none_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps(PULL))
    assert read_event({"GITHUB_EVENT_PATH": str(file)}) == PULL
    file.write_text("[1]")
    assert read_event({"GITHUB_EVENT_PATH": str(file)}) == {}
    assert read_event({}) == {}

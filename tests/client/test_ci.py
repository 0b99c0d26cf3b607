"""Variables as the systems' own documentation has them, and what an upload says of the job then."""

from typing import Any

import pytest

from app.client.ci import CiJob, ci_job

GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "lab/train",
    "GITHUB_RUN_ID": "17",
    "GITHUB_RUN_NUMBER": "5",
    "GITHUB_RUN_ATTEMPT": "2",
    "GITHUB_WORKFLOW": "nightly",
    "GITHUB_JOB": "perf",
    "GITHUB_REF_NAME": "main",
    "GITHUB_REF_TYPE": "branch",
    "GITHUB_SHA": "aaaa111",
    "GITHUB_REF": "refs/heads/main",
    "GITHUB_EVENT_NAME": "push",
}
GITLAB = {
    "GITLAB_CI": "true",
    "CI_SERVER_HOST": "gitlab.example.org",
    "CI_JOB_ID": "991",
    "CI_JOB_NAME": "perf",
    "CI_PIPELINE_IID": "12",
    "CI_COMMIT_SHA": "bbbb222",
    "CI_COMMIT_TIMESTAMP": "2026-11-20T10:00:00+01:00",
    "CI_JOB_URL": "https://gitlab.example.org/lab/train/-/jobs/991",
    "CI_PROJECT_PATH": "lab/train",
}
JENKINS = {
    "JENKINS_URL": "https://ci.example.org/",
    "BUILD_URL": "https://ci.example.org/job/perf/8/",
    "JOB_NAME": "perf",
    "BUILD_NUMBER": "8",
    "GIT_COMMIT": "cccc333",
}
BUILDKITE = {
    "BUILDKITE": "true",
    "BUILDKITE_BRANCH": "main",
    "BUILDKITE_COMMIT": "dddd4444",
    "BUILDKITE_PULL_REQUEST": "false",
    "BUILDKITE_BUILD_URL": "https://buildkite.com/lab/perf/builds/3",
    "BUILDKITE_BUILD_NUMBER": "3",
    "BUILDKITE_PIPELINE_SLUG": "perf",
    "BUILDKITE_JOB_ID": "0190-ab",
}


def job(env: dict[str, str], event: dict[str, Any] | None = None) -> CiJob:
    found = ci_job(env, event)
    assert found is not None
    return found


def pull(full_name: str | None, branch: str = "faster") -> dict[str, Any]:
    repo = None if full_name is None else {"full_name": full_name}
    return {"pull_request": {"number": 42, "head": {"ref": branch, "sha": "feed555", "repo": repo}}}


def test_outside_of_ci_nothing_is_said() -> None:
    assert ci_job({"HOME": "/root", "CI": "true"}) is None


def test_a_push_on_github() -> None:
    event = {"head_commit": {"id": "aaaa111", "timestamp": "2026-11-20T09:00:00Z"}}
    found = job(GITHUB, event)
    assert found.metadata() == {
        "job": "nightly/perf",
        "name": "nightly #5",
        "branch": "main",
        "commit": "aaaa111",
        "commit_time": "2026-11-20T09:00:00Z",
        "ci_url": "https://github.com/lab/train/actions/runs/17/attempts/2",
    }
    assert (found.attempt, found.key) == (2, "github:lab/train:17:2:perf")


def test_a_pull_request_on_github_is_its_head_and_not_the_trial_merge() -> None:
    env = GITHUB | {"GITHUB_REF_NAME": "42/merge", "GITHUB_HEAD_REF": "faster"}
    found = job(env, pull("lab/train"))
    assert (found.branch, found.commit, found.change) == ("faster", "feed555", "42")
    assert found.metadata()["tags"] == ["change-42"]


@pytest.mark.parametrize(("owner", "branch"), [("mara/train", "mara:main"), (None, "fork:main")])
def test_a_fork_s_main_is_not_our_main(owner: str | None, branch: str) -> None:
    assert job(GITHUB, pull(owner, "main")).branch == branch


def test_a_workflow_that_follows_another_is_about_the_other_s_commit() -> None:
    caller = {
        "head_branch": "main",
        "head_sha": "feed555",
        "head_repository": {"full_name": "mara/train"},
        "pull_requests": [],
    }
    found = job(GITHUB, {"workflow_run": caller})
    assert (found.branch, found.commit) == ("mara:main", "feed555")


@pytest.mark.parametrize("name", ["issue_comment", "issues", "repository_dispatch", "check_run", ""])
def test_an_event_that_is_about_no_ref_states_neither_main_nor_its_commit(name: str) -> None:
    """Such jobs check out a change by themselves, while GITHUB_REF and GITHUB_SHA are those of main."""
    event = {"issue": {"number": 42, "pull_request": {"url": "https://api.github.com/x"}}}
    found = job(GITHUB | {"GITHUB_EVENT_NAME": name}, event)
    assert (found.branch, found.commit, found.change) == ("", "", "42")
    assert "--set" in found.doubt


@pytest.mark.parametrize("ref", [{"GITHUB_REF": "refs/pull/42/merge"}, {"GITHUB_REF": ""}])
def test_a_pull_request_without_its_event_states_no_trial_merge_and_no_branch(ref: dict[str, str]) -> None:
    """`docker run -e GITHUB_...`: nothing says whether it is of a fork."""
    env = GITHUB | {"GITHUB_REF_NAME": "42/merge", "GITHUB_HEAD_REF": "main", "GITHUB_EVENT_NAME": "pull_request"} | ref
    found = job(env)
    assert (found.branch, found.commit, found.change) == ("", "", "42")
    assert "GITHUB_EVENT_PATH" in found.doubt


def test_a_merge_queue_names_its_change() -> None:
    env = GITHUB | {"GITHUB_REF_NAME": "gh-readonly-queue/main/pr-42-0a1b"}
    assert job(env).change == "42"


def test_a_tag_is_no_branch() -> None:
    found = job(GITHUB | {"GITHUB_REF_TYPE": "tag", "GITHUB_REF_NAME": "v1.2"})
    assert (found.branch, found.metadata()["tags"]) == ("", ["v1.2"])


def test_a_branch_on_gitlab() -> None:
    found = job(GITLAB | {"CI_COMMIT_BRANCH": "main"})
    assert (found.name, found.branch, found.commit) == ("perf #12", "main", "bbbb222")
    assert found.commit_time == "2026-11-20T10:00:00+01:00"
    assert found.key == "gitlab:gitlab.example.org:991"


def test_a_merge_request_on_gitlab_is_its_source_and_not_the_merged_result() -> None:
    request = {
        "CI_MERGE_REQUEST_IID": "9",
        "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "main",
        "CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": "feed555",
        "CI_MERGE_REQUEST_SOURCE_PROJECT_PATH": "mara/train",
        "CI_MERGE_REQUEST_PROJECT_PATH": "lab/train",
    }
    found = job(GITLAB | request)
    assert (found.branch, found.commit, found.commit_time, found.change) == ("mara:main", "feed555", "", "9")


def test_jenkins_on_a_branch_and_on_a_change() -> None:
    assert job(JENKINS | {"GIT_BRANCH": "origin/main"}).branch == "main"
    change = {"BRANCH_NAME": "PR-7", "CHANGE_ID": "7", "CHANGE_BRANCH": "main", "CHANGE_FORK": "mara"}
    found = job(JENKINS | change)
    assert (found.branch, found.change, found.ci_url) == ("mara:main", "7", "https://ci.example.org/job/perf/8/")


@pytest.mark.parametrize(
    ("branch", "theirs", "stated"),
    [
        ("main", "https://github.com/mara/train.git", "mara:main"),
        ("mara:main", "https://github.com/mara/train.git", "mara:main"),
        ("faster", "git://github.com/lab/train.git", "faster"),
        ("main", "", ""),
    ],
)
def test_a_fork_on_buildkite_is_none_of_ours_whatever_the_pipeline_s_settings(
    branch: str, theirs: str, stated: str
) -> None:
    pull = {"BUILDKITE_PULL_REQUEST": "7", "BUILDKITE_PULL_REQUEST_REPO": theirs, "BUILDKITE_BRANCH": branch}
    found = job(BUILDKITE | pull | {"BUILDKITE_REPO": "git@github.com:lab/train.git"})
    assert found.branch == stated
    assert bool(found.doubt) == (not stated)


def test_what_is_no_branch_is_not_stated_as_one() -> None:
    assert job(JENKINS | {"GIT_BRANCH": "detached"}).branch == ""
    tag = job(BUILDKITE | {"BUILDKITE_BRANCH": "v1", "BUILDKITE_TAG": "v1"})
    assert (tag.branch, tag.metadata()["tags"]) == ("", ["v1"])


def test_buildkite_counts_retries_and_says_false_for_no_change() -> None:
    found = job(BUILDKITE | {"BUILDKITE_RETRY_COUNT": "1", "BUILDKITE_COMMIT": "HEAD"})
    assert (found.attempt, found.change, found.commit) == (2, "", "")
    assert found.ci_url == "https://buildkite.com/lab/perf/builds/3#0190-ab"
    assert job(BUILDKITE | {"BUILDKITE_PULL_REQUEST": "7"}).change == "7"


def test_a_requeued_slurm_job_is_another_attempt() -> None:
    slurm = {"SLURM_JOB_ID": "88", "SLURM_JOB_NAME": "moe", "SLURM_CLUSTER_NAME": "west"}
    first, second = job(slurm), job(slurm | {"SLURM_RESTART_COUNT": "1"})
    assert (first.name, first.attempt, second.attempt) == ("moe 88", 1, 2)
    assert first.key != second.key


@pytest.mark.parametrize(
    ("env", "called"),
    [
        (GITHUB, "nightly/perf"),
        (GITLAB | {"CI_JOB_NAME": "perf: [H100]"}, "perf: [H100]"),
        (JENKINS | {"JOB_NAME": "perf/PR-7"}, "perf/PR-7"),
        (BUILDKITE, "perf"),
        (BUILDKITE | {"BUILDKITE_LABEL": ":fire: H100"}, "perf/:fire: H100"),
        (BUILDKITE | {"BUILDKITE_LABEL": ":fire: H100", "BUILDKITE_STEP_KEY": "h100"}, "perf/h100"),
    ],
)
def test_what_a_job_is_called_from_change_to_change(env: dict[str, str], called: str) -> None:
    assert job(env).job == called


def test_a_scheduler_s_job_inside_a_ci_job_is_the_latter() -> None:
    assert job(GITLAB | {"SLURM_JOB_ID": "88"}).system == "GitLab CI"

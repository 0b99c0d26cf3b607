"""Variables as documented by each CI system, and the resulting metadata of an upload."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.client.ci import CiJob, ci_job, surrounding_job
from tests.client.answering import Answer, answering
from tests.client.ci_files import ACTION, ON_COMMENT, TEMPLATE, play_action, play_on_comment, play_template
from tests.client.commands import Done, threewalls
from tests.embedded.processes import Running
from tests.services import github_server, gitlab_server
from tests.services.github_server import APP, FORK, PERSON, running_github
from tests.services.gitlab_server import JOB, OWN, running_gitlab
from tests.training_logs import training_log
from threewalls import Client

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
    result = ci_job(env, event)
    assert result is not None
    return result


def pull(full_name: str | None, branch: str = "faster") -> dict[str, Any]:
    repo = None if full_name is None else {"full_name": full_name}
    return {"pull_request": {"number": 42, "head": {"ref": branch, "sha": "feed555", "repo": repo}}}


def test_outside_of_ci_nothing_is_printed() -> None:
    assert ci_job({"HOME": "/root", "CI": "true"}) is None


def test_a_push_on_github() -> None:
    event = {"head_commit": {"id": "aaaa111", "timestamp": "2026-11-20T09:00:00Z"}}
    result = job(GITHUB, event)
    assert result.metadata() == {
        "job": "nightly/perf",
        "name": "nightly #5",
        "branch": "main",
        "commit": "aaaa111",
        "commit_time": "2026-11-20T09:00:00Z",
        "ci_url": "https://github.com/lab/train/actions/runs/17/attempts/2",
    }
    assert (result.attempt, result.key) == (2, "github:lab/train:17:2:perf")


def test_a_pull_request_on_github_is_its_head_and_not_the_trial_merge() -> None:
    env = GITHUB | {"GITHUB_REF_NAME": "42/merge", "GITHUB_HEAD_REF": "faster"}
    result = job(env, pull("lab/train"))
    assert (result.branch, result.commit, result.change) == ("faster", "feed555", "42")
    assert result.metadata()["tags"] == ["change-42"]


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
    result = job(GITHUB, {"workflow_run": caller})
    assert (result.branch, result.commit) == ("mara:main", "feed555")


@pytest.mark.parametrize("name", ["issue_comment", "issues", "repository_dispatch", "check_run", ""])
def test_an_event_that_is_about_no_ref_states_neither_main_nor_its_commit(name: str) -> None:
    """Such jobs check out a change themselves, while GITHUB_REF and GITHUB_SHA are those of main."""
    event = {"issue": {"number": 42, "pull_request": {"url": "https://api.github.com/x"}}}
    result = job(GITHUB | {"GITHUB_EVENT_NAME": name}, event)
    assert (result.branch, result.commit, result.change) == ("", "", "42")
    assert "--set" in result.doubt


@pytest.mark.parametrize("ref", [{"GITHUB_REF": "refs/pull/42/merge"}, {"GITHUB_REF": ""}])
def test_a_pull_request_without_its_event_states_no_trial_merge_and_no_branch(ref: dict[str, str]) -> None:
    """`docker run -e GITHUB_...`: nothing shows whether it is from a fork."""
    env = GITHUB | {"GITHUB_REF_NAME": "42/merge", "GITHUB_HEAD_REF": "main", "GITHUB_EVENT_NAME": "pull_request"} | ref
    result = job(env)
    assert (result.branch, result.commit, result.change) == ("", "", "42")
    assert "GITHUB_EVENT_PATH" in result.doubt


def test_a_merge_queue_names_its_change() -> None:
    env = GITHUB | {"GITHUB_REF_NAME": "gh-readonly-queue/main/pr-42-0a1b"}
    assert job(env).change == "42"


def test_a_tag_is_not_a_branch() -> None:
    result = job(GITHUB | {"GITHUB_REF_TYPE": "tag", "GITHUB_REF_NAME": "v1.2"})
    assert (result.branch, result.metadata()["tags"]) == ("", ["v1.2"])


def test_a_branch_on_gitlab() -> None:
    result = job(GITLAB | {"CI_COMMIT_BRANCH": "main"})
    assert (result.name, result.branch, result.commit) == ("perf #12", "main", "bbbb222")
    assert result.commit_time == "2026-11-20T10:00:00+01:00"
    assert result.key == "gitlab:gitlab.example.org:991"


def test_a_merge_request_on_gitlab_is_its_source_and_not_the_merged_result() -> None:
    request = {
        "CI_MERGE_REQUEST_IID": "9",
        "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "main",
        "CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": "feed555",
        "CI_MERGE_REQUEST_SOURCE_PROJECT_PATH": "mara/train",
        "CI_MERGE_REQUEST_PROJECT_PATH": "lab/train",
    }
    result = job(GITLAB | request | {"CI_MERGE_REQUEST_DIFF_BASE_SHA": "0a1b"})
    assert (result.branch, result.commit, result.commit_time, result.change) == ("mara:main", "feed555", "", "9")
    assert result.metadata()["merge_base"] == "0a1b"


def test_jenkins_on_a_branch_and_on_a_change() -> None:
    assert job(JENKINS | {"GIT_BRANCH": "origin/main"}).branch == "main"
    change = {"BRANCH_NAME": "PR-7", "CHANGE_ID": "7", "CHANGE_BRANCH": "main", "CHANGE_FORK": "mara"}
    result = job(JENKINS | change)
    assert (result.branch, result.change, result.ci_url) == ("mara:main", "7", "https://ci.example.org/job/perf/8/")


@pytest.mark.parametrize(
    ("branch", "theirs", "stated"),
    [
        ("main", "https://github.com/mara/train.git", "mara:main"),
        ("mara:main", "https://github.com/mara/train.git", "mara:main"),
        ("faster", "git://github.com/lab/train.git", "faster"),
        ("main", "", ""),
    ],
)
def test_a_fork_on_buildkite_is_recognised_with_any_pipeline_settings(branch: str, theirs: str, stated: str) -> None:
    pull = {"BUILDKITE_PULL_REQUEST": "7", "BUILDKITE_PULL_REQUEST_REPO": theirs, "BUILDKITE_BRANCH": branch}
    result = job(BUILDKITE | pull | {"BUILDKITE_REPO": "git@github.com:lab/train.git"})
    assert result.branch == stated
    assert bool(result.doubt) == (not stated)


def test_a_detached_head_is_not_stated_as_branch() -> None:
    assert job(JENKINS | {"GIT_BRANCH": "detached"}).branch == ""
    tag = job(BUILDKITE | {"BUILDKITE_BRANCH": "v1", "BUILDKITE_TAG": "v1"})
    assert (tag.branch, tag.metadata()["tags"]) == ("", ["v1"])


def test_buildkite_counts_retries_and_says_false_for_no_change() -> None:
    result = job(BUILDKITE | {"BUILDKITE_RETRY_COUNT": "1", "BUILDKITE_COMMIT": "HEAD"})
    assert (result.attempt, result.change, result.commit) == (2, "", "")
    assert result.ci_url == "https://buildkite.com/lab/perf/builds/3#0190-ab"
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


# --- checkout


SLURM = {"SLURM_JOB_ID": "88", "SLURM_JOB_NAME": "moe"}
WHEN = "2026-11-20T09:00:00+00:00"


def git(folder: Path, *words: str) -> str:
    own = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *own, *words],
        check=True, capture_output=True, text=True, timeout=300,
        env={"GIT_COMMITTER_DATE": WHEN, "GIT_AUTHOR_DATE": WHEN, "PATH": "/usr/bin:/bin", "HOME": str(folder)},
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "work")
    (folder / "train.py").write_text("pass\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_a_slurm_job_takes_its_commit_from_a_clean_checkout(checkout: Path) -> None:
    job = surrounding_job(SLURM, checkout)
    assert job is not None
    assert (job.branch, job.commit) == ("work", git(checkout, "rev-parse", "HEAD"))
    assert job.commit_time.startswith("2026-11-20T09:00:00")


def test_one_that_was_changed_does_not(checkout: Path) -> None:
    (checkout / "train.py").write_text("other\n")
    job = surrounding_job(SLURM, checkout)
    assert job is not None
    assert (job.branch, job.commit) == ("", "")


def test_git_dates_the_commit_of_a_ci_job(checkout: Path) -> None:
    env = {"JENKINS_URL": "https://ci.example.org", "GIT_COMMIT": git(checkout, "rev-parse", "HEAD")}
    job = surrounding_job(env, checkout)
    assert job is not None
    assert job.commit_time.startswith("2026-11-20T09:00:00")
    other = surrounding_job(env | {"GIT_COMMIT": "0" * 40}, checkout)
    assert other is not None
    assert other.commit_time == ""


def test_git_finds_the_merge_base_of_a_change(checkout: Path) -> None:
    base = git(checkout, "rev-parse", "HEAD")
    for branch in ("work", "change"):
        git(checkout, "checkout", "-q", "-B", branch)
        git(checkout, "commit", "-q", "--allow-empty", "-m", branch)
    git(checkout, "checkout", "-q", "work")
    git(checkout, "reset", "-q", "--hard", base)
    git(checkout, "commit", "-q", "--allow-empty", "-m", "later")
    env = {"JENKINS_URL": "https://ci.example.org", "CHANGE_ID": "7", "CHANGE_BRANCH": "change"}
    env["GIT_COMMIT"] = git(checkout, "rev-parse", "change")
    change = surrounding_job(env | {"CHANGE_TARGET": "work"}, checkout)
    assert change is not None
    assert change.metadata()["merge_base"] == base
    assert str(change.metadata()["merge_base_time"]).startswith("2026-11-20T09:00:00")
    for target in ("", "gone", "--all"):
        unknown = surrounding_job(env | {"CHANGE_TARGET": target}, checkout)
        assert unknown is not None
        assert "merge_base" not in unknown.metadata()


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_an_event_that_cannot_be_read_says_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text(content)
    env = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_EVENT_NAME": "push",
        "GITHUB_SHA": "aaaa111",
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
    }
    job = surrounding_job(env, tmp_path)
    assert job is not None
    assert job.commit == "aaaa111"


# --- The action for GitHub and the template for GitLab: valid, and played as jobs against real servers.


@pytest.mark.parametrize(
    ("file", "options"),
    [
        (ACTION, ["--builtin-schema", "vendor.github-actions"]),
        (ON_COMMENT, ["--builtin-schema", "vendor.github-workflows"]),
        (TEMPLATE, ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"]),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_the_file_is_valid(file: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", *options, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def logs(folder: Path, *names: str) -> None:
    """Logs of a run that was not uploaded before."""
    (folder / "logs").mkdir()
    for number, name in enumerate(names):
        mark = f"INFO: {uuid.uuid4()}\n".encode()
        (folder / "logs" / name).write_bytes(mark + training_log(50, 400 + 20 * number))


def github_job(folder: Path, base: str) -> dict[str, str]:
    event = folder / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 12, "head": {"sha": github_server.HEAD, "ref": "faster"}}}))
    return {
        "GITHUB_API_URL": base, "GITHUB_EVENT_PATH": str(event), "GITHUB_REPOSITORY": github_server.REPOSITORY,
        "GITHUB_REF": "refs/pull/12/merge", "GITHUB_SHA": "0" * 40, "GITHUB_RUN_ID": uuid.uuid4().hex[:8],
        "GITHUB_SERVER_URL": "https://github.com", "GITHUB_HEAD_REF": "faster", "GITHUB_EVENT_NAME": "pull_request",
    }  # fmt: skip


def inputs(server: Running, **more: str) -> dict[str, str]:
    project = f"ci-{uuid.uuid4().hex[:8]}"
    return {"url": server.address, "token": "", "logs": "logs/*.log", "project": project, "github-token": APP, **more}


def bare_path(folder: Path) -> str:
    """A path with a Python that has no packages, and the programs of the system."""
    python = folder / "bin" / "python3"
    python.parent.mkdir()
    python.symlink_to(Path(sys.base_prefix) / "bin/python3")
    return os.pathsep.join((str(python.parent), "/usr/bin", "/bin"))


def test_a_first_run_on_github_gets_a_comment_and_a_neutral_check_and_fails_no_job(
    server: Running, tmp_path: Path
) -> None:
    logs(tmp_path, "rank 0.log")
    evil = '$(touch pwned) `touch pwned` "; touch pwned #'
    with running_github() as forge:
        job = github_job(tmp_path, forge.base)
        given_inputs = inputs(server, name=evil, set=f"container={evil}\ngpu=H100", wait="60")
        played = play_action(tmp_path, given_inputs, **job)
        again = play_action(tmp_path, given_inputs, **job)
        assert forge.wrong == []
    assert played.code == 0, played.printed
    assert played.outputs["report"]["outcome"] == "no-baseline", played.printed
    run = played.outputs["upload"]["run"]
    assert played.outputs["upload"]["url"] == f"{server.address}/runs/{run}"
    assert not (tmp_path / "pwned").exists()
    assert (forge.checks[0]["conclusion"], forge.checks[0]["head_sha"]) == ("neutral", github_server.HEAD)
    assert forge.comments[0]["body"].splitlines()[1].startswith("**◌ no baseline")
    assert played.summary.startswith("**◌ no baseline")
    assert again.outputs["upload"]["run"] == run, "the same job again is the same run"
    assert (len(forge.comments), len(forge.checks)) == (1, 1)


def test_a_comment_measures_a_pull_request_and_of_a_fork_only_the_commit_that_was_read(
    server: Running, tmp_path: Path
) -> None:
    training = tmp_path / "train.sh"
    for words in (["init", "-qb", "main"], ["commit", "-qm", "x", "--allow-empty"], ["branch", "origin/main"]):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, timeout=300)
    training.write_text(f"#!/bin/sh\necho {uuid.uuid4()}\ncat train.txt\n")
    training.chmod(0o755)
    (tmp_path / "train.txt").write_bytes(training_log(50, 400))
    on_main = {"GITHUB_EVENT_NAME": "issue_comment", "GITHUB_REF": "refs/heads/main", "GITHUB_JOB": "perf"}
    with running_github() as forge:
        job, stated = github_job(tmp_path, forge.base) | on_main, inputs(server)
        (tmp_path / "event.json").write_text('{"issue": {"number": 12, "pull_request": {"url": "x"}}}')

        def comment(text: str) -> tuple[int, str]:
            job["GITHUB_RUN_ID"] = uuid.uuid4().hex[:8]
            played = play_on_comment(tmp_path, text, stated, **job)
            if played.code:
                return played.code, ""
            run = httpx2.get(f"{server.address}/api/v1/runs/{played.outputs['upload']['run']}", timeout=300).json()
            assert (run["commit"], run["tags"]) == (github_server.HEAD, ["change-12"]), played.printed
            assert len(run["merge_base"]) == 40
            return 0, run["branch"]

        assert comment("/perf") == (0, "faster")
        assert [check["head_sha"] for check in forge.checks] == [github_server.HEAD]
        forge.is_fork = True
        assert [comment(text)[0] for text in ("/perf", "/perf 0123456789", "/perf 5f")] == [1, 1, 1]
        assert comment("/perf 5f3a5f3 please") == (0, "lena:faster")
        assert (len(forge.comments), forge.wrong) == (1, [])


def test_the_outcomes_that_fail_the_job_are_the_users_choice(server: Running, tmp_path: Path) -> None:
    """On a runner without the client, which is downloaded from the service."""
    logs(tmp_path, "a.log")
    with running_github() as forge:
        strict = inputs(server, allow="", comment="false", key="nightly", wait="60")
        played = play_action(tmp_path, strict, **github_job(tmp_path, forge.base), PATH=bare_path(tmp_path))
    assert (played.code, forge.comments) == (4, []), played.printed
    assert (tmp_path / "threewalls-bin/threewalls.pyz").is_file()
    assert [check["name"] for check in forge.checks] == ["threewalls (nightly)"]


@pytest.mark.parametrize("token", [FORK, "ghs_expired"])
def test_a_job_that_may_not_write_still_has_its_result(server: Running, tmp_path: Path, token: str) -> None:
    logs(tmp_path, "a.log")
    with running_github() as forge:
        job = github_job(tmp_path, forge.base)
        played = play_action(tmp_path, inputs(server, **{"github-token": token, "wait": "60"}), **job)
    assert (played.code, played.outputs["report"]["outcome"]) == (0, "no-baseline")
    assert played.printed.count("::warning title=Threewalls::") == 2
    assert token not in played.printed
    assert played.summary.startswith("**◌ no baseline")


def test_a_job_starts_the_reruns_that_its_verdict_requests_and_reruns_start_none(
    server: Running, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    stated = inputs(server, wait="120", allow="regression,no-baseline", set="gpu=H100\njob=perf", comment="false")
    stated |= {
        "rerun": f'echo "$THREEWALLS_RERUN_COMMIT $THREEWALLS_RERUN_NUMBER of $THREEWALLS_RERUN_COUNT" >> {started}'
    }
    with Client(server.address, project=stated["project"]) as client, running_github() as forge:
        for night, step_time in enumerate((400, 401, 399, 400.5, 399.5, 400)):
            log = tmp_path / f"night-{night}.log"
            log.write_bytes(training_log(50, step_time))
            meta = {"gpu": "H100", "job": "perf", "branch": "main", "commit": f"c{night}"}
            run = client.upload(log, meta=meta | {"commit_time": f"2026-11-{night + 1:02}T00:00:00Z"})
            client.verdict(run, wait=300)
        logs(tmp_path, "a.log")
        (tmp_path / "logs/a.log").write_bytes(training_log(50, 440))
        played = play_action(tmp_path, stated, **github_job(tmp_path, forge.base))
        assert played.outputs["report"]["outcome"] == "regression", played.printed
        assert started.read_text().splitlines() == [f"{github_server.HEAD} 1 of 1"]
        (tmp_path / "logs/a.log").write_bytes(training_log(50, 441))
        job = github_job(tmp_path, forge.base)
        again = play_action(tmp_path, stated, **job)
        assert again.outputs["report"]["outcome"] == "regression", again.printed
    assert len(started.read_text().splitlines()) == 1


def test_a_missing_log_fails_the_job_before_any_request(server: Running, tmp_path: Path) -> None:
    with running_github() as forge:
        played = play_action(tmp_path, inputs(server), **github_job(tmp_path, forge.base))
    assert played.code == 2, played.printed
    assert forge.asked == []


@pytest.mark.parametrize(("command", "code"), [("upload", 127), ("upload", 137), ("report", 127), ("report", 137)])
def test_a_command_that_is_missing_or_killed_fails_the_job(tmp_path: Path, command: str, code: int) -> None:
    fake = tmp_path / "bin" / "threewalls"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\n[ "$1" = {command} ] && exit {code}\necho \'{{"id": 7, "url": "http://a/runs/7"}}\'\n')
    fake.chmod(0o755)
    path = {"PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}"}
    given_inputs = {"url": "http://127.0.0.1:1", "token": "", "logs": "*.log"}
    assert play_action(tmp_path, given_inputs, **path).code == code
    assert play_template(tmp_path, THREEWALLS_LOGS="a.log", **path).code == code


def test_a_gitlab_job_starts_reruns_and_keeps_the_code_of_its_report(tmp_path: Path) -> None:
    fake, called = tmp_path / "bin" / "threewalls", tmp_path / "called"
    fake.parent.mkdir()
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = upload ] && echo \'{{"id": 7}}\'\n[ "$1" = report ] && exit 5\n'
        f'[ "$1" = rerun ] && echo "$@" >> {called} && exit 3\nexit 0\n'
    )
    fake.chmod(0o755)
    path = {"PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}"}
    assert play_template(tmp_path, THREEWALLS_LOGS="a.log", **path).code == 5
    assert not called.exists()
    assert play_template(tmp_path, THREEWALLS_LOGS="a.log", THREEWALLS_RERUN="sbatch x", **path).code == 5
    assert called.read_text() == "rerun --wait=600 --exec=sbatch x -- 7\n"


def test_a_gitlab_job_takes_the_client_from_the_service(server: Running, tmp_path: Path) -> None:
    logs(tmp_path, "a.log")
    with running_gitlab() as forge:
        job = gitlab_job(server, forge.base, OWN) | {"PATH": bare_path(tmp_path)}
        played = play_template(tmp_path, **job)
    assert played.code == 4, played.printed  # no baseline
    assert (tmp_path / "threewalls.pyz").is_file()


REFUSED = Answer(401, {"title": "The token is over", "detail": "The token is over."})
"""As good as a service that is away, and nobody waits for it to come back."""


def test_an_unreachable_service_fails_only_jobs_that_wait_and_the_log_is_kept(server: Running, tmp_path: Path) -> None:
    logs(tmp_path, "a.log")
    with running_github() as forge, answering(REFUSED) as nowhere:
        job = github_job(tmp_path, forge.base) | {"GITHUB_JOB": "perf"}
        lenient = inputs(server, url=nowhere.url, allow="no-baseline,no-verdict", wait="60")
        away = play_action(tmp_path, lenient, **job)
        assert (away.code, away.outputs["report"]["outcome"]) == (0, "no-verdict"), away.printed
        assert [(check["name"], check["conclusion"]) for check in forge.checks] == [("threewalls (perf)", "neutral")]
        assert forge.checks[0]["output"]["title"].startswith("no verdict:")
        assert away.summary.startswith("**… no verdict")
        sent = threewalls(
            server.address, tmp_path, "sync", "--all", "--json", "--spool", away.outputs["upload"]["spool"]
        )
        assert (sent.code, len(sent.document["sent"])) == (0, 1), sent.err
        back = play_action(tmp_path, {**lenient, "url": server.address}, **job)
        assert (back.outputs["report"]["outcome"], len(forge.checks)) == ("no-baseline", 1), "the verdict replaces it"
        assert forge.checks[0]["output"]["title"].startswith("no baseline")
        play_action(tmp_path, lenient, **job)
        assert forge.checks[0]["output"]["title"].startswith("no baseline"), "and it replaces no verdict"
        assert forge.wrong == []


def test_an_unreachable_service_is_a_status_on_gitlab_and_the_log_an_artifact(server: Running, tmp_path: Path) -> None:
    logs(tmp_path, "a.log")
    with running_gitlab() as forge, answering(REFUSED) as nowhere:
        job = gitlab_job(server, forge.base, OWN) | {"THREEWALLS_URL": nowhere.url}
        played = play_template(tmp_path, **job, CI_JOB_NAME="perf")
        assert forge.wrong == []
    assert played.code == 3, played.printed
    assert {name: item["status"] for name, item in forge.statuses.items()} == {"threewalls (perf)": "skipped"}
    assert [item.name for item in (tmp_path / "threewalls-spool").glob("*/upload.json")] == ["upload.json"]


def gitlab_job(server: Running, base: str, token: str) -> dict[str, str]:
    own = {"CI_JOB_TOKEN": JOB} if token == JOB else {"CI_JOB_TOKEN": JOB, "GITLAB_TOKEN": token}
    return {
        "THREEWALLS_URL": server.address, "THREEWALLS_PROJECT": f"ci-{uuid.uuid4().hex[:8]}",
        "THREEWALLS_LOGS": "logs/*.log", "THREEWALLS_WAIT": "60", "GITLAB_CI": "true", "CI_API_V4_URL": base,
        "CI_PROJECT_ID": str(gitlab_server.PROJECT), "CI_MERGE_REQUEST_IID": str(gitlab_server.CHANGE),
        "CI_MERGE_REQUEST_PROJECT_ID": str(gitlab_server.PROJECT), "CI_COMMIT_SHA": gitlab_server.HEAD,
        "CI_PIPELINE_ID": str(gitlab_server.PIPELINE), "CI_JOB_ID": uuid.uuid4().hex[:8], **own,
    }  # fmt: skip


def test_a_first_run_on_gitlab_is_a_note_and_a_status_that_is_not_green(server: Running, tmp_path: Path) -> None:
    logs(tmp_path, "a.log")
    with running_gitlab() as forge:
        played = play_template(tmp_path, **gitlab_job(server, forge.base, OWN))
        assert forge.wrong == []
    assert played.code == 4, played.printed
    assert [entry["state"] for entry in forge.statuses.values()] == ["skipped"]
    assert forge.notes[0]["body"].splitlines()[1].startswith("**◌ no baseline")


def test_with_the_token_of_the_job_alone_gitlab_shows_the_result_in_the_job(server: Running, tmp_path: Path) -> None:
    logs(tmp_path, "a.log")
    with running_gitlab() as forge:
        played = play_template(tmp_path, **gitlab_job(server, forge.base, JOB))
    assert (played.code, forge.notes, forge.statuses) == (4, [], {})
    assert "the `api` scope" in played.printed


def test_several_runs_of_a_job_are_one_comment_with_a_table(server: Running, tmp_path: Path) -> None:
    logs(tmp_path, "a.log", "b.log")
    project = {"THREEWALLS_PROJECT": f"ci-{uuid.uuid4().hex[:8]}"}
    runs = []
    for name, gpu in (("a.log", "H100"), ("b.log", "B200")):
        words = ("upload", "--json", "--no-ci", f"--set=gpu={gpu}", str(tmp_path / "logs" / name))
        runs.append(str(threewalls(server.address, tmp_path, *words, **project).document["id"]))
    with running_github() as forge:
        env = github_job(tmp_path, forge.base) | {"GITHUB_TOKEN": PERSON, "GITHUB_STEP_SUMMARY": ""}
        words = ("report", *runs, "--wait=60", "--github", "--label", "performance: regression")
        done = threewalls(server.address, tmp_path, *words, **env)
        assert forge.wrong == []
        assert threewalls(server.address, tmp_path, *words, "--no-comment", **env).code == 2
    assert done.code == 4, done.out + done.err
    assert "label performance: regression" in done.err
    body = forge.comments[0]["body"].splitlines()
    assert body[1].endswith("2 no baseline**")
    assert [line.split("(run ")[1].split(")")[0] for line in body if line.startswith("| [")] == runs
    assert [entry["state"] for entry in forge.statuses] == ["pending"]


def test_a_report_before_the_verdict_becomes_the_report_of_the_verdict(server: Running, tmp_path: Path) -> None:
    """An unread run of the same job gets a different key."""
    job = {"project": f"ci-{uuid.uuid4().hex[:8]}", "job": "nightly/perf", "ci_url": f"https://ci/{uuid.uuid4()}"}
    with httpx2.Client(base_url=f"{server.address}/api/v1", timeout=300) as service, running_github() as forge:
        env = github_job(tmp_path, forge.base) | {"GITHUB_TOKEN": APP, "GITHUB_ACTIONS": "true"}

        def begun(**stated: str) -> str:
            answer = service.post("/runs", params={"complete": "false"}, files={"meta": (None, json.dumps(stated))})
            return str(answer.raise_for_status().json()["id"])

        def report(run: str, *options: str, **more: str) -> Done:
            return threewalls(server.address, tmp_path, "report", run, "--github", "--json", *options, **env | more)

        first, second = begun(**job), begun(**job)
        assert report(first).code == report(second).code == 3
        assert [check["name"] for check in forge.checks] == [
            "threewalls (nightly/perf)",
            "threewalls (nightly/perf #2)",
        ]
        sent = service.post(
            f"/runs/{first}/logs", params={"offset": 0, "complete": "true"}, content=training_log(50, 400)
        )
        assert sent.is_success, sent.text
        done = report(first, "--wait=60")
        assert (done.code, done.document["status"]) == (4, "judged"), done.err
        assert [check["output"]["title"].split(" · ")[0].split(":")[0] for check in forge.checks] == [
            "no baseline",
            "pending",
        ]
        assert len(forge.comments) == 2
        assert "no baseline" in forge.comments[0]["body"]
        unnamed = report(begun(project=job["project"]))
        assert (len(forge.checks), unnamed.code, unnamed.document["status"]) == (2, 3, "pending")
        assert "--key NAME" in unnamed.err
        assert "::warning title=Threewalls::" in unnamed.err
        elsewhere = report(first, GITHUB_API_URL=server.address)
        assert (elsewhere.code, elsewhere.document["exit_code"]) == (4, 4)
        assert "not posted" in elsewhere.err
        assert forge.wrong == []


def test_without_a_token_or_a_repository_nothing_is_waited_for(server: Running, tmp_path: Path) -> None:
    done = threewalls(server.address, tmp_path, "report", "1", "--github", "--wait=60")
    assert (done.code, "--repo" in done.err) == (2, True)

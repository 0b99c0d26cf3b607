"""The action for GitHub and the template for GitLab: valid, and played as jobs against real servers."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import httpx2
import pytest

from tests.client.answering import Answer, answering
from tests.client.ci_files import ACTION, TEMPLATE, play_action, play_template
from tests.client.commands import Done, threewalls
from tests.embedded.processes import Running
from tests.services import github_server, gitlab_server
from tests.services.github_server import APP, FORK, PERSON, running_github
from tests.services.gitlab_server import JOB, OWN, running_gitlab
from tests.training_logs import training_log


@pytest.mark.parametrize(
    ("file", "options"),
    [
        (ACTION, ["--builtin-schema", "vendor.github-actions"]),
        (TEMPLATE, ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"]),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_the_file_is_valid(file: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", *options, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def logs(folder: Path, *names: str) -> None:
    """Logs of a run that nobody uploaded before."""
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


def test_a_first_run_on_github_is_a_comment_and_a_neutral_check_and_fails_nobody(
    server: Running, tmp_path: Path
) -> None:
    logs(tmp_path, "rank 0.log")
    evil = '$(touch pwned) `touch pwned` "; touch pwned #'
    with running_github() as forge:
        job = github_job(tmp_path, forge.base)
        said = inputs(server, name=evil, set=f"container={evil}\ngpu=H100", wait="60")
        played = play_action(tmp_path, said, **job)
        again = play_action(tmp_path, said, **job)
        assert forge.wrong == []
    assert played.code == 0, played.said
    assert played.outputs["report"]["outcome"] == "no-baseline", played.said
    run = played.outputs["upload"]["run"]
    assert played.outputs["upload"]["url"] == f"{server.address}/runs/{run}"
    assert not (tmp_path / "pwned").exists()
    assert (forge.checks[0]["conclusion"], forge.checks[0]["head_sha"]) == ("neutral", github_server.HEAD)
    assert forge.comments[0]["body"].splitlines()[1].startswith("**◌ no baseline")
    assert played.summary.startswith("**◌ no baseline")
    assert again.outputs["upload"]["run"] == run, "the same job again is the same run"
    assert (len(forge.comments), len(forge.checks)) == (1, 1)


def test_the_outcomes_that_fail_the_job_are_the_users_choice(server: Running, tmp_path: Path) -> None:
    logs(tmp_path, "a.log")
    with running_github() as forge:
        strict = inputs(server, allow="", comment="false", key="nightly", wait="60")
        played = play_action(tmp_path, strict, **github_job(tmp_path, forge.base))
    assert (played.code, forge.comments) == (4, [])
    assert [one["name"] for one in forge.checks] == ["threewalls (nightly)"]


@pytest.mark.parametrize("token", [FORK, "ghs_expired"])
def test_a_job_that_may_not_write_still_has_its_result(server: Running, tmp_path: Path, token: str) -> None:
    logs(tmp_path, "a.log")
    with running_github() as forge:
        job = github_job(tmp_path, forge.base)
        played = play_action(tmp_path, inputs(server, **{"github-token": token, "wait": "60"}), **job)
    assert (played.code, played.outputs["report"]["outcome"]) == (0, "no-baseline")
    assert played.said.count("::warning title=Threewalls::") == 2
    assert token not in played.said
    assert played.summary.startswith("**◌ no baseline")


def test_a_missing_log_fails_the_job_before_anything_is_said(server: Running, tmp_path: Path) -> None:
    with running_github() as forge:
        played = play_action(tmp_path, inputs(server), **github_job(tmp_path, forge.base))
    assert played.code == 2, played.said
    assert forge.asked == []


@pytest.mark.parametrize(("command", "code"), [("upload", 127), ("upload", 137), ("report", 127), ("report", 137)])
def test_a_command_that_is_missing_or_killed_fails_the_job(tmp_path: Path, command: str, code: int) -> None:
    fake = tmp_path / "bin" / "threewalls"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\n[ "$1" = {command} ] && exit {code}\necho \'{{"id": 7, "url": "http://a/runs/7"}}\'\n')
    fake.chmod(0o755)
    path = {"PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}"}
    said = {"url": "http://127.0.0.1:1", "token": "", "logs": "*.log"}
    assert play_action(tmp_path, said, **path).code == code
    assert play_template(tmp_path, THREEWALLS_LOGS="a.log", **path).code == code


REFUSED = Answer(401, {"title": "The token is over", "detail": "The token is over."})
"""As good as a service that is away, and nobody waits for it to come back."""


def test_a_service_that_is_away_fails_only_those_who_want_it_and_the_log_is_kept(
    server: Running, tmp_path: Path
) -> None:
    logs(tmp_path, "a.log")
    with running_github() as forge, answering(REFUSED) as nowhere:
        job = github_job(tmp_path, forge.base) | {"GITHUB_JOB": "perf"}
        lenient = inputs(server, url=nowhere.url, allow="no-baseline,no-verdict", wait="60")
        away = play_action(tmp_path, lenient, **job)
        assert (away.code, away.outputs["report"]["outcome"]) == (0, "no-verdict"), away.said
        assert [(one["name"], one["conclusion"]) for one in forge.checks] == [("threewalls (perf)", "neutral")]
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


def test_a_service_that_is_away_is_a_status_on_gitlab_and_the_log_an_artifact(server: Running, tmp_path: Path) -> None:
    logs(tmp_path, "a.log")
    with running_gitlab() as forge, answering(REFUSED) as nowhere:
        job = gitlab_job(server, forge.base, OWN) | {"THREEWALLS_URL": nowhere.url}
        played = play_template(tmp_path, **job, CI_JOB_NAME="perf")
        assert forge.wrong == []
    assert played.code == 3, played.said
    assert {name: one["status"] for name, one in forge.statuses.items()} == {"threewalls (perf)": "skipped"}
    assert [one.name for one in (tmp_path / "threewalls-spool").glob("*/upload.json")] == ["upload.json"]


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
    assert played.code == 4, played.said
    assert [one["state"] for one in forge.statuses.values()] == ["skipped"]
    assert forge.notes[0]["body"].splitlines()[1].startswith("**◌ no baseline")


def test_with_the_token_of_the_job_alone_gitlab_shows_the_result_in_the_job(server: Running, tmp_path: Path) -> None:
    logs(tmp_path, "a.log")
    with running_gitlab() as forge:
        played = play_template(tmp_path, **gitlab_job(server, forge.base, JOB))
    assert (played.code, forge.notes, forge.statuses) == (4, [], {})
    assert "project access token with the scope api" in played.said


def test_several_runs_of_a_job_are_one_comment_with_a_table(server: Running, tmp_path: Path) -> None:
    logs(tmp_path, "a.log", "b.log")
    project = {"THREEWALLS_PROJECT": f"ci-{uuid.uuid4().hex[:8]}"}
    runs = []
    for name, gpu in (("a.log", "H100"), ("b.log", "B200")):
        words = ("upload", "--json", "--no-ci", f"--set=gpu={gpu}", str(tmp_path / "logs" / name))
        runs.append(str(threewalls(server.address, tmp_path, *words, **project).document["id"]))
    with running_github() as forge:
        env = github_job(tmp_path, forge.base) | {"GITHUB_TOKEN": PERSON, "GITHUB_STEP_SUMMARY": ""}
        done = threewalls(server.address, tmp_path, "report", *runs, "--wait=60", "--github", **env)
        assert forge.wrong == []
    assert done.code == 4, done.out + done.err
    body = forge.comments[0]["body"].splitlines()
    assert body[1] == "**No verdict to act on: 2 neutral**"
    assert [line.split("(run ")[1].split(")")[0] for line in body if line.startswith("| [")] == runs
    assert [one["state"] for one in forge.statuses] == ["pending"]


def test_a_report_before_the_verdict_becomes_the_report_of_the_verdict(server: Running, tmp_path: Path) -> None:
    """And that of another run of the same job, still unread, is another one."""
    job = {"project": f"ci-{uuid.uuid4().hex[:8]}", "job": "nightly/perf", "ci_url": f"https://ci/{uuid.uuid4()}"}
    with httpx2.Client(base_url=f"{server.address}/api/v1", timeout=300) as service, running_github() as forge:
        env = github_job(tmp_path, forge.base) | {"GITHUB_TOKEN": APP, "GITHUB_ACTIONS": "true"}

        def begun(**stated: str) -> str:
            made = service.post("/runs", params={"complete": "false"}, files={"meta": (None, json.dumps(stated))})
            return str(made.raise_for_status().json()["id"])

        def report(run: str, *options: str, **more: str) -> Done:
            return threewalls(server.address, tmp_path, "report", run, "--github", "--json", *options, **env | more)

        first, second = begun(**job), begun(**job)
        assert report(first).code == report(second).code == 3
        assert [one["name"] for one in forge.checks] == ["threewalls (nightly/perf)", "threewalls (nightly/perf #2)"]
        sent = service.post(
            f"/runs/{first}/logs", params={"offset": 0, "complete": "true"}, content=training_log(50, 400)
        )
        assert sent.is_success, sent.text
        done = report(first, "--wait=60")
        assert (done.code, done.document["status"]) == (4, "judged"), done.err
        assert [one["output"]["title"].split(":")[0] for one in forge.checks] == ["no baseline", "pending"]
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

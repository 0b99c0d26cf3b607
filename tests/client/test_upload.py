"""Uploads from the command line into a real service: logs, profiles, and reruns that a verdict requests."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import zstandard
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.cli import main
from app.client import delivery
from app.client.ci import CiJob
from app.client.delivery import deliver, open_run, send_rest, stored_bytes
from app.client.service import ClientSettings, Service
from app.client.upload import PIECE_BYTES, read_upload, upload_metadata
from app.errors import UsageError
from app.settings import Settings
from tests.client.answering import Answer, answering
from tests.client.commands import Done, threewalls
from tests.domain.profiles.traces import corpus
from tests.embedded.processes import Running
from tests.notifications.sent import listen, states
from tests.regressions.judging import arrive, judge_all, steady
from tests.training_logs import training_log

CONTRACT = ("--set", "gpu=H100", "--set", "gpus=16", "--set", "container=train:2026.10")


def upload(server: Running, folder: Path, *words: str, **env: str) -> Done:
    return threewalls(server.address, folder, "upload", *words, **env)


def runs_of(server: Running, project: str) -> list[dict[str, object]]:
    items: list[dict[str, object]] = httpx2.get(
        f"{server.address}/api/v1/runs", params={"project": project}, timeout=300
    ).json()["items"]
    return items


def write(folder: Path, name: str, text: bytes) -> str:
    (folder / name).write_bytes(text)
    return str(folder / name)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_log_becomes_a_run_and_repeated_it_is_the_same(server: Running, tmp_path: Path, suffix: str) -> None:
    log = training_log()
    packed = {"": log, ".gz": gzip.compress(log), ".zst": zstandard.compress(log)}[suffix]
    words = (write(tmp_path, f"train.log{suffix}", packed), "--project", f"client-one{suffix[1:]}", *CONTRACT)
    first = upload(server, tmp_path, *words, "--wait", "--json", "--name", "nightly 1", "--tag", "a", "--tag", "b")
    assert first.code == first.document["exit_code"] == 4, first.err
    run = httpx2.get(f"{server.address}/api/v1/runs/{first.document['id']}", timeout=300).json()
    assert (run["name"], run["tags"], run["purpose"]) == ("nightly 1", ["a", "b"], "ci")
    assert run["health"]["iterations"] == 50
    again = upload(server, tmp_path, *words, "--name", "nightly 1", "--tag", "a", "--tag", "b")
    assert (again.code, again.out) == (0, f"run {first.document['id']}: {first.document['url']} (already uploaded)\n")


def test_a_long_log_goes_on_where_it_stopped(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PIECE_BYTES", 1 << 20)
    text = training_log(iterations=60, noise_bytes=PIECE_BYTES + (1 << 20))
    write(tmp_path, "train.log", text)
    write(tmp_path, "short.log", training_log(step_time_ms=411))
    logs = [tmp_path / "train.log", tmp_path / "short.log"]
    long_upload = read_upload(logs=logs, meta={"project": "client-long"}, job_key="job 1")
    assert [file.in_pieces for file in long_upload.files] == [True, False]
    with Service(ClientSettings(server.address)) as service:
        run = open_run(service, long_upload)
        first = long_upload.pieced[0]
        half = len(text) // 2
        cut = read_upload(logs=[tmp_path / "train.log"], meta={}).files[0]
        send_rest(service, run.id, type(cut)("log", first.name, cut.path, half, ""), 0, lambda _: None)
        assert stored_bytes(service, run.id, first.name) == half
        offsets: list[int] = []
        again = deliver(service, long_upload, lambda now, _: offsets.append(now))
        assert (again.id, again.created, offsets[0], offsets[-1]) == (run.id, False, half, len(text))
        once_more = deliver(service, long_upload)
        assert once_more.id == run.id
    body = httpx2.get(f"{server.address}/api/v1/runs/{run.id}", timeout=300).json()
    assert body["reception"] == "complete"
    assert {file["name"]: file["size_bytes"] for file in body["files"]}["train.log"] == len(text)
    assert len(runs_of(server, "client-long")) == 1


def test_long_compressed_logs_are_sent_by_their_text(server: Running, tmp_path: Path) -> None:
    text = training_log(iterations=60, noise_bytes=PIECE_BYTES + 4096)
    first = write(tmp_path, "rank0.log.gz", gzip.compress(text, 1))
    two = write(tmp_path, "rank1.log.zst", zstandard.compress(text[:-100]))
    done = upload(server, tmp_path, first, two, "--project", "client-packed", "--json")
    assert done.code == 0, done.err
    files = httpx2.get(f"{server.address}/api/v1/runs/{done.document['id']}", timeout=300).json()["files"]
    assert sorted((file["name"], file["size_bytes"]) for file in files) == [
        ("rank0.log", len(text)), ("rank1.log", len(text) - 100),
    ]  # fmt: skip


def test_a_job_states_its_change_and_code(server: Running, tmp_path: Path) -> None:
    log = write(tmp_path, "train.log", training_log(step_time_ms=401))
    gitlab = {
        "GITLAB_CI": "true", "CI_JOB_ID": "5", "CI_JOB_NAME": "perf", "CI_PIPELINE_IID": "3",
        "CI_COMMIT_SHA": "bbbb2222", "CI_COMMIT_BRANCH": "main", "CI_JOB_URL": "https://ci.example.org/5",
        "CI_COMMIT_TIMESTAMP": "2026-11-20T10:00:00+00:00",
    }  # fmt: skip
    done = upload(server, tmp_path, log, "--project", "client-job", "--json", **gitlab)
    run = httpx2.get(f"{server.address}/api/v1/runs/{done.document['id']}", timeout=300).json()
    assert (run["name"], run["branch"], run["commit"]) == ("perf #3", "main", "bbbb2222")
    assert run["ordered_at"].startswith("2026-11-20T10:00:00")
    alone = upload(server, tmp_path, log, "--project", "client-job", "--json", "--no-ci", **gitlab)
    assert alone.document["created"]
    retried = upload(server, tmp_path, log, "--project", "client-job", "--json", **gitlab)
    assert retried.document["id"] == done.document["id"]


def test_a_refusal_names_the_field_and_is_a_matter_of_usage(server: Running, tmp_path: Path) -> None:
    log = write(tmp_path, "train.log", training_log())
    done = upload(server, tmp_path, log, "--set", "gpus=many")
    assert done.code == 2
    assert "meta.gpus" in done.err
    assert not (tmp_path / ".cache").exists()


def test_a_missing_log_is_a_wrong_command_line(server: Running, tmp_path: Path) -> None:
    assert upload(server, tmp_path, str(tmp_path / "nothing.log")).code == 2
    (tmp_path / "empty").mkdir()
    assert upload(server, tmp_path, str(tmp_path / "empty")).code == 2


@pytest.mark.parametrize(
    ("words", "code"), [((), 3), (("--spool-ok",), 0), (("--spool-ok", "--wait"), 3), (("--no-spool",), 3)]
)
def test_without_a_service_the_upload_waits(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    log = write(tmp_path, "train.log", training_log())
    done = threewalls("http://127.0.0.1:1", tmp_path, "upload", log, "--retries", "0", *words)
    assert done.code == code
    waits = list((tmp_path / ".cache").rglob("upload.json"))
    assert len(waits) == (0 if words == ("--no-spool",) else 1)
    assert ("threewalls sync" in done.err) is bool(waits)


def test_offline_uploads_go_to_the_spool_and_sync_sends_them(server: Running, tmp_path: Path) -> None:
    log = write(tmp_path, "train.log", training_log(step_time_ms=402))
    spooled = upload(
        server, tmp_path, log, "--project", "client-offline", "--offline", THREEWALLS_SPOOL=str(tmp_path / "s")
    )
    assert (spooled.code, runs_of(server, "client-offline")) == (0, [])
    Path(log).unlink()
    done = threewalls(server.address, tmp_path, "sync", "--json", THREEWALLS_SPOOL=str(tmp_path / "s"))
    assert (done.code, len(done.document["sent"]), done.document["waiting"]) == (0, 1, 0)
    assert len(runs_of(server, "client-offline")) == 1


def test_runs_and_reports_are_read_back(server: Running, tmp_path: Path) -> None:
    log = write(tmp_path, "train.log", training_log(step_time_ms=403))
    run = upload(server, tmp_path, log, "--project", "client-read", "--wait", "--json").document
    listed = threewalls(server.address, tmp_path, "runs", "--verdict", "no_baseline", THREEWALLS_PROJECT="client-read")
    assert f"\n{run['id']} " in listed.out
    assert threewalls(server.address, tmp_path, "runs", "nothing like it").out == "no runs match these filters\n"
    assert threewalls(server.address, tmp_path, "runs", "--sort=nonsense").code == 2
    text = threewalls(server.address, tmp_path, "report", run["url"])
    assert (text.code, text.out.splitlines()[0][:11]) == (4, "no baseline")
    assert threewalls(server.address, tmp_path, "report", str(run["id"]), "--json").document == run["report"]
    markdown = threewalls(server.address, tmp_path, "report", str(run["id"]), "--markdown").out
    assert markdown == httpx2.get(f"{run['url'].replace('/runs/', '/api/v1/runs/')}/report.md", timeout=300).text
    assert threewalls(server.address, tmp_path, "report", "2000000000").code == 3


def test_a_doctor_finds_nothing_wrong_here_and_much_elsewhere(server: Running, tmp_path: Path) -> None:
    log = write(tmp_path, "train.log", training_log())
    well = threewalls(server.address, tmp_path, "doctor", log, "--json")
    assert well.code == 0
    assert {finding["state"] for finding in well.document["findings"]} == {"ok"}
    write(tmp_path, "empty.log", b"")
    ill = threewalls(
        "http://127.0.0.1:1", tmp_path, "doctor", str(tmp_path / "empty.log"), str(tmp_path / "none.log"), "--json",
        HTTPS_PROXY="http://user:hunter2@proxy.example.org:3128",
    )  # fmt: skip
    assert ill.code == 3
    result = {finding["what"]: finding["state"] for finding in ill.document["findings"]}
    assert result == {"service": "bad", "proxy": "mind", "job": "ok", "spool": "ok", "log": "bad"}
    assert "hunter2" not in ill.out
    assert all(finding["do"] for finding in ill.document["findings"] if finding["state"] != "ok")
    manual = (Path(__file__).parents[2] / "docs/cli.md").read_text()
    assert all(f"`{name}`" in manual for name in ill.document["findings"][0])


# --- metadata


JOB = CiJob("X", name="nightly #1", branch="main", commit="aaaa111", commit_time="2026-11-20T09:00:00Z", change="42")


def metadata(*settings: str, job: CiJob | None = JOB, meta: str = "", **stated: str) -> dict[str, object]:
    return upload_metadata(job=job, documents=[meta], settings=settings, stated=stated)


def test_stated_values_override_the_file_and_the_file_overrides_the_job() -> None:
    result = metadata("gpu=H200", meta='{"gpu": "H100", "branch": "release"}', name="mine")
    assert (result["gpu"], result["branch"], result["name"]) == ("H200", "release", "mine")


def test_the_commit_time_of_the_job_is_not_used_for_another_commit() -> None:
    assert "commit_time" not in metadata("commit=bbbb222")
    assert metadata("commit=bbbb222", "commit_time=2026-11-01T00:00:00Z")["commit_time"] == "2026-11-01T00:00:00Z"
    assert metadata("commit=aaaa111")["commit_time"] == "2026-11-20T09:00:00Z"
    change = replace(JOB, merge_base="0a1b", merge_base_time="2026-11-19T09:00:00Z")
    assert metadata(job=change)["merge_base_time"] == "2026-11-19T09:00:00Z"
    assert not {"merge_base", "merge_base_time"} & metadata("commit=bbbb222", job=change).keys()
    assert metadata("commit=bbbb222", "merge_base=1c2d", job=change)["merge_base"] == "1c2d"


def test_tags_of_all_are_kept_once() -> None:
    result = upload_metadata(
        job=JOB, documents=['{"tags": ["a"]}'], settings=["tags=b,a"], stated={}, tags=["c", "change-42"]
    )
    assert result["tags"] == ["change-42", "a", "b", "c"]


def test_a_value_may_be_json_and_a_window_two_numbers() -> None:
    result = metadata("window=41-50", 'recompute_modules=["moe_act"]', "env.NCCL_DEBUG=INFO=x", job=None)
    assert result == {
        "window": {"first": 41, "last": 50},
        "recompute_modules": ["moe_act"],
        "env.NCCL_DEBUG": "INFO=x",
    }


@pytest.mark.parametrize("text", ["gpu", "=H100", "window=[1"])
def test_what_cannot_be_read_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        metadata(text)


@pytest.mark.parametrize("text", ["{", "[1]", "missing.json"])
def test_an_unrecognised_document_is_refused(text: str, tmp_path: Path) -> None:
    if text == "[1]":
        (tmp_path / "list.json").write_text(text)
        text = str(tmp_path / "list.json")
    with pytest.raises(UsageError):
        metadata(meta=text)


def log_in(folder: Path, step_time_ms: float = 400) -> str:
    path = folder / "train.log"
    path.write_bytes(training_log(step_time_ms=step_time_ms))
    return str(path)


def test_traces_are_attached_to_the_uploaded_run(server: Running, tmp_path: Path) -> None:
    traces = [str(corpus() / f"synthetic/seed-11/ranks-{rank}.json.gz") for rank in range(2)]
    words = ("upload", log_in(tmp_path), "--project", "client-profile", "--json", "--profile", *traces)
    done = threewalls(server.address, tmp_path, *words)
    assert done.code == 0, done.err
    run_id = done.document["id"]
    items = httpx2.get(f"{server.address}/api/v1/runs/{run_id}/profiles", timeout=300).json()["items"]
    assert [file["name"] for file in items[0]["files"]] == ["ranks-0.json.gz", "ranks-1.json.gz"]
    assert done.document["profile"].endswith(f"/profiles/{items[0]['id']}")


def test_a_missing_trace_leaves_the_run_uploaded_and_fails(server: Running, tmp_path: Path) -> None:
    words = ("upload", log_in(tmp_path, 431), "--project", "client-profile", "--profile", str(tmp_path / "gone.json"))
    done = threewalls(server.address, tmp_path, *words)
    assert done.code != 0
    assert "its profile is not" in done.err
    assert done.out.startswith("run ")


NOWHERE = "http://127.0.0.1:9/"


def asking(engine: Engine, settings: Settings) -> int:
    for number, time in enumerate(steady(1000, 10)):
        arrive(engine, time, number)
    run = arrive(engine, 1023.0, 10, "abc123", job="perf")
    judge_all(engine, settings)
    return run


def test_an_inconclusive_verdict_asks_once_for_few_reruns(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    run = asking(engine, settings)
    verdict = client.get(f"/api/v1/runs/{run}/verdict").json()
    assert verdict["verdict"] == "inconclusive"
    assert verdict["rerun"]["runs"] == verdict["need_runs"] == 1
    assert (verdict["rerun"]["commit"], verdict["rerun"]["job"]) == ("abc123", "perf")
    assert verdict["rerun"]["requested_by"] == run
    assert client.get(f"/api/v1/runs/{run}/report").json()["rerun"] == verdict["rerun"]
    again = arrive(engine, 1024.0, 11, "abc123", job="perf")
    judge_all(engine, settings)
    verdict = client.get(f"/api/v1/runs/{again}/verdict").json()
    assert verdict["candidate"]["runs"] == [str(run), str(again)]
    assert (verdict["verdict"], verdict["looks"], verdict["test"]["looks"]) == ("regression", 2, 2)
    assert verdict["rerun"] is None


def test_the_figures_of_a_verdict_give_its_interval(engine: Engine, settings: Settings, client: TestClient) -> None:
    run = asking(engine, settings)
    verdict = client.get(f"/api/v1/runs/{run}/verdict").json()
    test, time = verdict["test"], verdict["metrics"]["step_time_ms"]
    assert (test["candidate_runs"], test["baseline_runs"]) == (1, len(verdict["baseline"]["runs"]))
    assert test["degrees_of_freedom"] == 12
    half = 3.0545395894 * test["standard_error"]  # t(0.995, 12)
    assert time["ci_low_pct"] == pytest.approx(100 * (math.exp(test["shift"] - half) - 1))


def test_the_request_sends_a_notification(engine: Engine, settings: Settings, client: TestClient) -> None:
    for number, time in enumerate(steady(1000, 10)):
        arrive(engine, time, number)
    listen(engine, NOWHERE, "rerun.requested")
    arrive(engine, 1023.0, 10, "abc123")
    judge_all(engine, settings)
    assert [event for event, *_ in states(engine)] == ["rerun.requested"]


def test_only_the_first_run_of_a_commit_requests_reruns(engine: Engine, settings: Settings, client: TestClient) -> None:
    for number, time in enumerate(steady(1000, 5)):
        arrive(engine, time, number)
    listen(engine, NOWHERE, "rerun.requested")
    run = arrive(engine, 1027.0, 5, "abc123")
    judge_all(engine, settings)
    assert client.get(f"/api/v1/runs/{run}/verdict").json()["rerun"]["runs"] == 2
    again = arrive(engine, 1027.0, 6, "abc123")
    judge_all(engine, settings)
    requests = [client.get(f"/api/v1/runs/{number}/verdict").json()["rerun"] for number in (run, again)]
    assert [(request["requested_by"], request["runs"]) for request in requests] == [(run, 1)] * 2
    assert len(states(engine)) == 1
    assert f"which run {run} requested" in client.get(f"/api/v1/runs/{again}/report.md").text


REPORT: dict[str, Any] = {
    "run": {"id": 17, "name": "nightly", "address": "http://x/runs/17"},
    "status": "judged",
    "headline": "inconclusive",
    "exit_code": 5,
    "rerun": {"runs": 2, "commit": "abc123", "config_key": "9" * 64, "job": "perf", "command": "run.sh"},
}


def test_the_command_prints_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(Answer(body=REPORT)) as service:
        assert main(["rerun", "17", "--url", service.url]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        "2 more of run 17: commit abc123, configuration 999999999999", "job: perf", "command: run.sh",
    ]  # fmt: skip


def test_the_command_starts_each_rerun_with_what_it_needs(tmp_path: Path) -> None:
    log = tmp_path / "started"
    command = f'echo "$THREEWALLS_RERUN_COMMIT $THREEWALLS_RERUN_NUMBER of $THREEWALLS_RERUN_COUNT" >> {log}'
    with answering(Answer(body=REPORT)) as service:
        assert main(["rerun", "17", "--url", service.url, "--exec", command]) == 0
        assert log.read_text().splitlines() == ["abc123 1 of 2", "abc123 2 of 2"]
        assert main(["rerun", "17", "--url", service.url, "--exec", "exit 7"]) == 3


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_rerun_starts_none_of_the_missing_reruns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    request = REPORT["rerun"] | {"requested_by": 15}
    with answering(Answer(body=REPORT | {"rerun": request})) as service:
        command = f"touch {tmp_path / 'started'}"
        assert main(["rerun", "17", "--url", service.url, "--exec", command, *form]) == 0
    assert not (tmp_path / "started").exists()
    printed = capsys.readouterr().out
    assert json.loads(printed)["rerun"] == request if form else "run 15 requested 2 more" in printed


def test_a_run_that_asks_for_nothing_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(Answer(body=REPORT | {"rerun": None})) as service:
        assert main(["rerun", "17", "--url", service.url, "--exec", f"touch {tmp_path / 'started'}"]) == 0
        assert main(["rerun", "17", "--url", service.url, "--json"]) == 0
    assert not (tmp_path / "started").exists()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run 17 needs no rerun: inconclusive"
    assert json.loads(lines[1]) == {"schema": "rerun/1", "run": 17, "rerun": None}


def test_a_folder_with_two_jobs_becomes_two_runs_and_one_run_of_them_says_so(server: Running, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    write(folder, "long-rank0.log", training_log(iterations=60))
    write(folder, "long-rank1.log", b"rank 1 prints no iterations\n")
    write(folder, "short.log.gz", gzip.compress(training_log(iterations=40)))
    write(folder, "image.txt", b"nvcr.io/nvidia/nemo:26.06\n")
    words = (str(folder), "--project", "client-jobs", "--json", "--set", "gpu=H100")
    done = upload(server, tmp_path, *words)
    assert done.code == 0, done.err
    runs = [json.loads(line) for line in done.out.splitlines()]
    sent = [httpx2.get(f"{server.address}/api/v1/runs/{run['id']}", timeout=300).json()["files"] for run in runs]
    assert [sorted(file["name"] for file in files) for files in sent] == [
        ["image.txt", "long-rank0.log", "long-rank1.log"],
        ["image.txt", "short.log.gz"],
    ]
    assert "train_iters 60" in done.err
    assert upload(server, tmp_path, *words).code == 0
    assert len(runs_of(server, "client-jobs")) == 2  # sent again, they are the same

    repeat = training_log(iterations=60, step_time_ms=440.0, noise_bytes=1 << 21)
    write(folder, "repeat.log", repeat.replace(b"[2026-08-22", b"[2026-08-23"))
    assert len(upload(server, tmp_path, *words).out.splitlines()) == 3

    as_one = upload(server, tmp_path, *words, "--each", "none", "--wait")
    run = httpx2.get(f"{server.address}/api/v1/runs/{as_one.document['id']}", timeout=300).json()
    assert any("two different jobs" in warning for warning in run["warnings"])
    assert set(run["warnings"]) <= set(as_one.document["warnings"])
    assert all(warning.split()[0] in as_one.err for warning in run["warnings"])


def test_each_file_can_be_a_separate_run(server: Running, tmp_path: Path) -> None:
    logs = [write(tmp_path, f"{name}.log", training_log(step_time_ms=time)) for name, time in (("a", 400), ("b", 410))]
    done = upload(server, tmp_path, *logs, "--project", "client-files", "--each", "file", "--key", "night")
    assert done.code == 0, done.err
    assert sorted(str(run["name"]) for run in runs_of(server, "client-files")) == ["a", "b"]

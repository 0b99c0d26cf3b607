"""What happens is told once, to those who want to hear it, in the transaction in which it happens."""

from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.pipeline.work import stack_queue
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.tables import EVERYTHING, RunRow, utc_now
from tests.notifications.sent import PROJECT, deliveries, listen, project, states
from tests.regressions.judging import arrive, judge_all, steady
from tests.runs.uploading import upload
from workers.tasks import process_run

NOWHERE = "http://127.0.0.1:9/"


def bring(engine: Engine, settings: Settings, times: list[float], at: float = 0, **columns: object) -> list[int]:
    columns = {"project": PROJECT, "created_at": utc_now()} | columns
    runs = [arrive(engine, time, at + number, **columns) for number, time in enumerate(times)]
    judge_all(engine, settings)
    return runs


def events(engine: Engine) -> list[str]:
    return [one.event for one in deliveries(engine)]


def test_a_regression_is_told_when_it_opens_when_it_recovers_and_when_it_is_back(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    listen(engine, NOWHERE, "regression.opened", "regression.reopened", "regression.recovered", "regression.fixed")
    bring(engine, settings, steady(1000, 14))
    assert events(engine) == []
    bring(engine, settings, steady(1080, 5), 14)
    assert events(engine) == ["regression.opened"]
    told = deliveries(engine)[0].payload
    assert "step time" in told["title"]
    assert "slower in moe-lab" in told["title"]
    assert "Qwen3-30B-A3B" in " ".join(told["lines"])
    assert told["data"]["regression"]["id"] == 1
    bring(engine, settings, steady(1000, 4), 19)
    assert events(engine)[1:] == ["regression.recovered"]
    accepted = {"author": "Ada", "proposal": "accept"}
    assert client.patch("/api/v1/regressions/1", json=accepted).status_code == 200
    assert events(engine)[2:] == ["regression.fixed"]
    assert "Ada says so." in deliveries(engine)[2].payload["lines"]
    # The web process has rung the bell, for the first of them: the others wait behind it.
    assert [one.work for one in deliveries(engine)] == ["rung", "waiting", "waiting"]
    bring(engine, settings, steady(1080, 4), 24)
    assert events(engine)[3:] == ["regression.reopened"]


def test_what_is_judged_again_is_not_told_again(engine: Engine, settings: Settings) -> None:
    listen(engine, NOWHERE, "regression.opened", "verdict.regression", "verdict.no_baseline", "verdict.inconclusive")
    runs = bring(engine, settings, [*steady(1000, 14), 1080.0])
    before = states(engine)
    assert ("verdict.regression", "waiting", 0) in before
    assert ("verdict.no_baseline", "waiting", 0) in before
    with transaction(engine) as session:
        row = session.get_one(RunRow, runs[0])
        stack_queue.request(session, row.project_id, row.stack_key, judge_from=EVERYTHING, because="Again.")
    judge_all(engine, settings)
    assert states(engine) == before


def test_news_go_to_those_who_want_that_event_of_that_stack_and_are_not_paused(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    run = bring(engine, settings, steady(1000, 13))[0]
    with read_session(engine) as session:
        stack = session.get_one(RunRow, run).stack_key
    wanted = [
        listen(engine, NOWHERE, "regression.opened"),
        listen(engine, NOWHERE, "regression.opened", stacks=(stack,)),
    ]
    listen(engine, NOWHERE, "regression.opened", stacks=("0" * 64,))
    listen(engine, NOWHERE, "regression.fixed")
    paused = listen(engine, NOWHERE, "regression.opened")
    answer = client.patch(f"/api/v1/projects/{PROJECT}/receivers/{paused}", json={"enabled": False, "author": "Ada"})
    assert answer.json()["enabled"] is False
    bring(engine, settings, [1080.0], 13)
    assert [one.receiver_id for one in deliveries(engine)] == wanted


def test_runs_that_were_uploaded_long_ago_are_no_news(engine: Engine, settings: Settings) -> None:
    listen(engine, NOWHERE, "verdict.no_baseline")
    bring(engine, settings, [1000.0], created_at=utc_now().replace(year=2025))
    assert events(engine) == []


def test_an_experiment_has_no_verdict_to_tell(engine: Engine, settings: Settings) -> None:
    listen(engine, NOWHERE, "verdict.regression", "verdict.improvement", "verdict.no_baseline")
    bring(engine, settings, [1000.0], purpose="experiment")
    assert events(engine) == []


def test_a_run_that_cannot_be_read_is_told_once(client: TestClient, engine: Engine) -> None:
    log = b"torch.OutOfMemoryError: CUDA out of memory.\n" * 40
    project(engine)
    listen(engine, NOWHERE, "run.failed")
    run_id = upload(client, log, meta={"project": PROJECT, "name": "night"}).json()["id"]
    process_run(run_id)
    process_run(run_id)
    (told,) = deliveries(engine)
    assert (told.event, told.payload["title"]) == ("run.failed", "Failed: night in moe-lab")
    assert told.payload["data"]["run"].keys() == {"id", "name", "branch", "commit", "stack"}
    assert told.payload["path"] == f"/runs/{run_id}"
    assert told.work == "rung"  # the worker that read the run has rung the bell


def test_a_failure_is_told_once_for_all_reruns_that_fail_alike(client: TestClient, engine: Engine) -> None:
    project(engine)
    listen(engine, NOWHERE, "run.failed")
    missing = b"ModuleNotFoundError: No module named 'deep_ep'\n"
    crashed = b"RuntimeError: CUDA error: an illegal memory access was encountered\n"

    def fail(log: bytes, name: str, **meta: str) -> None:
        answer = upload(client, log + name.encode(), meta={"project": PROJECT, "name": name, **meta})
        process_run(answer.json()["id"])

    job = {"branch": "main", "commit": "0f3c2a9d", "model": "Qwen3-30B-A3B", "gpu": "H100"}
    fail(missing, "first", **job)
    fail(missing, "again", **job)
    fail(crashed, "otherwise", **job)
    fail(missing, "elsewhere", **job | {"gpu": "GB200"})
    fail(missing, "later", **job | {"commit": "77aa01bc"})
    told = [one.payload for one in deliveries(engine)]
    assert [one["data"]["run"]["name"] for one in told] == ["first", "otherwise", "elsewhere", "later"]
    assert told[0]["data"]["run"] | {"id": 1, "stack": ""} == {
        "id": 1, "name": "first", "branch": "main", "commit": "0f3c2a9d", "stack": "",
    }  # fmt: skip
    assert told[0]["lines"][-1].startswith("On Qwen3-30B-A3B · H100")
    assert told[0]["lines"][-1].endswith(", branch main, commit 0f3c2a9d.")


def test_stacks_of_one_title_are_told_apart(engine: Engine, settings: Settings) -> None:
    listen(engine, NOWHERE, "verdict.no_change")
    for seq_len in (4096, 8192):
        for number, time in enumerate(steady(1000, 14)):
            arrive(engine, time, number, project=PROJECT, fields={"seq_len": seq_len}, created_at=utc_now())
        judge_all(engine, settings)
    lines = {one.payload["lines"][-1] for one in deliveries(engine)}
    assert any(" · seq 8192, branch" in line for line in lines)

"""Which events become messages, once and in order, on both databases."""

import json
import threading

import pytest
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.testclient import TestClient

from app.domain.notifications.messages import ATTEMPTS
from app.domain.numbers import THIN
from app.domain.verdict.document import UNCONFIRMED
from app.pipeline.work import delivery_queue, stack_queue
from app.settings import Settings
from app.storage.database import make_engine, read_session, transaction
from app.storage.tables import EVERYTHING, DeliveryRow, RunRow, utc_now
from tests.notifications.receiving import Receiver
from tests.notifications.sent import (
    API,
    PROJECT,
    a_day_later,
    add,
    deliveries,
    later,
    listen,
    project,
    put_news,
    put_trial,
    states,
    work_off,
)
from tests.regressions import judging
from tests.regressions.judging import arrive, judge_all, steady
from tests.runs.uploading import upload
from workers.tasks import process_run

NOWHERE = "http://127.0.0.1:9/"


def bring(engine: Engine, settings: Settings, times: list[float], at: float = 0, **columns: object) -> list[int]:
    return judging.bring(engine, settings, times, at, **{"project": PROJECT, "created_at": utc_now(), **columns})


def events(engine: Engine) -> list[str]:
    return [delivery.event for delivery in deliveries(engine)]


def test_a_regression_is_reported_when_it_opens_recovers_and_returns(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    listen(engine, NOWHERE, "regression.opened", "regression.reopened", "regression.recovered", "regression.fixed")
    bring(engine, settings, steady(1000, 14))
    assert events(engine) == []
    bring(engine, settings, steady(1080, 5), 14)
    assert events(engine) == ["regression.opened"]
    payload = deliveries(engine)[0].payload
    assert "% slower" in payload["title"]
    assert "slower in moe-lab" in payload["title"]
    assert "Qwen3-30B-A3B" in " ".join(payload["lines"])
    assert payload["data"]["regression"]["id"] == 1
    bring(engine, settings, steady(1000, 4), 19)
    assert events(engine)[1:] == ["regression.recovered"]
    accepted = {"author": "Ada", "proposal": "accept"}
    assert client.patch("/api/v1/regressions/1", json=accepted).status_code == 200
    assert events(engine)[2:] == ["regression.fixed"]
    assert "Ada says so." in deliveries(engine)[2].payload["lines"]
    # The web process enqueued the first of them; the others wait behind it.
    assert [delivery.work for delivery in deliveries(engine)] == ["enqueued", "waiting", "waiting"]
    bring(engine, settings, steady(1080, 4), 24)
    assert events(engine)[3:] == ["regression.reopened"]


def test_runs_that_are_judged_again_are_not_reported_again(engine: Engine, settings: Settings) -> None:
    listen(engine, NOWHERE, "regression.opened", "verdict.regression", "verdict.no_baseline", "verdict.inconclusive")
    runs = bring(engine, settings, [*steady(1000, 14), 1080.0, 1081.0])
    before = states(engine)
    assert ("verdict.regression", "waiting", 0) in before
    assert ("verdict.no_baseline", "waiting", 0) in before
    with transaction(engine) as session:
        row = session.get_one(RunRow, runs[0])
        stack_queue.request(session, row.project_id, row.stack_key, judge_from=EVERYTHING, because="Again.")
    judge_all(engine, settings)
    assert states(engine) == before


@pytest.mark.parametrize("reruns", [1, 2])
def test_a_notification_of_a_verdict_begins_as_the_page_of_its_run(
    engine: Engine, settings: Settings, client: TestClient, reruns: int
) -> None:
    listen(engine, NOWHERE, "verdict.regression")
    bring(engine, settings, steady(1000, 14))
    slow = bring(engine, settings, [1080.0 + number for number in range(reruns)], 14, commit="deadbeef")[0]
    payload = deliveries(engine)[0].payload
    report = client.get(f"/api/v1/runs/{slow}/report").json()
    badge = payload["data"]["verdict"]["badge"]
    assert payload["title"].startswith(f"{badge[0].upper()}{badge[1:]}: ")
    assert report["headline"].replace(THIN, " ") == f"{badge} · {payload['lines'][0]}"
    assert (badge == UNCONFIRMED) == payload["data"]["verdict"]["needs_confirmation"] == (reruns == 1)


def test_notifications_go_to_active_receivers_of_the_event_and_stack(
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
    bring(engine, settings, [1080.0, 1081.0], 13)
    assert [delivery.receiver_id for delivery in deliveries(engine)] == wanted


def test_runs_uploaded_long_ago_send_no_notification(engine: Engine, settings: Settings) -> None:
    listen(engine, NOWHERE, "verdict.no_baseline")
    bring(engine, settings, [1000.0], created_at=utc_now().replace(year=2025))
    assert events(engine) == []


def test_an_experiment_has_no_verdict_to_tell(engine: Engine, settings: Settings) -> None:
    listen(engine, NOWHERE, "verdict.regression", "verdict.improvement", "verdict.no_baseline")
    bring(engine, settings, [1000.0], purpose="experiment")
    assert events(engine) == []


def test_an_unreadable_run_is_reported_once(client: TestClient, engine: Engine) -> None:
    log = b"torch.OutOfMemoryError: CUDA out of memory.\n" * 40
    project(engine)
    listen(engine, NOWHERE, "run.failed")
    run_id = upload(client, log, meta={"project": PROJECT, "name": "night"}).json()["id"]
    process_run(run_id)
    process_run(run_id)
    (delivery,) = deliveries(engine)
    assert (delivery.event, "night in moe-lab" in delivery.payload["title"]) == ("run.failed", True)
    assert delivery.payload["data"]["run"].keys() == {"id", "name", "branch", "commit", "stack"}
    assert delivery.payload["path"] == f"/runs/{run_id}"
    assert delivery.work == "enqueued"  # by the worker that read the run


def test_a_failure_is_reported_once_for_all_reruns_that_fail_alike(client: TestClient, engine: Engine) -> None:
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
    payloads = [delivery.payload for delivery in deliveries(engine)]
    assert [item["data"]["run"]["name"] for item in payloads] == ["first", "otherwise", "elsewhere", "later"]
    assert payloads[0]["data"]["run"] | {"id": 1, "stack": ""} == {
        "id": 1, "name": "first", "branch": "main", "commit": "0f3c2a9d", "stack": "",
    }  # fmt: skip
    assert payloads[0]["lines"][-1].startswith("On Qwen3-30B-A3B · H100")
    assert payloads[0]["lines"][-1].endswith(", branch main, commit 0f3c2a9d.")


def test_stacks_of_one_title_are_distinguished(engine: Engine, settings: Settings) -> None:
    listen(engine, NOWHERE, "verdict.no_change")
    for seq_len in (4096, 8192):
        for number, time in enumerate(steady(1000, 14)):
            arrive(engine, time, number, project=PROJECT, fields={"seq_len": seq_len}, created_at=utc_now())
        judge_all(engine, settings)
    lines = {delivery.payload["lines"][-1] for delivery in deliveries(engine)}
    assert any(" · seq 8192, branch" in line for line in lines)


def put_all(engine: Engine, receiver_id: int, *events: str, number: int = 7) -> list[int]:
    with transaction(engine) as session:
        return [put_news(session, receiver_id, event, number) for event in events]


def types_received(receiver: Receiver) -> list[str]:
    return [json.loads(item.body)["type"].partition(".")[2] for item in receiver.got]


def test_waiting_deliveries_are_sent_before_later_ones(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    receiver_id = listen(engine, receiver.address)
    receiver.answers = [500]
    put_all(engine, receiver_id, "fixed")
    assert work_off(engine, settings) == [False]
    # A new event of the same regression triggers a retry, the older message first. Events of another regression do not.
    put_all(engine, receiver_id, "reopened")
    put_all(engine, receiver_id, "opened", number=8)
    assert work_off(engine, settings) == [True, True]
    assert work_off(engine, settings) == [True]
    assert types_received(receiver) == ["fixed", "fixed", "opened", "reopened"]
    assert {state for _, state, _ in states(engine)} == {"delivered"}


def test_given_up_deliveries_block_no_others(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    receiver_id = listen(engine, receiver.address)
    receiver.answers = [410]
    put_all(engine, receiver_id, "opened", "fixed")
    assert work_off(engine, settings) == [False]
    assert work_off(engine, settings) == [True]
    assert types_received(receiver) == ["opened", "fixed"]


def test_all_that_waits_goes_when_the_receiver_is_back(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    receiver_id = listen(engine, receiver.address)
    receiver.answers = [500, 500]
    put_all(engine, receiver_id, "opened")
    work_off(engine, settings)
    put_all(engine, receiver_id, "opened", number=8)  # detects it itself, and so does not wait
    work_off(engine, settings)
    assert work_off(engine, settings) == []
    with transaction(engine) as session:
        put_trial(session, receiver_id)
    assert work_off(engine, settings) == [True]
    assert work_off(engine, settings) == [True, True]


def test_a_rejected_message_does_not_block_others(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    receiver_id = listen(engine, receiver.address)
    receiver.answers = [400, 200, 400]
    put_all(engine, receiver_id, "opened")
    work_off(engine, settings)
    put_all(engine, receiver_id, "opened", number=8)
    assert work_off(engine, settings) == [True]
    put_all(engine, receiver_id, "opened", number=9)
    # The receiver accepted one meanwhile, so its refusal of the first says nothing about the third.
    assert work_off(engine, settings) == [False, True]


def test_a_message_that_is_repeatedly_refused_is_not_retried_with_every_other(
    engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    receiver_id = listen(engine, receiver.address)
    receiver.refuses = b'"id":7,'
    put_all(engine, receiver_id, "opened")
    for number in range(ATTEMPTS + 4):
        put_all(engine, receiver_id, "opened", number=100 + number)
        while work_off(engine, settings):
            pass
    bad, *others = deliveries(engine)
    assert (bad.state, bad.attempts) == ("waiting", ATTEMPTS)
    assert {(other.state, other.attempts) for other in others} <= {("delivered", 1)}
    a_day_later(engine)
    later(engine)
    assert work_off(engine, settings) == [False]
    assert deliveries(engine)[0].state == "failed"


def test_waiting_deliveries_are_sent_on_request(
    client: TestClient, engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    project(engine)
    receiver_id = add(client, receiver.address)["id"]
    receiver.answers = [500]
    first, second = put_all(engine, receiver_id, "fixed", "reopened")
    work_off(engine, settings)
    assert work_off(engine, settings) == []
    listed = {entry["id"]: entry for entry in client.get(f"{API}/deliveries").json()["items"]}
    assert (listed[first]["behind"], listed[second]["behind"]) == (None, first)
    page = client.get(f"/settings/projects/moe-lab/notifications/{receiver_id}").text
    assert f"after #{first}" in page
    assert page.count("Send now") == 2
    # The preceding message is tried as well; otherwise nothing would happen.
    answer = client.post(f"{API}/deliveries/{second}/replay", json={"author": "Ada"})
    assert (answer.status_code, answer.json()) == (202, {"delivery": second})
    assert deliveries(engine)[0].work == "enqueued"
    later(engine)
    assert work_off(engine, settings) == [True]
    assert work_off(engine, settings) == [True]
    assert types_received(receiver) == ["fixed", "fixed", "reopened"]


@pytest.mark.parametrize("settled_by", ["replay", "dismiss"])
def test_given_up_deliveries_are_resent_together_or_dismissed(
    client: TestClient, engine: Engine, settings: Settings, receiver: Receiver, settled_by: str
) -> None:
    project(engine)
    receiver_id = add(client, receiver.address)["id"]
    receiver.answers = [410, 410, 410]
    given_up = put_all(engine, receiver_id, "opened", "recovered", "fixed")
    with transaction(engine) as session:
        session.add(
            DeliveryRow(receiver_id=receiver_id, event="test", cause="old", state="failed", work="", payload={"v": 0})
        )
    for _ in given_up:
        work_off(engine, settings)
    at = "/settings/projects/moe-lab/notifications"
    assert client.get(f"{API}/receivers/{receiver_id}").json()["failed"] == 4
    assert "4 messages were not delivered" in client.get(f"{at}/{receiver_id}").text
    answer = client.post(f"{API}/receivers/{receiver_id}/{settled_by}", json={"author": "Ada"})
    if settled_by == "replay":
        replayed = answer.json()["deliveries"]
        for _ in given_up:
            assert work_off(engine, settings) == [True]
        assert types_received(receiver)[3:] == ["opened", "recovered", "fixed"]
        assert [row.replay_of for row in deliveries(engine) if row.id in replayed] == given_up
        # A message that this version cannot read stays, with an error.
        assert client.get(f"{API}/receivers/{receiver_id}").json()["failed"] == 1
        bad = client.post(f"{API}/deliveries/{given_up[-1] + 1}/replay", json={"author": "Ada"})
        assert (bad.status_code, "another version stored it" in bad.text) == (422, True)
        assert "Dismissed." in client.post(f"{at}/{receiver_id}/dismiss", data={"author": "Ada"}).text
    else:
        assert answer.json() == {"dismissed": 4}
        assert "Queued." in client.post(f"{at}/{receiver_id}/replay", data={"author": "Ada"}).text  # there is none left
        assert len(deliveries(engine)) == 4
    assert client.get(f"{API}/receivers/{receiver_id}").json()["failed"] == 0
    assert "not delivered" not in client.get(at).text


def test_what_cannot_be_read_any_more_is_given_up_with_its_reason(
    engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    receiver_id = listen(engine, receiver.address)
    with transaction(engine) as session:
        session.add(DeliveryRow(receiver_id=receiver_id, event="test", cause="old", payload={"title": "of version 0"}))
    assert work_off(engine, settings) == [False]
    (row,) = deliveries(engine)
    assert (row.state, "cannot be read" in row.error) == ("failed", True)
    assert receiver.got == []


def test_one_worker_gets_a_message_and_duplicates_have_no_effect(postgres_url: str, receiver: Receiver) -> None:
    settings = Settings(database_url=postgres_url)
    engine = make_engine(settings)
    try:
        receiver_id = listen(engine, receiver.address)
        with transaction(engine) as session:
            assert put_trial(session, receiver_id)
            assert not put_trial(session, receiver_id)
            delivery_queue.mark_due(session)
        number, taken = deliveries(engine)[0].id or 0, list[int]()
        together = threading.Barrier(4)

        def take() -> None:
            together.wait()
            with transaction(engine) as session:
                if _claimed(session, number):
                    taken.append(number)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert taken == [number]
        later(engine)  # its worker died
        with transaction(engine) as session:
            assert delivery_queue.mark_due(session) == [number]
        with transaction(engine) as session:
            delivery_queue.void_leases(session)
        assert work_off(engine, settings) == [True]
        assert states(engine) == [("test", "delivered", 2)]
    finally:
        engine.dispose()


def _claimed(session: Session, number: int) -> bool:
    return delivery_queue.claim(session, number) is not None

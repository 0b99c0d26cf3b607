"""Receivers of notifications: API and pages."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, update
from starlette.testclient import TestClient

from app.domain.notifications.events import EVENTS, USUAL
from app.settings import ROOT, Settings
from app.storage.audit import events
from app.storage.database import read_session, transaction
from app.storage.tables import AllowanceRow, DeliveryRow, ReceiverRow, StackWorkRow, utc_now
from tests.builders import make_project
from tests.notifications.receiving import Receiver
from tests.notifications.sent import API, PROJECT, add, deliveries, later, listen, project, put_trial, states, work_off
from tests.runs.uploading import assert_problem

SECRET_PATH = "T0/B0/very-secret"
SLACK = f"https://hooks.slack.com/services/{SECRET_PATH}"


@pytest.fixture(autouse=True)
def _project(engine: Engine) -> None:
    project(engine)


def record(engine: Engine, receiver_id: int) -> list[Any]:
    with read_session(engine) as session:
        return list(reversed(events(session, "receiver", receiver_id)))


def test_a_secret_is_shown_once_and_an_address_never_again(client: TestClient, engine: Engine) -> None:
    added = add(client, f"https://ci.example/hook?key={SECRET_PATH}")
    secret = added["secret"]
    assert secret.startswith("whsec_")
    assert added["target"] == "https://ci.example/…"
    assert added["events"] == list(USUAL)
    slack = add(client, SLACK, "slack")
    assert (slack["secret"], slack["target"]) == ("", "https://hooks.slack.com/…")
    pages = ("", f"/{added['id']}", f"/{slack['id']}")
    answers = [client.get(f"{API}/receivers").text, client.get(f"{API}/receivers/{added['id']}").text]
    answers += [client.get(f"/settings/projects/{PROJECT}/notifications{page}").text for page in pages]
    answers += [json.dumps([[item.before, item.after, item.note] for item in record(engine, added["id"])])]
    for text in answers:
        assert secret not in text
        assert SECRET_PATH not in text


def test_each_change_is_recorded_with_who_did_it(client: TestClient, engine: Engine) -> None:
    number = add(client, "https://ci.example/a", stacks=[])["id"]
    at = f"{API}/receivers/{number}"
    changed = client.patch(at, json={"author": "Bo", "name": "pager", "events": ["run.failed", "regression.opened"]})
    assert changed.json()["events"] == ["regression.opened", "run.failed"]
    assert client.patch(at, json={"author": "Bo", "target": "https://ci.example/b"}).status_code == 200
    assert client.patch(at, json={"author": "Bo", "enabled": False}).json()["enabled"] is False
    assert client.patch(at, json={"author": "Bo", "enabled": True}).json()["enabled"] is True
    renewed = client.post(f"{at}/secret", json={"author": "Cy"})
    assert renewed.json()["secret"].startswith("whsec_")
    assert renewed.headers["Cache-Control"] == "no-store"
    assert client.post(f"{at}/test", json={"author": "Cy"}).status_code == 202
    assert client.delete(at, params={"author": "Di"}).status_code == 204
    assert client.get(at).status_code == 404
    assert deliveries(engine) == []
    result = [(item.who, item.action) for item in record(engine, number)]
    assert result == [
        ("Ada", "added"), ("Ada", "changed"), ("Ada", "changed"), ("Ada", "paused"), ("Ada", "resumed"),
        ("Ada", "secret_renewed"), ("Ada", "tested"), ("Ada", "deleted"),
    ]  # fmt: skip
    assert record(engine, number)[1].before["name"] == "ci"


def test_a_test_message_arrives_and_can_be_sent_again(
    client: TestClient, engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    number = add(client, receiver.address)["id"]
    delivery = client.post(f"{API}/receivers/{number}/test", json={"author": "Ada"}).json()["delivery"]
    assert work_off(engine, settings) == [True]
    again = client.post(f"{API}/deliveries/{delivery}/replay", json={"author": "Ada"}).json()["delivery"]
    assert work_off(engine, settings) == [True]
    first, second = (json.loads(item.body) for item in receiver.got)
    assert (second["replay_of"], second["delivery"]) == (first["delivery"], deliveries(engine)[-1].message_id)
    assert len({first["delivery"], second["delivery"]}) == 2
    assert second["title"] == first["title"]
    assert first["url"].startswith("http://testserver/settings/projects/moe-lab/notifications")
    listed = client.get(f"{API}/deliveries").json()
    assert [(item["id"], item["replay_of"], item["state"]) for item in listed["items"]] == [
        (again, delivery, "delivered"), (delivery, None, "delivered"),
    ]  # fmt: skip
    assert client.get(f"{API}/deliveries", params={"state": "failed"}).json()["total"] == 0
    assert client.get(f"{API}/deliveries", params={"receiver": number, "page_size": 1}).json()["total"] == 2
    assert client.get(f"{API}/receivers/{number}").json()["delivered_at"] is not None


def test_deliveries_to_a_paused_receiver_are_not_sent(
    client: TestClient, engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    number = add(client, receiver.address)["id"]
    client.post(f"{API}/receivers/{number}/test", json={"author": "Ada"})
    client.patch(f"{API}/receivers/{number}", json={"author": "Ada", "enabled": False})
    later(engine)
    assert work_off(engine, settings) == []
    assert states(engine) == [("test", "failed", 0)]
    assert deliveries(engine)[0].error == "The receiver was paused."


def test_a_receiver_that_is_paused_hides_no_reason(
    client: TestClient, engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    number = add(client, receiver.address)["id"]
    receiver.answers = [500]
    client.post(f"{API}/receivers/{number}/test", json={"author": "Ada"})
    work_off(engine, settings)
    client.patch(f"{API}/receivers/{number}", json={"author": "Ada", "enabled": False})
    assert [part in deliveries(engine)[0].error for part in ("500", "paused")] == [True, True]
    assert "HTTP 500" not in client.get(f"/settings/projects/{PROJECT}/notifications/{number}").text


def test_test_messages_are_few(client: TestClient, engine: Engine) -> None:
    numbers = [add(client, f"https://ci.example/{place}")["id"] for place in range(5)]
    answers = [client.post(f"{API}/receivers/{numbers[0]}/test", json={"author": "Ada"}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [202, 202, 202, 429]
    assert 0 < int(answers[-1].headers["Retry-After"]) <= 60
    # Adding a receiver, or deleting one with its log, does not raise the limit.
    client.delete(f"{API}/receivers/{numbers[0]}", params={"author": "Ada"})
    answers = [client.post(f"{API}/receivers/{item}/test", json={"author": "Ada"}) for item in numbers[1:] * 2]
    assert [answer.status_code for answer in answers] == [202] * 7 + [429]
    page = client.post(f"/settings/projects/{PROJECT}/notifications/{numbers[1]}/test", data={"author": "Ada"})
    assert (page.status_code, "Retry-After" in page.headers) == (429, True)
    assert "10 tests per minute" in page.text
    with transaction(engine) as session:
        session.execute(update(AllowanceRow).values(began_at=utc_now() - timedelta(minutes=1)))
    assert client.post(f"{API}/receivers/{numbers[1]}/test", json={"author": "Ada"}).status_code == 202


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": " \t"}, "name"),
        ({"kind": "pigeon"}, "kind"),
        ({"target": "http://169.254.169.254/"}, "target"),
        ({"target": "https://u:p@ci.example/"}, "target"),
        ({"target": "https://2130706433/"}, "target"),
        ({"kind": "email", "target": "a@example.com"}, "target"),
        ({"events": ["everything"]}, "events"),
        ({"events": []}, "events"),
        ({"stacks": ["zz"]}, "stacks"),
        ({"stacks": ["abcdef12"]}, "stacks"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(client: TestClient, change: dict[str, Any], field: str) -> None:
    body = {"name": "ci", "kind": "webhook", "target": "https://ci.example/", "author": "Ada"} | change
    assert_problem(client.post(f"{API}/receivers", json=body), 422, field=field)
    assert client.get(f"{API}/receivers").json()["items"] == []


def test_stacks_are_named_by_their_beginnings(client: TestClient, engine: Engine) -> None:
    key = "ab" * 32
    with transaction(engine) as session:
        session.add(StackWorkRow(project_id=make_project(session, PROJECT).id or 0, stack_key=key))
        session.add(StackWorkRow(project_id=make_project(session, "other").id or 0, stack_key="cd" * 32))
    assert add(client, SLACK, "slack", stacks=[f"https://walls.example/history/{key[:16]}"])["stacks"] == [key]
    body = {"name": "ci", "kind": "slack", "target": SLACK, "stacks": ["cdcdcdcd"], "author": "Ada"}
    assert_problem(client.post(f"{API}/receivers", json=body), 422, field="stacks")


def test_another_project_s_receiver_is_not_there(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        row = ReceiverRow(
            project_id=make_project(session, "other").id or 0, kind="slack", name="x", target=SLACK, created_by="Ada"
        )
        session.add(row)
        session.flush()
        number = row.id
        session.add(DeliveryRow(receiver_id=number or 0, event="test", cause="test", state="failed", work=""))
        session.flush()
    theirs, none = (client.post(f"{API}/deliveries/{item}/replay", json={"author": "Ada"}) for item in (1, 9999))
    assert theirs.json() == none.json() | {"detail": none.json()["detail"].replace("9999", "1")}
    for answer in (
        client.get(f"{API}/receivers/{number}"),
        client.patch(f"{API}/receivers/{number}", json={"author": "Ada", "name": "y"}),
        client.delete(f"{API}/receivers/{number}", params={"author": "Ada"}),
        client.post(f"{API}/receivers/{number}/test", json={"author": "Ada"}),
        client.get(f"/settings/projects/{PROJECT}/notifications/{number}"),
    ):
        assert answer.status_code == 404


def test_every_event_has_its_meaning_in_the_document() -> None:
    text = (ROOT / "docs/notifications.md").read_text()
    for event, meaning in EVENTS.items():
        assert f"| `{event}` | {meaning}. " in text


AT = f"/settings/projects/{PROJECT}/notifications"
FORM = {
    "name": "ops",
    "kind": "webhook",
    "target": "https://ci.example/hook",
    "events": ["run.failed"],
    "author": "Ada",
}


def test_a_receiver_is_added_and_its_secret_shown_once(client: TestClient) -> None:
    assert "No receivers yet" in client.get(AT).text
    added = client.post(AT, data=FORM)
    assert added.status_code == 200
    assert added.headers["Cache-Control"] == "no-store"
    (secret,) = re.findall(r"whsec_[A-Za-z0-9+/=]{44}", added.text)
    assert secret not in client.get(f"{AT}/1").text
    assert "1 receiver gets notifications" in client.get(AT).text


def test_an_invalid_form_keeps_its_input(client: TestClient) -> None:
    answer = client.post(AT, data=FORM | {"target": "http://10.0.0.1/", "stacks": "zz"})
    assert answer.status_code == 422
    assert 'value="http://10.0.0.1/"' in answer.text
    assert "public internet" in answer.text
    assert "not a stack key" in answer.text


def test_a_receiver_is_changed_paused_tested_and_deleted(
    client: TestClient, engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    client.post(AT, data=FORM | {"target": receiver.address})
    saved = client.post(f"{AT}/1", data=FORM | {"target": "", "name": "night watch"})
    assert "Saved." in saved.text
    assert "night watch" in saved.text
    assert "It gets no notifications" in client.post(f"{AT}/1/pause", data={"author": ""}).text
    assert "Resumed." in client.post(f"{AT}/1/resume", data={}).text
    assert "is queued" in client.post(f"{AT}/1/test", data={"author": "Ada"}).text
    assert work_off(engine, settings) == [True]
    page = client.get(f"{AT}/1").text
    assert "HTTP 200" in page
    assert "night watch" in page
    assert "Queued." in client.post(f"{AT}/deliveries/1/replay", data={"author": "Ada"}).text
    assert [delivery.replay_of for delivery in deliveries(engine)] == [None, 1]
    assert re.findall(r"whsec_\S{44}", client.post(f"{AT}/1/secret", data={"author": "Ada"}).text)
    assert "Deleted with its log" in client.post(f"{AT}/1/delete", data={"author": "Ada"}).text
    assert client.get(f"{AT}/1").status_code == 404


def test_names_and_errors_are_text_on_the_page(client: TestClient, engine: Engine) -> None:
    hostile = "<script>alert(1)</script>"
    client.post(AT, data=FORM | {"name": hostile})
    client.post(f"{AT}/1/test", data={"author": hostile})
    for page in (AT, f"{AT}/1", f"{AT}?state=waiting"):
        text = client.get(page).text
        assert hostile not in text
        assert "&lt;script&gt;" in text


def test_the_log_pages(client: TestClient, engine: Engine) -> None:
    receiver_id = listen(engine, "https://ci.example/", "run.failed")
    with transaction(engine) as session:
        for number in range(30):
            put_trial(session, receiver_id, f"test:{number}")
    assert "1–25 of 30" in client.get(AT).text
    assert "26–30 of 30" in client.get(f"{AT}?page=2").text
    assert "past the end" in client.get(f"{AT}/{receiver_id}?page=9").text
    assert "Show all" in client.get(f"{AT}?state=failed").text
    assert client.get(f"{AT}?state=lost").status_code == 422


def test_the_settings_of_the_project_lead_there(client: TestClient) -> None:
    assert f'href="{AT}"' in client.get(f"/settings/projects/{PROJECT}").text

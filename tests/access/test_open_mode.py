"""A service without log-ins: what it still refuses, and to whom."""

import re

from fastapi import FastAPI
from sqlalchemy import Engine
from sqlmodel import SQLModel, func, select
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from app.access.routes import route_table
from app.storage.database import read_session, transaction
from tests.access.belongings import make_belongings
from tests.access.people import OURS
from tests.runs.uploading import LOG, upload

PAGE = {"Accept": "text/html"}
LASTING = (
    "account",
    "login_session",
    "member",
    "user_group",
    "group_role",
    "token",
    "receiver",
    "delivery",
    "audit_event",
)


def counted(engine: Engine) -> dict[str, int]:
    with read_session(engine) as session:
        tables = SQLModel.metadata.tables
        return {name: session.execute(select(func.count()).select_from(tables[name])).scalar_one() for name in LASTING}


def test_every_page_says_once_that_no_log_in_is_needed(app: FastAPI, client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        owned = make_belongings(session, OURS)
    settings = [route.path for route in route_table(app).routes if route.method == "GET" and "/settings/" in route.path]
    texts = {}
    for path in ("/", *settings):
        answer = client.get(path.format(**owned.params()), headers=PAGE)
        if answer.status_code == 200 and answer.headers["content-type"].startswith("text/html"):
            texts[path] = answer.text
    assert len(texts) > 15
    assert {path: text.count("data-local-mode") for path, text in texts.items()} == dict.fromkeys(texts, 1)


def test_users_tokens_receivers_and_public_projects_need_log_ins(
    app: FastAPI, client: TestClient, engine: Engine
) -> None:
    with transaction(engine) as session:
        owned = make_belongings(session, OURS)
    before = counted(engine)
    wrong = []
    refused = [
        route
        for route in route_table(app).routes
        if route.method not in ("GET", "HEAD", "MOUNT")
        and any(
            word in route.path
            for word in ("users", "members", "groups", "tokens", "notifications", "receivers", "public")
        )
    ]
    assert len(refused) > 30
    for route in refused:
        answer = client.request(route.method, route.path.format(**owned.params()))
        command = re.search(
            r"threewalls admin create NAME --data (\S+)$", answer.json()["detail"]
        )  # to copy, so at the end
        if answer.status_code != 403 or command is None:
            wrong.append(f"{route.key}: {answer.status_code} {answer.text}")
    switched = client.patch(f"/api/v1/projects/{OURS}", json={"public": True, "author": "Ada"})
    created = client.post("/api/v1/projects", json={"project": "open", "public": True, "author": "Ada"})
    assert not wrong, "\n".join(wrong)
    assert [switched.status_code, created.status_code] == [403, 403]
    assert counted(engine) == before


def test_the_pages_say_so_and_offer_no_form_for_it(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        owned = make_belongings(session, OURS)
    base = f"/settings/projects/{OURS}"
    for address in (
        "/settings/users",
        f"{base}/members",
        f"{base}/tokens",
        f"{base}/notifications",
        f"{base}/notifications/{owned.receiver}",
    ):
        page = client.get(address, headers=PAGE)
        assert page.status_code == 200, address
        assert f'method="post" action="{address}' not in page.text, address
        assert "on this machine" in page.text, address


def test_http_1_0_requests_may_come_through_a_proxy(app: FastAPI) -> None:
    """A request from nginx with only `proxy_pass`: no header identifies a proxy, and Host is 127.0.0.1."""

    async def by_http_1_0(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "http_version": "1.0"}, receive, send)

    old, new = (TestClient(way, headers={"Host": "127.0.0.1:8000"}) for way in (by_http_1_0, app))
    assert [old.get("/runs").status_code, upload(old, LOG).status_code] == [403, 403]
    assert [new.get("/runs").status_code, upload(new, LOG).status_code] == [200, 202]
    assert old.get("/healthz").status_code == 200


def test_an_action_without_a_body_needs_a_name(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_belongings(session, OURS)
    answer = client.post(f"/api/v1/projects/{OURS}/archive")
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (422, ["author"])
    assert answer.json()["errors"][0]["message"].startswith("is required")

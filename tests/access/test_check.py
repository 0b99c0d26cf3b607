"""The access check: its answers, the identity of a caller, and the texts of refusals."""

import html
import json
import re
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from app.access.routes import route_table
from app.domain.access.principal import Action, Role, Scope
from app.domain.references.point import published
from app.pipeline.process import read_run
from app.settings import Settings
from app.storage import tokens, users
from app.storage.database import transaction
from app.storage.json_text import to_json
from app.storage.log_files import LogFiles
from app.storage.tables import ReferencePointRow, utc_now
from tests.access.belongings import make_belongings
from tests.access.people import OURS, PUBLIC, THEIRS, Teams
from tests.builders import make_run
from tests.training_logs import training_log

PAGE = {"Accept": "text/html"}


def test_anonymous_users_log_in_and_return_to_the_page(teams: Teams) -> None:
    answer = teams.client("anonymous").get("/runs/7?x=1", headers=PAGE)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login?next=%2Fruns%2F7%3Fx%3D1")


def test_a_program_gets_401_with_instructions_to_authenticate(teams: Teams) -> None:
    answer = teams.client("anonymous").get("/api/v1/projects/alpha/defaults")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_a_part_of_a_page_sends_the_browser_to_the_log_in(teams: Teams) -> None:
    headers = PAGE | {"HX-Request": "true", "HX-Current-URL": "http://testserver/runs/1?q=a"}
    answer = teams.client("anonymous").get("/runs/1/chart", headers=headers)
    assert (answer.status_code, answer.headers["HX-Redirect"]) == (401, "/login?next=%2Fruns%2F1%3Fq%3Da")


@pytest.mark.parametrize("who", ["anonymous", "outsider"])
def test_invisible_objects_look_like_missing_ones(teams: Teams, who: str) -> None:
    with transaction(teams.engine) as session:
        run = make_run(session, project="alpha")
    client = teams.client(who)
    seen, missing = client.get(f"/api/v1/runs/{run}"), client.get("/api/v1/runs/99")
    assert seen.status_code == missing.status_code == (401 if who == "anonymous" else 404)
    assert seen.text.replace(f"run {run}", "run N") == missing.text.replace("run 99", "run N")


def test_users_who_may_only_read_learn_the_missing_role(teams: Teams) -> None:
    answer = teams.client("viewer").put("/api/v1/projects/alpha/defaults", json={"fields": {}, "author": "me"})
    assert answer.status_code == 403
    assert "maintainer" in answer.json()["detail"]


def test_a_refusal_names_the_missing_scope_of_a_token(teams: Teams) -> None:
    answer = teams.client("token:upload").get("/api/v1/projects/alpha/defaults")
    assert answer.status_code == 403
    assert "needs read" in answer.json()["detail"]


@pytest.mark.parametrize("token", ["tw_" + "a" * 43, "nonsense", ""])
def test_an_invalid_token_is_refused_even_where_none_is_needed(teams: Teams, token: str) -> None:
    client = teams.client("anonymous")
    assert client.get("/docs", headers={"Authorization": f"Bearer {token}"}).status_code == 401


def test_a_revoked_token_is_refused_immediately(teams: Teams) -> None:
    client = teams.client("token:read")
    assert client.get("/api/v1/projects/alpha/defaults").status_code == 200
    with transaction(teams.engine) as session:
        row = next(row for row in tokens.tokens_of(session, teams.ours, first=0, limit=100) if row.name == "token:read")
        tokens.revoke_token(session, row.id or 0, by="test")
    assert client.get("/api/v1/projects/alpha/defaults").status_code == 401


def test_an_expired_token_is_refused(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        row, token = tokens.make_token(session, project_id=teams.ours, name="old", scopes=[Scope.READ], by="test")
        row.expires_at = utc_now()
    answer = teams.client("anonymous").get(
        "/api/v1/projects/alpha/defaults", headers={"Authorization": f"Bearer {token}"}
    )
    assert answer.status_code == 401


def test_disabled_users_and_removed_members_lose_access_immediately(teams: Teams) -> None:
    maintainer, viewer = teams.client("maintainer"), teams.client("viewer")
    assert (
        maintainer.get("/settings/projects/alpha").status_code
        == viewer.get("/settings/projects/alpha").status_code
        == 200
    )
    with transaction(teams.engine) as session:
        users.set_rights(session, users.get_user(session, teams.users["maintainer"]), disabled=True, by="test")
        users.set_role(session, project_id=teams.ours, user_id=teams.users["viewer"], role=None, by="test")
    assert maintainer.get("/settings/projects/alpha", headers=PAGE).status_code == 303
    assert viewer.get("/settings/projects/alpha", headers=PAGE).status_code == 404


def test_a_new_role_takes_effect_immediately(teams: Teams) -> None:
    outsider = teams.client("outsider")
    assert outsider.get("/settings/projects/alpha").status_code == 404
    with transaction(teams.engine) as session:
        users.set_role(session, project_id=teams.ours, user_id=teams.users["outsider"], role=Role.VIEWER, by="test")
    assert outsider.get("/settings/projects/alpha").status_code == 200


def test_a_public_project_is_readable_by_all_and_writable_only_by_members(teams: Teams) -> None:
    nobody = teams.client("anonymous")
    assert nobody.get("/api/v1/projects/window/defaults").status_code == 200
    assert nobody.put("/api/v1/projects/window/defaults", json={}).status_code == 401
    assert teams.client("outsider").put("/api/v1/projects/window/defaults", json={}).status_code == 403


def test_a_logged_in_browser_must_identify_the_page_that_writes(teams: Teams) -> None:
    client = teams.client("maintainer")
    assert client.post("/logout").status_code == 303
    client = teams.client("maintainer")
    del client.headers["Sec-Fetch-Site"]
    for headers in ({}, {"Referer": "http://testserver/settings/projects/alpha"}):
        assert client.post("/settings/projects/alpha", data={}, headers=headers).status_code == 403
    assert client.post("/settings/projects/alpha", data={}, headers={"Origin": "http://testserver"}).status_code == 422


def test_a_required_password_change_comes_first(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        users.get_user(session, teams.users["viewer"]).must_change_password = True
    client = teams.client("viewer")
    assert client.get("/runs?q=a", headers=PAGE).headers["Location"] == "/account/password?next=%2Fruns%3Fq%3Da"
    assert client.get("/api/v1/runs").status_code == 403
    assert client.get("/account/password").status_code == 200


@pytest.mark.parametrize(
    ("who", "status"), [("anonymous", 401), ("maintainer", 403), ("token:all", 403), ("administrator", 200)]
)
def test_the_totals_of_all_projects_are_an_administrators(teams: Teams, who: str, status: int) -> None:
    assert teams.client(who).get("/metrics").status_code == status


def test_answers_for_a_user_are_stored_by_no_shared_cache(teams: Teams) -> None:
    headers = teams.client("viewer").get("/runs").headers
    assert headers["Cache-Control"] in ("private, no-cache", "no-store")
    assert "Cookie, Authorization" in headers["Vary"]


def test_without_log_ins_only_this_machine_gets_answers(client: TestClient) -> None:
    assert client.get("/runs").status_code == 200
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        assert client.get("/runs", headers={"Host": host}).status_code == 200
    answer = client.get("/runs", headers={"Host": "evil.example"})
    assert answer.status_code == 403
    assert "threewalls admin create" in answer.text


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Host", "Forwarded", "Via", "X-Real-IP"])
def test_without_log_ins_proxied_requests_are_refused(client: TestClient, header: str) -> None:
    answer = client.get("/api/v1/projects", headers={header: "203.0.113.66"})
    assert answer.status_code == 403
    assert "threewalls admin create" in answer.json()["detail"]


def test_the_first_administrator_ends_the_time_without_log_ins(client: TestClient) -> None:
    assert "Local mode" in client.get("/").text
    with transaction(client.app.state.engine) as session:
        users.create_user(session, "root", by="test", administrator=True)
    assert client.get("/", headers=PAGE, follow_redirects=False).status_code == 303


@pytest.mark.parametrize("spelled", ["{}", "%2B{}", "{}.0", "%20{}", "0{}"])
@pytest.mark.parametrize("address", ["/api/v1/runs/{}/facts", "/api/v1/regressions/{}", "/api/v1/references/{}"])
def test_another_spelling_of_an_id_is_the_same_object(teams: Teams, address: str, spelled: str) -> None:
    with transaction(teams.engine) as session:
        theirs = make_belongings(session, THEIRS)
    number = {"runs": theirs.run, "regressions": theirs.regression}.get(address.split("/")[3], theirs.reference)
    answer = teams.client("token:all").patch(address.format(spelled.format(number)), json={})
    assert answer.status_code == 404


@pytest.mark.parametrize("spelled", ["{}", "%2B{}", "{}.0"])
def test_a_figure_for_all_is_withdrawn_by_administrators_only(teams: Teams, spelled: str) -> None:
    number = _figure(teams, None)
    assert teams.client("token:all").delete(f"/api/v1/references/{spelled.format(number)}").status_code == 403


def test_a_figure_that_is_offered_to_all_is_its_team_s_no_more(teams: Teams) -> None:
    number, team = _figure(teams, teams.ours), teams.client("contributor")
    assert team.patch(f"/api/v1/references/{number}", json={}).status_code == 200
    with transaction(teams.engine) as session:
        row = session.get_one(ReferencePointRow, number)
        row.project_id = None
        session.add(row)
    assert team.patch(f"/api/v1/references/{number}", json={}).status_code == 403


def _figure(teams: Teams, project: int | None) -> int:
    with transaction(teams.engine) as session:
        point = replace(published()[0], measured_by="a lab", source="a slide")
        row = ReferencePointRow(project_id=project, point=to_json(point), added_by="somebody")
        session.add(row)
        session.flush()
        return row.id or 0


def test_every_call_documents_authentication_and_refusals(teams: Teams) -> None:
    document = teams.client("anonymous").get("/openapi.json").json()
    paths = document["paths"]
    assert set(document["components"]["securitySchemes"]) == {"token", "session"}
    for route in route_table(teams.app).routes:
        if route.path in paths and isinstance(route.rule.needs, Action):
            call = paths[route.path][route.method.lower()]
            wanted = {"401", "403"} | ({"404"} if route.rule.owner else set())
            assert (bool(call["security"]), wanted - set(call["responses"])) == (True, set()), route.key
    assert paths["/api/v1/runs/{run_id}"]["get"]["security"] == [{"token": []}, {"session": []}, {}]
    assert paths["/api/v1/definitions/retry"]["post"]["security"] == [{"session": []}]
    assert "security" not in paths["/healthz"]["get"]


def upload(client: TestClient, **meta: str) -> tuple[int, str]:
    """Return the status, and the project or the error."""
    answer = client.post("/api/v1/runs", files={"log": training_log()}, data={"meta": json.dumps(meta)})
    body = answer.json()
    return answer.status_code, body.get("detail", "")


def project_of(teams: Teams) -> str:
    runs = teams.client("administrator").get("/api/v1/runs").json()["items"]
    return str(runs[0]["project"])


def test_a_token_uploads_into_its_own_project_without_naming_it(teams: Teams) -> None:
    client = teams.client("token:upload")
    assert upload(client)[0] == 202
    assert project_of(teams) == "alpha"
    assert upload(client, project="alpha", name="again")[0] == 202
    status, text = upload(client, project=THEIRS)
    assert (status, "alpha" in text) == (403, True)


def test_a_run_is_of_the_same_stack_whether_its_upload_names_the_project(
    teams: Teams, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = teams.client("token:all")
    answers = [
        client.post("/api/v1/runs", files={"log": training_log()}, data={"meta": json.dumps(meta)}).json()
        for meta in ({"name": "a"}, {"name": "b", "project": "alpha"})
    ]
    engine, files = teams.engine, LogFiles.from_settings(settings)
    for answer in answers:
        read_run(engine, files, settings, int(answer["id"]))
    keys = {client.get(f"/api/v1/runs/{answer['id']}").json()["stack_key"] for answer in answers}
    assert len(keys) == 1


def test_a_user_uploads_to_projects_as_contributor(teams: Teams) -> None:
    client = teams.client("contributor")
    assert upload(client)[0] == 202
    assert project_of(teams) == "alpha"
    assert upload(client, project=THEIRS)[0] == upload(client, project="of-mine")[0] == 403


def test_an_administrator_begins_a_project_with_its_first_run(teams: Teams) -> None:
    assert upload(teams.client("administrator"), project="begun")[0] == 202
    assert project_of(teams) == "begun"


def test_missing_upload_permission_is_reported_before_the_log_is_read(teams: Teams) -> None:
    assert teams.client("anonymous").post("/api/v1/runs", content=b"whatever").status_code == 401
    assert teams.client("viewer").post("/api/v1/runs", content=b"whatever").status_code == 403


@pytest.mark.parametrize(("who", "name"), [("contributor", "contributor"), ("token:all", "token token:all")])
def test_a_change_is_recorded_under_the_user_s_own_name(teams: Teams, who: str, name: str) -> None:
    with transaction(teams.engine) as session:
        run = make_run(session, project="alpha")
    client, reader = teams.client(who), teams.client("viewer")
    for body_author in ({}, {"author": "the boss"}):
        assert (
            client.post(f"/api/v1/runs/{run}/quarantine", json={"note": "bad node", **body_author}).status_code == 200
        )
        assert reader.get(f"/api/v1/runs/{run}").json()["quarantine"]["by"] == name
        assert client.post(f"/api/v1/runs/{run}/release", json=body_author).status_code == 200


def test_a_form_does_not_ask_logged_in_users_for_a_name(teams: Teams) -> None:
    client = teams.client("maintainer")
    page = client.get("/settings/projects/alpha").text
    assert "Your name" not in page
    form = {"baseline_branch": "trunk", "commit_url": "", "compare_url": "", "author": "the boss"}
    assert client.post("/settings/projects/alpha/rules", data=form).status_code == 303
    assert client.get("/api/v1/projects/alpha/rules").json()["changes"][0]["who"] == "maintainer"


def test_only_administrators_change_figures_for_all_projects(teams: Teams) -> None:
    body = {"contract": {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "precision": "bf16"}, "step_time_ms": 1.0}
    body |= {"measured_by": "a lab", "source": "a paper", "date": "2026-08"}
    assert teams.client("contributor").post("/api/v1/references", json=body).status_code == 403
    assert teams.client("contributor").post("/api/v1/references", json=body | {"project": THEIRS}).status_code == 422
    assert teams.client("contributor").post("/api/v1/references", json=body | {"project": "alpha"}).status_code == 201
    answer = teams.client("administrator").post("/api/v1/references", json=body | {"note": "for all"})
    assert answer.status_code == 201
    number = answer.json()["id"]
    assert teams.client("outsider").get(f"/api/v1/references/{number}").status_code == 200
    assert teams.client("outsider").delete(f"/api/v1/references/{number}").status_code == 403


def words(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"\s+", " ", text)))


def test_a_refusal_names_the_project_the_roles_and_whom_to_ask(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        run, shown = make_run(session, project=OURS), make_run(session, project=PUBLIC)
        second = users.create_user(session, "ada o'neil", by="test").id
        gone = users.create_user(session, "gone", by="test")
        for user in (second, gone.id):
            users.set_role(session, project_id=teams.ours, user_id=user, role=Role.MAINTAINER, by="test")
        users.set_rights(session, users.get_user(session, gone.id), disabled=True, by="test")
    viewer = teams.client("viewer")
    page = viewer.post(f"/runs/{run}/quarantine", data={"reason": "x"}, headers=PAGE)
    assert page.status_code == 403
    detail = words(page.text)
    assert all(part in detail for part in ("contributor", "viewer", "ada o'neil or maintainer"))
    assert f'<a class="button primary" href="/runs/{run}">Back to the run</a>' in page.text
    assert ('href="/runs?project=alpha"' in page.text, 'href="/upload"' in page.text) == (True, False)
    detail = teams.client("contributor").get(f"/api/v1/projects/{OURS}/tokens").json()["detail"]
    assert all(part in detail for part in ("role maintainer", "are contributor"))

    detail = viewer.post(f"/api/v1/runs/{shown}/quarantine", json={"reason": "x"}).json()["detail"]
    assert all(part in detail for part in ("role contributor", "not a member"))
    assert ("ask administrator" in detail, "maintainer" in detail) == (True, False)
    assert "Only an administrator" in words(viewer.get("/settings/users", headers=PAGE).text)
    detail = words(viewer.get("/upload", headers=PAGE).text)
    assert all(part in detail for part in ("role contributor", "are viewer in alpha"))


def test_strangers_and_jobs_hear_no_names(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        run, shown = make_run(session, project=OURS), make_run(session, project=PUBLIC)
    for who in ("outsider", "anonymous", "token:read"):
        for number in (run, shown):
            answer = teams.client(who).post(f"/api/v1/runs/{number}/quarantine", json={"reason": "x"})
            names_administrator = "administrator" in answer.text
            assert (answer.status_code in (401, 403, 404), "maintainer:" in answer.text) == (True, False)
            assert names_administrator == (who == "outsider" and number == shown), (who, answer.text)

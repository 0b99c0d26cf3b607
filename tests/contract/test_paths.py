"""Sequences of calls conform to the OpenAPI document. They run apart from the random calls, which change projects."""

from collections.abc import Mapping
from typing import Any

import schemathesis
from schemathesis.core.transport import Response

from app.domain.access.principal import Scope
from app.pipeline.process import read_run
from app.settings import get_settings
from app.storage import tokens
from app.storage.database import transaction
from tests.access.people import OURS, PUBLIC, Teams
from tests.contract.conftest import TeamsAndBelongings
from tests.contract.test_api import CHECKS, as_headers
from tests.training_logs import training_log

LOG = training_log()
META = f'{{"project": "{OURS}", "gpu": "H100", "purpose": "ci", "branch": "main"}}'


class Steps:
    """Send calls of the OpenAPI document by their label, and check each answer against it."""

    def __init__(self, teams: Teams) -> None:
        all_operations = schemathesis.openapi.from_asgi("/openapi.json", teams.app).get_all_operations()
        self._calls = {item.ok().label: item.ok() for item in all_operations}
        self.made: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, headers: Mapping[str, str], label: str, expected: int, **sent: Any) -> Any:
        """Return the answer."""
        self.made.append((label, sent))
        answer = self.answer(headers, label, sent)
        assert answer.status_code == expected, f"{label}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if "json" in answer.headers.get("content-type", [""])[0] else answer.text

    def answer(self, headers: Mapping[str, str], label: str, sent: Mapping[str, Any]) -> Response:
        case = self._calls[label].Case(**sent)
        answer = case.call(headers=dict(headers))
        case.validate_response(answer, checks=CHECKS)
        return answer


def test_a_run_from_upload_to_quarantine_is_visible_only_to_its_team(service: TeamsAndBelongings) -> None:
    teams, _ = service
    ask, job = Steps(teams), as_headers(teams, "token:all")
    form = {"log": [LOG], "meta": META}
    run = ask(job, "POST /api/v1/runs", 202, body=form, media_type="multipart/form-data")["id"]
    assert ask(job, "POST /api/v1/runs", 200, body=form, media_type="multipart/form-data")["id"] == run
    read_run(teams.engine, teams.app.state.log_files, get_settings(), run)
    its: dict[str, Any] = {"path_parameters": {"run_id": run}}
    assert ask(job, "GET /api/v1/runs/{run_id}", 200, **its)["status"] == "ready"
    for label in ("verdict", "report", "report.md", "suggestions"):
        ask(job, f"GET /api/v1/runs/{{run_id}}/{label}", 200, **its)
    more = {"query": {"offset": len(LOG)}, "body": b"the end\n", "media_type": "text/plain"}
    assert ask(job, "POST /api/v1/runs/{run_id}/logs", 200, **its, **more)["offset"] == len(LOG) + 8
    correction = {"fields": {"cluster": "eos"}}
    ask(job, "PATCH /api/v1/runs/{run_id}/contract", 200, **its, body=correction, media_type="application/json")
    for label in ("propose", "decline", "pin", "unpin", "quarantine", "release"):
        note = {"body": {"note": "a bad node"}, "media_type": "application/json"}
        ask(job, f"POST /api/v1/runs/{{run_id}}/{label}", 200, **its, **note)
    with transaction(teams.engine) as session:
        other = tokens.make_token(session, project_id=teams.theirs, name="other", scopes=list(Scope), by="test")[1]
    strangers = [{"Authorization": f"Bearer {other}"}, as_headers(teams, "outsider"), {}]
    requests_of_run = [item for item in ask.made if "path_parameters" in item[1]]
    statuses = [[ask.answer(who, label, sent).status_code for label, sent in requests_of_run] for who in strangers]
    assert statuses == [[404] * len(requests_of_run), [404] * len(requests_of_run), [401] * len(requests_of_run)]


def test_from_a_project_to_its_revoked_token(service: TeamsAndBelongings) -> None:
    teams, _ = service
    ask, admin, json = Steps(teams), as_headers(teams, "administrator"), {"media_type": "application/json"}
    ask(admin, "POST /api/v1/projects", 201, body={"project": "begun"}, **json)
    ask(admin, "POST /api/v1/projects", 409, body={"project": "begun"}, **json)
    its: dict[str, Any] = {"path_parameters": {"slug": "begun"}}
    token = ask(
        admin, "POST /api/v1/projects/{slug}/tokens", 201, **its, body={"name": "ci", "scopes": ["read"]}, **json
    )
    job = {"Authorization": f"Bearer {token['token']}"}
    assert ask(job, "GET /api/v1/whoami", 200)["name"] == "ci"
    assert [item["project"] for item in ask(job, "GET /api/v1/projects", 200)["items"]] == ["begun", PUBLIC]
    for label in ("members", "tokens"):
        ask(job, f"GET /api/v1/projects/{{slug}}/{label}", 403, **its)
    ask(admin, "POST /api/v1/projects/{slug}/members", 200, **its, body={"name": "viewer", "role": "viewer"}, **json)
    ask(admin, "PUT /api/v1/projects/{slug}/quota", 200, **its, body={"quota_runs_a_day": 3}, **json)
    named = {"path_parameters": {"slug": "begun", "token_id": token["id"]}}
    ask(admin, "DELETE /api/v1/projects/{slug}/tokens/{token_id}", 200, **named)
    ask(job, "GET /api/v1/whoami", 401)

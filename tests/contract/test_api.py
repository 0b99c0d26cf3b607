"""The API does what its document says: every call on its own, and calls that follow from each other."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.domain.access.principal import Scope
from app.pipeline.process import summarise_run
from app.settings import get_settings
from app.storage import tokens
from app.storage.database import transaction
from tests.access.people import OURS, PUBLIC, THEIRS, Teams
from tests.cases import sized
from tests.contract.conftest import Held
from tests.training_logs import training_log

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = {"anonymous": 1, "token:all": sized(4, 40), "administrator": sized(9, 40)}
"""Of a call, one in five against its document."""

DONE = {
    "anonymous": {"GET /api/v1/runs", "GET /healthz"},
    "token:all": {"GET /api/v1/runs/{run_id}", "POST /api/v1/runs/{run_id}/quarantine", "GET /api/v1/references"},
    "administrator": {"PUT /api/v1/projects/{slug}/quota", "GET /api/v1/history/{stack}"},
}
"""Some of what must come true among the calls, so that not all of them are refused at the door."""

OWNED = {"run_id", "regression_id", "experiment_id", "receiver_id", "delivery_id", "number", "stack", "slug"}
"""What an address names that is a team's own."""

QUIET = {
    "deadline": None, "database": None, "derandomize": True, "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}  # fmt: skip


class Caller:
    """Asks all calls as one of EVERYBODY, and counts what is wrong with the answers."""

    def __init__(self, teams: Teams, who: str, params: Mapping[str, Mapping[str, str]]) -> None:
        self.wrong: Counter[str] = Counter()
        self.done: set[str] = set()
        """Calls that did what was asked, once at least."""
        self._app, self._who, self._params = teams.app, who, params
        self._headers = as_headers(teams, who)

    def ask_all(self) -> None:
        for operation in self._schema().get_all_operations():
            self._ask_often(operation.ok())

    def _schema(self) -> Any:
        return schemathesis.openapi.from_asgi("/openapi.json", self._app)

    def _ask_often(self, call: Any) -> None:
        cases = call.as_strategy(generation_mode=GenerationMode.POSITIVE)
        if self._who != "anonymous" and (call.path_parameters or call.query or call.body):
            cases = st.one_of(*[cases] * 4, call.as_strategy(generation_mode=GenerationMode.NEGATIVE))

        @settings(max_examples=EXAMPLES[self._who], **QUIET)
        @given(case=cases, whose=st.sampled_from(["", OURS, OURS, THEIRS]))
        def once(case: Case, whose: str) -> None:
            there = self._params.get(whose, {})
            case.path_parameters = {name: there.get(name, item) for name, item in (case.path_parameters or {}).items()}
            self._ask(case, call.label, whose)

        once()

    def _ask(self, case: Case, label: str, whose: str) -> None:
        answer = case.call(headers=self._headers)
        named = OWNED & (case.path_parameters or {}).keys()
        if answer.status_code < 300 and named and whose == THEIRS and self._who != "administrator":
            self.wrong[f"{label} answers {answer.status_code} for the other team's {named}"] += 1
        self.judge(case, answer, label)

    def judge(self, case: Case, answer: Response, label: str) -> None:
        if answer.status_code < 300:
            self.done.add(label)
        # No name of the other team's begins otherwise, and nobody sent one.
        if self._who != "administrator" and f"{THEIRS}-" in answer.text:
            self.wrong[f"{label} tells {answer.text[:500]}"] += 1
        try:
            case.validate_response(answer, checks=CHECKS)
        except FailureGroup as failures:
            self.wrong.update(f"{label}: {exception}" for exception in failures.exceptions)


def as_headers(teams: Teams, who: str) -> dict[str, str]:
    client = teams.client(who)
    sent = {name: value for name, value in client.headers.items() if name in ("authorization", "sec-fetch-site")}
    if cookies := "; ".join(f"{name}={value}" for name, value in client.cookies.items()):
        sent["Cookie"] = cookies
    return sent


@pytest.mark.parametrize("who", EXAMPLES)
def test_every_call_answers_as_its_document_says(held: Held, who: str) -> None:
    teams, owned = held
    caller = Caller(teams, who, {slug: belongings.params() for slug, belongings in owned.items()})
    caller.ask_all()
    assert caller.done >= DONE[who]
    assert not caller.wrong, "\n\n".join(f"{count} times {text}" for text, count in caller.wrong.items())


LOG = training_log()
META = f'{{"project": "{OURS}", "gpu": "H100", "purpose": "ci", "branch": "main"}}'


class Steps:
    """Makes calls of the document by its label, and checks each answer by it."""

    def __init__(self, teams: Teams) -> None:
        all_operations = schemathesis.openapi.from_asgi("/openapi.json", teams.app).get_all_operations()
        self._calls = {item.ok().label: item.ok() for item in all_operations}
        self.made: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, headers: Mapping[str, str], label: str, expected: int, **sent: Any) -> Any:
        """What was answered."""
        self.made.append((label, sent))
        answer = self.answer(headers, label, sent)
        assert answer.status_code == expected, f"{label}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if "json" in answer.headers.get("content-type", [""])[0] else answer.text

    def answer(self, headers: Mapping[str, str], label: str, sent: Mapping[str, Any]) -> Response:
        case = self._calls[label].Case(**sent)
        answer = case.call(headers=dict(headers))
        case.validate_response(answer, checks=CHECKS)
        return answer


def test_from_an_upload_to_its_quarantine_and_no_further_than_the_team(held: Held) -> None:
    teams, _ = held
    ask, job = Steps(teams), as_headers(teams, "token:all")
    form = {"log": [LOG], "meta": META}
    run = ask(job, "POST /api/v1/runs", 202, body=form, media_type="multipart/form-data")["id"]
    assert ask(job, "POST /api/v1/runs", 200, body=form, media_type="multipart/form-data")["id"] == run
    summarise_run(teams.engine, teams.app.state.log_files, get_settings(), run)
    its: dict[str, Any] = {"path_parameters": {"run_id": run}}
    assert ask(job, "GET /api/v1/runs/{run_id}", 200, **its)["status"] == "ready"
    for label in ("verdict", "report", "report.md", "suggestions"):
        ask(job, f"GET /api/v1/runs/{{run_id}}/{label}", 200, **its)
    more = {"query": {"offset": len(LOG)}, "body": b"the end\n", "media_type": "text/plain"}
    assert ask(job, "POST /api/v1/runs/{run_id}/logs", 200, **its, **more)["offset"] == len(LOG) + 8
    told = {"fields": {"cluster": "eos"}}
    ask(job, "PATCH /api/v1/runs/{run_id}/contract", 200, **its, body=told, media_type="application/json")
    for label in ("pin", "unpin", "quarantine", "release"):
        note = {"body": {"note": "a bad node"}, "media_type": "application/json"}
        ask(job, f"POST /api/v1/runs/{{run_id}}/{label}", 200, **its, **note)
    with transaction(teams.engine) as session:
        other = tokens.make_token(session, project_id=teams.theirs, name="other", scopes=list(Scope), by="test")[1]
    strangers = [{"Authorization": f"Bearer {other}"}, as_headers(teams, "outsider"), {}]
    asked = [item for item in ask.made if "path_parameters" in item[1]]
    statuses = [[ask.answer(who, label, sent).status_code for label, sent in asked] for who in strangers]
    assert statuses == [[404] * len(asked), [404] * len(asked), [401] * len(asked)]


def test_from_a_project_to_its_revoked_token(held: Held) -> None:
    teams, _ = held
    ask, admin, json = Steps(teams), as_headers(teams, "administrator"), {"media_type": "application/json"}
    ask(admin, "POST /api/v1/projects", 201, body={"project": "begun"}, **json)
    ask(admin, "POST /api/v1/projects", 409, body={"project": "begun"}, **json)
    its: dict[str, Any] = {"path_parameters": {"slug": "begun"}}
    made = ask(
        admin, "POST /api/v1/projects/{slug}/tokens", 201, **its, body={"name": "ci", "scopes": ["read"]}, **json
    )
    job = {"Authorization": f"Bearer {made['token']}"}
    assert ask(job, "GET /api/v1/whoami", 200)["name"] == "ci"
    assert [item["project"] for item in ask(job, "GET /api/v1/projects", 200)["items"]] == ["begun", PUBLIC]
    for label in ("members", "tokens"):
        ask(job, f"GET /api/v1/projects/{{slug}}/{label}", 403, **its)
    ask(admin, "POST /api/v1/projects/{slug}/members", 200, **its, body={"name": "viewer", "role": "viewer"}, **json)
    ask(admin, "PUT /api/v1/projects/{slug}/quota", 200, **its, body={"quota_runs_a_day": 3}, **json)
    named = {"path_parameters": {"slug": "begun", "token_id": made["id"]}}
    ask(admin, "DELETE /api/v1/projects/{slug}/tokens/{token_id}", 200, **named)
    ask(job, "GET /api/v1/whoami", 401)

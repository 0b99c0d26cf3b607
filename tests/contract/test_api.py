"""The API conforms to its OpenAPI document, call by call."""

from collections import Counter
from collections.abc import Mapping
from itertools import count
from typing import Any

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

from tests.access.people import OURS, THEIRS, Teams
from tests.cases import sized
from tests.contract.conftest import TeamsAndBelongings

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PUBLISHES = "PATCH /api/v1/projects/{slug}"
EXAMPLES = {"anonymous": 1, "token:all": sized(2, 40), "administrator": sized(3, 40)}
"""Of a call, one in five against its document."""

DONE = {
    "anonymous": {"GET /api/v1/runs", "GET /healthz"},
    "token:all": {"GET /api/v1/runs/{run_id}", "POST /api/v1/runs/{run_id}/quarantine", "GET /api/v1/references"},
    "administrator": {"PUT /api/v1/projects/{slug}/quota", "GET /api/v1/history/{stack}"},
}
"""Some of what must come true among the calls, so that not all of them are refused at the door."""

OWNED = {"run_id", "regression_id", "experiment_id", "receiver_id", "delivery_id", "number", "stack", "slug"}
"""What an address names that is a team's own."""

NOTHING = b'{"items":[]}'
"""Lists of a stack are empty for another team's as for one that does not exist."""

QUIET = {
    "deadline": None, "database": None, "derandomize": True, "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}  # fmt: skip


class Caller:
    """One of EVERYBODY, with a count of the errors in the answers."""

    def __init__(self, teams: Teams, who: str) -> None:
        self.wrong: Counter[str] = Counter()
        self.done: set[str] = set()
        """Calls that did what was asked, once at least."""
        self._who, self._headers = who, as_headers(teams, who)

    def examples(self, label: str) -> int:
        return EXAMPLES[self._who] * (5 if label in DONE[self._who] else 1)

    def ask(self, case: Case, label: str, whose: str) -> None:
        answer = case.call(headers=self._headers)
        named = OWNED & (case.path_parameters or {}).keys()
        is_answered = answer.status_code < 300 and answer.content != NOTHING
        if is_answered and named and whose == THEIRS and self._who != "administrator":
            self.wrong[f"{label} answers {answer.status_code} for the other team's {named}"] += 1
        self.judge(case, answer, label)

    def judge(self, case: Case, answer: Response, label: str) -> None:
        if answer.status_code < 300:
            self.done.add(label)
        # All names of the other team begin with this, and no request contained one.
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


def ask_often(call: Any, callers: Mapping[str, Caller], params: Mapping[str, Mapping[str, str]]) -> None:
    """Send a call as all callers. They share the generated cases, because generating takes longer than answering."""
    cases = call.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if call.path_parameters or call.query or call.body:
        cases = st.one_of(*[cases] * 4, call.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    asked = count()

    @settings(max_examples=max(caller.examples(call.label) for caller in callers.values()), **QUIET)
    @given(case=cases, whose=st.sampled_from(["", OURS, OURS, THEIRS]))
    def once(case: Case, whose: str) -> None:
        there = params.get(whose, {})
        case.path_parameters = {name: there.get(name, item) for name, item in (case.path_parameters or {}).items()}
        number = next(asked)
        for caller in callers.values():
            if number < caller.examples(call.label):
                caller.ask(case, call.label, whose)

    once()


def test_every_call_conforms_to_the_openapi_document(service: TeamsAndBelongings) -> None:
    teams, owned = service
    params = {slug: belongings.params() for slug, belongings in owned.items()}
    callers = {who: Caller(teams, who) for who in EXAMPLES}
    schema = schemathesis.openapi.from_asgi("/openapi.json", teams.app)
    calls = [operation.ok() for operation in schema.get_all_operations()]
    # Calls that delete rows, or that make the other team's project public, come last.
    for call in sorted(calls, key=lambda call: "delet" in call.label.lower() or call.label == PUBLISHES):
        ask_often(call, callers, params)
    for who, caller in callers.items():
        assert caller.done >= DONE[who], who
        assert not caller.wrong, "\n\n".join(f"{who}, {number} times {text}" for text, number in caller.wrong.items())

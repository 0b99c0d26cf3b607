"""Callers x routes x owners, over the application's own table of routes: the real check, in front of a stub handler.

The expected results are written from docs/security.md, independently of the code. `make soak` checks every route.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest
from sqlmodel import col
from starlette.responses import JSONResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from app.access.check import AccessMiddleware
from app.access.routes import RouteTable, RuledRoute, UnruledRouteError, route_table
from app.domain.access.principal import Action
from app.domain.access.secrets import digest
from app.settings import Settings
from app.storage.database import transaction
from app.storage.tables import RunRow, TokenRow, select_any
from app.storage.visible import visible_projects
from app.web.access_rule import Open
from tests.access.belongings import Belongings, make_belongings
from tests.access.people import EVERYBODY, OURS, PUBLIC, SCOPES, THEIRS, Teams
from tests.cases import every_case, sized

R, U, C, M, A = Action.READ, Action.UPLOAD, Action.CONTRIBUTE, Action.MANAGE, Action.ADMINISTER
MAY: Mapping[str, Mapping[str, set[Action]]] = {
    "anonymous": {},
    "outsider": {THEIRS: {R, U, C, M}},
    "viewer": {OURS: {R}},
    "contributor": {OURS: {R, U, C}},
    "maintainer": {OURS: {R, U, C, M}},
    "administrator": {OURS: {R, U, C, M, A}, THEIRS: {R, U, C, M, A}, PUBLIC: {R, U, C, M, A}},
    "token:upload": {OURS: {U}},
    "token:read": {OURS: {U, R}},
    "token:triage": {OURS: {U, R, C}},
    "token:all": {OURS: {R, U, C}},
}
"""In which project; and everybody may read the public one."""


_RUN = "/api/v1/runs/{run_id}"
OF_OWN_RUNS: Mapping[str, Action] = {
    f"POST {_RUN}/logs": U, f"GET {_RUN}/verdict": U, f"GET {_RUN}/report": U, f"GET {_RUN}/report.md": U,
    f"POST {_RUN}/profiles": U, f"POST {_RUN}/propose": U,
}  # fmt: skip
"""What a token may with runs that it began itself, and what it needs for that."""


def actions(who: str, project: str) -> set[Action]:
    return MAY[who].get(project, set()) | ({R} if project == PUBLIC else set())


def knows(who: str, project: str) -> bool:
    """Whether the caller may know that the object exists. A job knows its own project, regardless of its scopes."""
    return R in actions(who, project) or (who.startswith("token") and project == OURS)


def is_page(key: str) -> bool:
    """Pages are for browsers, not for tokens. Tables as CSV are for both."""
    return " /api/" not in key and not key.endswith(".csv")


def about_one(who: str, key: str, action: Action, project: str) -> int:
    """The expected status for an object of a project that the URL names."""
    if who.startswith("token") and is_page(key):
        return 403
    if action in actions(who, project):
        return 200
    if who == "anonymous":
        return 401
    return 403 if knows(who, project) else 404


def about_own(who: str, key: str, action: Action) -> int:
    """For a run of our project that this token began."""
    return 200 if OF_OWN_RUNS.get(key) in actions(who, OURS) else about_one(who, key, action, OURS)


def about_all(who: str, key: str, action: Action) -> int:
    """The expected status for a route that may concern any project."""
    if who.startswith("token") and is_page(key):
        return 403
    if any(action in actions(who, project) for project in (OURS, THEIRS, PUBLIC)):
        return 200
    return 401 if who == "anonymous" else 403


def open_to(who: str, needs: Open) -> int:
    person = who != "anonymous" and not who.startswith("token")
    if needs is Open.LOGGED_IN:
        return 200 if person else 401
    if needs is Open.METRICS:
        return 200 if who == "administrator" else 401 if who == "anonymous" else 403
    return 200


async def stub(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the projects whose rows exist for a handler."""
    seen = visible_projects()
    await JSONResponse(None if seen is None else sorted(seen))(scope, receive, send)


@pytest.fixture
def owned(teams: Teams) -> dict[str, Belongings]:
    with transaction(teams.engine) as session:
        return {slug: make_belongings(session, slug) for slug in (OURS, THEIRS, PUBLIC)}


@pytest.fixture
def knock(teams: Teams, settings: Settings) -> tuple[RouteTable, Teams]:
    table = route_table(teams.app)
    stubbed = AccessMiddleware(stub, engine=teams.engine, settings=settings, table=table, open_to=None)

    async def fronted(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = teams.app  # whose settings determine the name of the cookie
        await stubbed(scope, receive, send)

    return table, Teams(fronted, teams.ours, teams.theirs, teams.public, teams.users, teams.tokens, teams.engine)


def address(route: RuledRoute, belongings: Belongings) -> str:
    return route.path.format(**belongings.params())


def ask(client: TestClient, route: RuledRoute, belongings: Belongings) -> tuple[int, list[int] | None]:
    answer = client.request(route.method, address(route, belongings))
    return answer.status_code, answer.json() if answer.status_code == 200 else None


def test_every_caller_may_do_exactly_what_the_table_states(
    knock: tuple[RouteTable, Teams], owned: Mapping[str, Belongings]
) -> None:
    wrong = [f"{who}: {fault}" for who in EVERYBODY for fault in faults(who, *knock, owned)]
    assert not wrong, "\n".join(wrong)


def asked_routes(table: RouteTable) -> list[RuledRoute]:
    """Return two routes (or all) of each group with the same rule, kind and parameters."""
    alike: defaultdict[object, list[RuledRoute]] = defaultdict(list)
    for route in table.routes:
        if route.method not in ("MOUNT", "HEAD"):
            parameters = frozenset(re.findall(r"{(\w+)", route.path))
            alike[route.rule, route.is_page, route.method == "GET", parameters].append(route)
    choice = random.Random(13)  # noqa: S311  # which routes the suite asks
    return [route for group in alike.values() for route in choice.sample(group, min(len(group), sized(2, len(group))))]


def faults(who: str, table: RouteTable, teams: Teams, owned: Mapping[str, Belongings]) -> Iterator[str]:
    """Yield permissions that are wrongly granted or refused, and projects that the handler wrongly sees."""
    client = teams.client(who)
    ids = {OURS: teams.ours, THEIRS: teams.theirs, PUBLIC: teams.public}
    for route in asked_routes(table):
        needs, owner = route.rule.needs, route.rule.owner
        for slug, belongings in owned.items() if owner else [(OURS, owned[OURS])]:
            status, seen = ask(client, route, belongings)
            if isinstance(needs, Open):
                expected, action = open_to(who, needs), R
            elif owner:
                expected, action = about_one(who, route.key, needs, slug), needs
            else:
                expected, action = about_all(who, route.key, needs), needs
            if status != expected:
                yield f"{route.key} of {slug}: {status}, not {expected}"
            # The second line: rows of no other project exist for the handler.
            may = sorted(ids[item] for item in ids if action in actions(who, item))
            everything = who == "administrator" or needs is Open.METRICS
            if status == 200 and needs is not Open.ALWAYS and seen != (None if everything else may):
                yield f"{route.key} sees {seen}, not {may}"


def test_a_token_continues_its_own_runs_and_reads_their_results(
    knock: tuple[RouteTable, Teams], owned: Mapping[str, Belongings]
) -> None:
    table, teams = knock
    routes = [route for route in table.routes if "{run_id}" in route.path and route.method != "HEAD"]
    assert set(OF_OWN_RUNS) < {route.key for route in routes}
    with every_case() as case:
        for who in SCOPES:
            with transaction(teams.engine) as session:
                of_caller = col(TokenRow.digest) == digest(teams.tokens[who])
                session.get_one(RunRow, owned[OURS].run).token_id = session.execute(
                    select_any(TokenRow.id).where(of_caller)
                ).scalar_one()
            client, seen = teams.client(who), set[int]()
            for route in routes:
                status, projects = ask(client, route, owned[OURS])
                seen |= set(projects or ())
                with case(f"{route.key} for {who}"):
                    assert status == about_own(who, route.key, Action(route.rule.needs))
            with case(who):  # of other projects, only public data is visible
                assert seen <= {teams.ours, teams.public}


def test_a_route_without_a_rule_keeps_the_service_from_starting(teams: Teams) -> None:
    @teams.app.get("/api/v1/secrets/{secret}")
    def read_secret(secret: str) -> str:
        return secret

    with pytest.raises(UnruledRouteError, match="GET /api/v1/secrets/"):
        route_table(teams.app)


def test_a_route_that_the_table_does_not_know_sees_what_the_caller_may_read(teams: Teams) -> None:
    @teams.app.get("/api/v1/secrets")
    def read_secrets() -> list[int] | None:
        seen = visible_projects()
        return None if seen is None else sorted(seen)

    assert teams.client("viewer").get("/api/v1/secrets").json() == sorted((teams.ours, teams.public))
    assert teams.client("anonymous").get("/api/v1/secrets").json() == [teams.public]


def test_the_table_finds_the_route_that_the_router_takes(teams: Teams) -> None:
    table = route_table(teams.app)
    for method, path, key in (
        ("GET", "/references/new", "GET /references/new"),
        ("GET", "/references/7", "GET /references/{reference_id}"),
        ("GET", "/api/v1/leaderboards/changes", "GET /api/v1/leaderboards/changes"),
        ("GET", "/static/app.css", "MOUNT /static"),
        ("GET", "/", "GET /"),
        ("PATCH", "/api/v1/runs/1/contract", "PATCH /api/v1/runs/{run_id}/contract"),
    ):
        result = table.find(method, path)
        assert result is not None, path
        assert result.route.key == key
    assert table.find("DELETE", "/runs/1") is None

"""No URL reveals data of another team, not even in a count: the whole application, with two teams.

Every URL is requested twice, before and after the other team's work, and both answers must be identical byte for byte.
All names of the other team contain its project's name, so one search finds a leak in earlier data as well.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import event, select
from sqlmodel import SQLModel, col
from starlette.testclient import TestClient

from app.access.routes import route_table
from app.experiments.commands import plan_experiment
from app.main import create_app
from app.pipeline.propose import ExperimentRequest
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.rules import keep_firings
from app.storage.tables import ProjectRow, RunRow
from app.storage.visible import OWNED_THROUGH, WITHOUT_PROJECT, seeing, visible_projects
from app.web.access_rule import Open
from tests.access.belongings import Belongings, make_belongings
from tests.access.people import OURS, THEIRS, Teams, make_teams
from tests.builders import judge, settle_standings
from tests.pages import masked
from tests.runs.uploading import upload
from tests.training_logs import training_log
from workers.tasks import process_run

pytestmark = pytest.mark.timeout(1_500)  # both teams are made for the first test

RULE = "profile-comm"
PAGE, CSV = {"Accept": "text/html"}, {"Accept": "text/csv"}
FOREIGN = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
RUN_LINK = re.compile(r"/runs/(\d+)")
READERS = ("token:read", "maintainer")  # the token first, because its last use is visible to the other
"""A maintainer reads all that a viewer does, and members, tokens, deliveries and the audit besides."""

COUNTING = (
    "/playbook",
    f"/playbook/{RULE}",
    "/api/v1/rules?sort=fired",
    f"/api/v1/rules/{RULE}",
    "/settings/definitions",
    "/api/v1/definitions",
    "/api/v1/runs",
    "/api/v1/regressions",
    "/api/v1/experiments",
    "/api/v1/leaderboards?hardware=h100&family=qwen3-30b-a3b",
    "/api/v1/leaderboards/gains?hardware=h100&family=qwen3-30b-a3b",
    "/api/v1/leaderboards/matrix?hardware=h100&family=qwen3-30b-a3b",
    "/api/v1/availability",
)
"""Whoever sees both teams reads other numbers here."""

NAMED_TABLE = re.compile(r"(?:\b(?:FROM|JOIN|UPDATE)|,)\s+(\w+)(?: AS (\w+))?(?![\w.(])")
TABLES_OF_SOMEBODY = set(SQLModel.metadata.tables) - set(WITHOUT_PROJECT)

Answers = dict[tuple[str, str], str]


@dataclass(frozen=True)
class World:
    """Objects of both teams, the answers for ours before and after theirs existed, and unbounded statements."""

    teams: Teams
    ours: Belongings
    theirs: Belongings
    before: dict[str, Answers]
    after: dict[str, Answers]
    told_all: tuple[dict[str, str], dict[str, str]]
    unbounded: set[str]


@pytest.fixture(scope="module")
def world(module_settings: Settings) -> Iterator[World]:
    # On a slow machine, too, no page must report that no worker is active.
    app = create_app(module_settings.model_copy(update={"sweep_seconds": 3600}))
    teams = make_teams(app)
    ours = add_work(teams, module_settings, OURS)
    work_again(teams)
    before = {who: answers(teams, who, for_reader(who, addresses(teams, ours))) for who in READERS}
    few = counting_pages(teams.client("administrator"))
    theirs = add_work(teams, module_settings, THEIRS)
    work_again(teams)  # our data is processed while theirs exists
    unbounded: set[str] = set()
    with noted_statements(teams, unbounded):
        after = {who: answers(teams, who, for_reader(who, addresses(teams, ours))) for who in READERS}
    yield World(teams, ours, theirs, before, after, (few, counting_pages(teams.client("administrator"))), unbounded)
    app.state.engine.dispose()


def add_work(teams: Teams, settings: Settings, slug: str) -> Belongings:
    """One object of each kind: judged and ranked stacks, a log that was read, an experiment, rules that fired."""
    with transaction(teams.engine) as session:
        owned = make_belongings(session, slug, whole=True)
    knobs = ExperimentRequest(owned.run, knobs={"ep_overlap": True}, title=f"{slug} tries overlap")
    owned = replace(owned, experiment=plan_experiment(teams.engine, settings, knobs, f"{slug}-lead"))
    meta = {
        "project": slug,
        "name": f"{slug}-read",
        "container": f"{slug}-image:1",
        "model": f"{slug}-model",
        "gpu": "H100",
    }
    sent = upload(teams.client("administrator"), training_log() + slug.encode(), name=f"{slug}.log", meta=meta)
    assert sent.status_code == 202, sent.text
    process_run(sent.json()["id"])
    with transaction(teams.engine) as session:
        for run in of_project(session, RunRow, slug):
            assert keep_firings(session, run.id or 0, [RULE], "1", processed_at=run.processed_at)
    return replace(owned, read=sent.json()["id"])


def of_project(session: Any, table: Any, slug: str) -> Any:
    chosen = select(table).join(ProjectRow, col(ProjectRow.id) == table.project_id).where(col(ProjectRow.slug) == slug)
    return session.execute(chosen.order_by(table.id)).scalars().all()


def work_again(teams: Teams) -> None:
    """The results of the workers for our runs."""
    with transaction(teams.engine) as session:
        stacks = {run.stack_key: None for run in of_project(session, RunRow, OURS) if run.stack_key}
        for stack in stacks:
            judge(session, OURS, stack)
        settle_standings(session)


def addresses(teams: Teams, ours: Belongings) -> list[str]:
    """Return every GET URL for our data, some of them with their query parameters."""
    params = ours.params()
    routes = [
        route
        for route in route_table(teams.app).routes
        if route.method == "GET" and not isinstance(route.rule.needs, Open)
    ]
    result = [route.path.format(**params) for route in routes]
    result += [route.path.format(**params | {"run_id": str(ours.read)}) for route in routes if "{run_id}" in route.path]
    board = "hardware=h100&family=qwen3-30b-a3b"
    pairs = [f"a={ours.run}&b={ours.read}", f"a={ours.read}&b={ours.run}"]
    return [
        *result,
        *(item for item in COUNTING if "?" in item),
        f"/api/v1/leaderboards/changes?{board}",
        f"/api/v1/leaderboards/graphs?{board}",
        *(f"{path}?{pair}" for path in ("/compare", "/api/v1/compare") for pair in pairs),
        *(f"{path}?run={ours.run}" for path in ("/plan", "/api/v1/plan", "/references/nearest", "/experiments/new")),
        f"/runs?q={OURS}&sort=step_time_ms",
        "/regressions?state=all",
        *(f"/history?verdict={verdict}" for verdict in ("regression", "no_baseline")),
        f"/history?q={OURS}&dispatcher=unknown",
    ]


def for_reader(who: str, addresses: list[str]) -> list[str]:
    """A job reads JSON; pages are built from the same data."""
    return addresses if who == "maintainer" else [address for address in addresses if address.startswith("/api/")]


def answers(teams: Teams, who: str, addresses: list[str]) -> Answers:
    """Return the answer of each URL, as a page or as JSON, without parts that differ in every answer."""
    client, table, tables, texts = teams.client(who), route_table(teams.app), csv_routes(teams.app), {}
    for address in dict.fromkeys(addresses):
        matched = table.find("GET", address.partition("?")[0])
        has_csv = matched is not None and matched.route.path in tables
        for headers in ({}, CSV) if has_csv else ({},) if address.startswith("/api/") else (PAGE,):
            answer = client.get(address, headers=headers)
            text = answer.content.decode(errors="replace")
            assert answer.status_code < 500, f"{address}: {text[:300]}"  # an error would hide a leak
            texts[address, headers.get("Accept", "")] = f"{answer.status_code} {masked(text)}"
    return texts


def csv_routes(app: FastAPI) -> set[str]:
    """Return the API calls that also answer with CSV, according to the OpenAPI document."""
    calls = {path: methods.get("get", {}) for path, methods in app.openapi()["paths"].items()}
    return {
        path
        for path, call in calls.items()
        if "text/csv" in call.get("responses", {}).get("200", {}).get("content", {})
    }


def counting_pages(client: TestClient) -> dict[str, str]:
    return {item: masked(client.get(item).text) for item in COUNTING}


@contextmanager
def every_statement(teams: Teams, statements: list[str]) -> Iterator[None]:
    """The statements that the application sends to its database."""

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(teams.engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        event.remove(teams.engine, "before_cursor_execute", note)


class noted_statements:  # noqa: N801  a context manager
    """Statements that run for a request, on rows that are somebody's, without the condition on projects."""

    def __init__(self, teams: Teams, unconditioned: set[str]) -> None:
        self._engine, self._unconditioned = teams.engine, unconditioned

    def __enter__(self) -> None:
        event.listen(self._engine, "before_cursor_execute", self._note)

    def __exit__(self, *_: object) -> None:
        event.remove(self._engine, "before_cursor_execute", self._note)

    def _note(self, _connection: Any, _cursor: Any, statement: str, _parameters: Any, context: Any, _many: Any) -> None:
        if visible_projects() is None:
            return
        if unbounded(compiled.string if (compiled := getattr(context, "compiled", None)) is not None else statement):
            self._unconditioned.add(statement)


@cache  # requests run the same few statements thousands of times
def unbounded(statement: str) -> list[str]:
    """Return the owned tables that a compiled statement reads or changes without the visibility condition, by their
    alias. An alias in two selects needs the condition in both."""
    places = Counter(
        (table, name or table) for table, name in NAMED_TABLE.findall(statement) if table in TABLES_OF_SOMEBODY
    )
    return [name for (table, name), times in places.items() if len(criterion(table, name).findall(statement)) < times]


def criterion(table: str, name: str) -> re.Pattern[str]:
    """In compiled form, as `app/storage/visible.py` creates it."""
    if through := OWNED_THROUGH.get(table):
        return re.compile(rf"EXISTS \(SELECT 1\s+FROM \w+ AS (\w+)\s+WHERE \1\.\w+ = {name}\.{through} AND ")
    column = "id" if table == "project" else "project_id"
    return re.compile(rf"\b{name}\.{column} IN \(__\[POSTCOMPILE_visible")


def test_the_work_of_another_team_changes_no_answer(world: World) -> None:
    changed = []
    for who in READERS:
        assert world.before[who].keys() == world.after[who].keys()
        for item, text in world.before[who].items():
            other = world.after[who][item]
            if text != other:
                at = next(
                    (k for k, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other))
                )
                changed.append(
                    f"{who} at {item}: …{text[max(0, at - 60) : at + 60]}… is …{other[max(0, at - 60) : at + 60]}…"
                )
    assert not changed, "\n".join(changed)


def test_the_numbers_of_the_message_are_available(world: World) -> None:
    before, after = world.told_all
    assert [item for item in COUNTING if before[item] == after[item]] == []
    read = [item for item, text in world.after["maintainer"].items() if text.startswith("200")]
    assert len(read) > 150


def test_every_statement_of_a_request_is_bounded(world: World) -> None:
    assert not world.unbounded, "\n\n".join(world.unbounded)
    result: set[str] = set()
    past = RunRow.__table__.alias("past")
    past_the_filter = (
        select(past.c.id),
        select(past.c.verdict).where(past.c.project_id.in_([1])),
        # One of two aliases is bounded, as in a subquery of a bounded statement.
        select(
            col(RunRow.id), select(past.c.id).where(past.c.stack_key == RunRow.stack_key).limit(1).scalar_subquery()
        ),
        select(col(RunRow.id)).join(past, past.c.id == RunRow.id),
    )
    with noted_statements(world.teams, result), seeing(frozenset({1})), read_session(world.teams.engine) as session:
        for statement in past_the_filter:
            session.execute(statement)
    assert len(result) == len(past_the_filter)


def test_no_url_reveals_data_of_another_team(world: World) -> None:
    strangers = runs_of(world.teams, "administrator") - runs_of(world.teams, "viewer")
    assert len(strangers) > 10
    result = [
        leak
        for who in READERS
        for item, text in world.after[who].items()
        for leak in leaks(f"{who} at {item}", text, THEIRS, strangers)
    ]
    # The answer repeats the request, so only related data counts as a leak.
    other_runs = strangers - {world.theirs.run}
    client = world.teams.client("viewer")
    for probe in probes(world.ours, world.theirs):
        answer = client.get(probe, headers={} if probe.startswith("/api/") else PAGE)
        assert answer.status_code < 500, f"{probe}: {answer.text[:300]}"
        result += [
            leak for word in ("image", "lead") for leak in leaks(probe, answer.text, f"{THEIRS}-{word}", other_runs)
        ]
    assert not result, "\n".join(result)


def test_an_error_page_reveals_nothing_and_does_not_query_the_database(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes error pages before the caller is identified, and after an unexpected error.

    Nothing is cached about the caller, so an error page that needed the caller would query again.
    """

    def broken(*_: object, **__: object) -> None:
        statements.clear()
        raise RuntimeError("unexpected")

    monkeypatch.setattr("app.web.docs_pages.render", broken)
    monkeypatch.setattr("app.access.credentials.CACHE_SECONDS", -1.0)
    statements: list[str] = []
    wrong = []
    with every_statement(world.teams, statements):
        for who in ("anonymous", "viewer", "administrator"):
            client = world.teams.client(who)
            for name, status, ask in (
                ("a foreign Origin", 403, partial(client.post, "/logout", headers=PAGE | FOREIGN)),
                ("a bad Host", 400, partial(client.get, "/runs", headers=PAGE | {"Host": "not a name"})),
                ("an unexpected error", 500, partial(client.get, "/glossary", headers=PAGE)),
            ):
                statements.clear()
                answer = ask()
                assert answer.status_code == status, f"{name} for {who}: {answer.status_code}"
                wrong += [f"{name} for {who} asks: {statement}" for statement in statements]
                wrong += leaks(f"{name} for {who}", answer.text, THEIRS, set())
                if 'class="count"' in answer.text:
                    wrong.append(f"{name} for {who} shows a number of regressions")
    assert not wrong, "\n".join(wrong)


def test_the_search_for_leaks_would_find_them(world: World) -> None:
    client = world.teams.client("administrator")
    for address in ("/", "/runs", "/regressions", "/history", "/leaderboards", "/experiments", "/references"):
        assert THEIRS in client.get(address, headers=PAGE).text, address
        if address in ("/runs", "/regressions", "/leaderboards", "/experiments"):
            assert THEIRS in client.get(f"/api/v1{address}").text, address


def probes(ours: Belongings, theirs: Belongings) -> list[str]:
    """URLs that request data of the other team: by number, key, name or project."""
    params = theirs.params()
    filters = (
        "/runs",
        "/api/v1/runs",
        "/regressions",
        "/api/v1/regressions",
        "/history",
        "/experiments",
        "/references",
    )
    return [
        *(f"{path}?project={THEIRS}" for path in filters),
        *(f"{path}?q={THEIRS}-nightly" for path in filters),
        f"/api/v1/experiments?project={THEIRS}",
        f"/leaderboards/h100/qwen3-30b-a3b?project={THEIRS}",
        f"/leaderboards/h100/qwen3-30b-a3b/matrix?project={THEIRS}",
        f"/api/v1/leaderboards?project={THEIRS}",
        f"/api/v1/availability?project={THEIRS}",
        f"/upgrade?project={THEIRS}",
        f"/api/v1/upgrade?project={THEIRS}",
        f"/api/v1/upgrades?project={THEIRS}",
        f"/api/v1/commits/0000000/report?project={THEIRS}",
        f"/scaling?project={THEIRS}",
        f"/compare?a={ours.run}&b={theirs.run}",
        f"/api/v1/compare?a={ours.run}&b={theirs.run}",
        f"/references/nearest?run={theirs.run}",
        f"/api/v1/references/nearest?run={theirs.run}",
        f"/plan?run={theirs.run}",
        f"/regressions/{ours.regression}/chart?run={theirs.run}",
        "/history/{stack}".format(**params),
        "/api/v1/history/{stack}".format(**params),
        "/references/{reference_id}".format(**params),
    ]


def runs_of(teams: Teams, who: str) -> set[int]:
    """All that the API lists."""
    client, result, number = teams.client(who), set(), 1
    while page := client.get(f"/api/v1/runs?page_size=100&page={number}").json()["items"]:
        result |= {run["id"] for run in page}
        number += 1
    return result


def leaks(where: str, text: str, word: str, strangers: set[int]) -> list[str]:
    """Return what an answer reveals about the other team."""
    leaked = []
    if word in text:
        leaked.append(f"{where}: …{text[max(0, text.index(word) - 80) : text.index(word) + 80]}…")
    return leaked + [f"{where}: run {number}" for number in RUN_LINK.findall(text) if int(number) in strangers]


def test_a_figure_that_moves_takes_nothing_along(world: World) -> None:
    """An administrator offers a private project's figure to all: its history stays private."""
    administrator, address = world.teams.client("administrator"), f"/api/v1/references/{world.theirs.reference}"
    assert administrator.patch(address, json={"project": ""}).status_code == 200
    for place in (address, "/api/v1/audit", f"/references/{world.theirs.reference}"):
        assert f'"{THEIRS}"' not in world.teams.client("maintainer").get(place).text, place
    assert f'"{THEIRS}"' in administrator.get(address).text

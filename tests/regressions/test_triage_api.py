"""Triage through the API, on both databases."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select
from sqlmodel import Session, col
from starlette.testclient import TestClient

from app.domain.performance.cost import CONTINUES
from app.domain.verdict.triage import SumOfCosts
from app.errors import EditConflict
from app.regressions.commands import RegressionChange, Seen, change_regressions
from app.regressions.queries import (
    SORTS,
    RegressionQuery,
    count_states,
    find_regressions,
    options_of,
)
from app.settings import Settings
from app.storage import audit
from app.storage.database import make_engine, read_session, transaction
from app.storage.regressions import get_regression
from app.storage.tables import AuditEventRow, RegressionMemberRow, RegressionRow, RunRow
from app.storage.verdicts import regressions_to_triage
from tests.builders import make_stack
from tests.cases import every_case
from tests.prepared import prepared
from tests.regressions.triaged import FIRST, SlowStack, continue_in_stack, make_regression, make_slow_stack

Make = Callable[..., int]
URL = "/api/v1/regressions"


@pytest.fixture
def stack(engine: Engine) -> SlowStack:
    def make() -> SlowStack:
        with transaction(engine) as session:
            return make_slow_stack(session)

    return prepared(engine, make)


def patch(client: TestClient, number: int, **body: Any) -> Any:
    return client.patch(f"{URL}/{number}", json={"author": "Ada"} | body)


def fields(answer: Any) -> dict[str, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return {error["field"]: error["message"] for error in answer.json()["errors"]}


def test_the_list_says_what_where_since_and_how_much(client: TestClient, make: Make, stack: SlowStack) -> None:
    number = make()
    answer = client.get(URL).json()
    assert {name: answer[name] for name in ("total", "page", "page_size", "pages")} == {
        "total": 1, "page": 1, "page_size": 50, "pages": 1,
    }  # fmt: skip
    (item,) = answer["items"]
    assert item["id"] == number
    assert item["url"] == f"http://testserver/regressions/{number}"
    assert (item["project"], item["kind"], item["state"], item["metric"]) == ("triage", "run", "open", "step_time_ms")
    assert (item["worst_delta_pct"], item["gpu_hours_per_day"]) == (pytest.approx(5.0), 12.5)
    assert item["opened_at"] == "2026-11-09T03:00:00Z"
    (member,) = item["members"]
    assert member["run_id"] == stack.since
    assert member["run_url"] == f"http://testserver/runs/{stack.since}"
    assert member["title"] == "Qwen3-30B-A3B · 16 × H100 · forced balance · nemo:26.06"
    assert member["usual"] == pytest.approx(20_000.0)
    assert member["slow"] == pytest.approx(21_000.0)


def test_one_regression_says_how_its_cost_was_made(client: TestClient, make: Make, stack: SlowStack) -> None:
    answer = client.get(f"{URL}/{make(each_costs=1000 * 50 * 16 / 3.6e6)}").json()
    (cost,) = answer["costs"]
    # 1 run a day x 1 s x 50 steps x 16 GPUs
    assert cost == {
        "run_id": stack.since, "gpu_hours_per_day": pytest.approx(1000 * 50 * 16 / 3.6e6),
        "runs_per_day": pytest.approx(1.0),
        "extra_ms_per_step": pytest.approx(1000.0), "steps_per_run": 50, "gpus": 16, "unknown_because": "",
        "nothing_because": "",
    }  # fmt: skip
    assert [event["action"] for event in answer["events"]] == ["opened"]


def test_a_stack_that_its_slow_job_left_has_not_recovered(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        slow, back = (make_slow_stack(session, stack=name) for name in ("left", "back"))
    number = make([slow, back], each_costs=0.0)
    with transaction(engine) as session:
        session.get_one(RegressionMemberRow, (number, back.since)).proposal = "fixed"
        continue_in_stack(session, number, slow, "f" * 64, slow.runs[-1])
    costs = client.get(f"{URL}/{number}").json()["costs"]
    reasons = {cost["run_id"]: cost["nothing_because"] for cost in costs}
    assert (reasons[slow.since], reasons[back.since]) == (CONTINUES, "its runs have returned to the usual level")


def test_a_cost_that_is_not_known_says_why(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        lonely = make_slow_stack(session, stack="lonely", days=(0, 1), ordered_at=FIRST + timedelta(days=16))
        memory = make_slow_stack(session, stack="memory")
    for stack, metric, because in (
        (lonely, "step_time_ms", "fewer than 2 runs"),
        (memory, "peak_memory_gib", "step time did not change"),
    ):
        (cost,) = client.get(f"{URL}/{make(stack, metric=metric, each_costs=None)}").json()["costs"]
        assert cost["gpu_hours_per_day"] is None
        assert because in cost["unknown_because"]


def test_filters_select_regressions(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        other = make_slow_stack(session, stack="other", gpu="GB200")
    make(cause="fast")
    make(cause="mine", state="acknowledged", assignee="Ada")
    make(other, cause="old", state="fixed", metric="peak_memory_gib", kind="upgrade", cause_key="container:x")
    with every_case() as case:
        for query, result in (
            ("", {"fast", "mine", "old"}),
            ("state=active", {"fast", "mine"}),
            ("state=any", {"fast", "mine", "old"}),
            ("state=acknowledged", {"mine"}),
            ("project=triage", {"fast", "mine", "old"}),
            ("project=nothing", set()),
            ("assignee=Ada", {"mine"}),
            ("assignee=nobody", {"fast", "old"}),
            ("metric=peak_memory_gib", {"old"}),
            ("kind=upgrade", {"old"}),
            ("axis=container", {"old"}),
            ("axis=code", {"fast", "mine"}),
            ("gpu=GB200", {"old"}),
            ("gpu=H100", {"fast", "mine"}),
            ("model=Qwen3-30B-A3B", {"fast", "mine", "old"}),
            ("model=unknown", set()),
            ("q=FAST", {"fast"}),
            ("q=nightly-a fast", {"fast"}),
            ("q=100%25", set()),
            ("state=acknowledged&assignee=nobody", set()),
        ):
            with case(query):
                assert {item["cause"] for item in client.get(f"{URL}?{query}").json()["items"]} == result


def test_a_number_a_run_and_a_stack_are_found_by_text(client: TestClient, make: Make, stack: SlowStack) -> None:
    number = make(cause="one")
    for text in (f"%23{number}", f"%23{stack.since}", stack.stack_key[:12]):
        assert client.get(f"{URL}?q={text}").json()["total"] == 1, text
    assert client.get(f"{URL}?q=99999999999999999999").json()["total"] == 0


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("-cost", "bac"),
        ("cost", "abc"),
        ("-age", "cba"),
        ("age", "abc"),
        ("-size", "cab"),
        ("size", "acb"),
    ],
)
def test_sorting_puts_what_is_unknown_last(client: TestClient, make: Make, sort: str, order: str) -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    make(cause="a", gpu_hours_per_day=1.0, worst_delta_pct=2.0, opened_at=now)
    make(cause="b", gpu_hours_per_day=9.0, worst_delta_pct=None, opened_at=now - timedelta(days=1))
    make(cause="c", gpu_hours_per_day=None, worst_delta_pct=3.0, opened_at=now - timedelta(days=2))
    items = client.get(f"{URL}?sort={sort}").json()["items"]
    assert "".join(item["cause"] for item in items) == order


def test_the_list_pages_on_the_server(client: TestClient, make: Make) -> None:
    for _ in range(5):
        make()
    answer = client.get(f"{URL}?page=2&page_size=2").json()
    assert (len(answer["items"]), answer["total"], answer["pages"]) == (2, 5, 3)
    assert client.get(f"{URL}?page=9&page_size=2").json()["items"] == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("state=done", "state"),
        ("metric=mfu", "metric"),
        ("kind=person", "kind"),
        ("axis=moon", "axis"),
        ("sort=id", "sort"),
        ("page=0", "page"),
        ("page_size=100000", "page_size"),
        ("q=%00", "q"),
    ],
)
def test_a_filter_that_means_nothing_is_refused_by_name(client: TestClient, query: str, field: str) -> None:
    answer = client.get(f"{URL}?{query}")
    assert answer.status_code == 422
    assert field in fields(answer)


def test_a_change_is_made_and_recorded_in_one_piece(client: TestClient, engine: Engine, make: Make) -> None:
    number = make()
    before = client.get(f"{URL}/{number}").json()["changed_at"]
    answer = patch(
        client, number, state="acknowledged", assignee=" Grace ", note="Looks like\nNCCL.",
        external_url="https://tracker.example/42", changed_at=before,
    )  # fmt: skip
    assert answer.status_code == 200
    body = answer.json()
    assert (body["state"], body["assignee"], body["note"]) == ("acknowledged", "Grace", "Looks like\nNCCL.")
    assert body["external_url"] == "https://tracker.example/42"
    assert body["changed_at"] > before
    event = body["events"][-1]
    assert (event["who"], event["action"], event["note"]) == ("Ada", "changed", "Looks like\nNCCL.")
    assert event["before"] == {"state": "open", "assignee": "", "external_url": ""}
    assert event["after"] == {
        "state": "acknowledged", "assignee": "Grace", "external_url": "https://tracker.example/42",
    }  # fmt: skip
    with read_session(engine) as session:
        (row,) = session.execute(select(AuditEventRow).where(col(AuditEventRow.who) == "Ada")).scalars()
        assert (row.subject, row.subject_id) == ("regression", str(number))
        assert row.project_id is not None


def test_a_note_alone_is_part_of_the_discussion(client: TestClient, make: Make) -> None:
    number = make()
    patch(client, number, note="first")
    body = patch(client, number, note="second").json()
    assert body["note"] == "second"
    assert [(event["action"], event["note"]) for event in body["events"][1:]] == [
        ("noted", "first"), ("noted", "second"),
    ]  # fmt: skip


def test_setting_the_current_value_changes_nothing(client: TestClient, make: Make) -> None:
    number = make(assignee="Ada")
    before = client.get(f"{URL}/{number}").json()
    assert patch(client, number, state="open", assignee="Ada").json() == before


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "state", "another change"),
        ({"author": " "}, "author", "must name the author"),
        ({"state": "done"}, "state", ""),
        ({"state": "expected"}, "note", "why the regression is expected"),
        ({"state": "expected", "note": " \n"}, "note", "why the regression is expected"),
        ({"assignee": "x" * 101}, "assignee", ""),
        ({"note": "x" * 2001}, "note", ""),
        ({"note": "a\0b"}, "note", "control"),
        ({"external_url": "javascript:alert(1)"}, "external_url", "https://"),
        ({"external_url": "ftp://host/x"}, "external_url", "https://"),
        ({"external_url": "//host/x"}, "external_url", "https://"),
        ({"external_url": "https://"}, "external_url", "https://"),
        ({"external_url": "https://[host"}, "external_url", "https://"),
        ({"external_url": "https://a b"}, "external_url", "without spaces"),
        ({"external_url": "https://me:secret@host/x"}, "external_url", "user name"),
        ({"proposal": "accept"}, "proposal", "has no proposal"),
        ({"proposal": "maybe"}, "proposal", ""),
        ({"quarantine": True, "note": "bad node"}, "quarantine", "invalid"),
        ({"quarantine": True, "state": "invalid"}, "note", "why the runs are quarantined"),
        ({"state": "fixed", "colour": "red"}, "colour", ""),
        ({"state": "acknowledged", "changed_at": "yesterday"}, "changed_at", ""),
    ],
)
def test_a_change_that_cannot_be_is_refused_by_field(
    client: TestClient, make: Make, body: dict[str, Any], field: str, words: str
) -> None:
    number = make()
    answer = patch(client, number, **body)
    assert answer.status_code == 422
    assert words in fields(answer)[field]
    assert len(client.get(f"{URL}/{number}").json()["events"]) == 1


def test_a_state_that_may_not_follow_is_refused(client: TestClient, make: Make) -> None:
    answer = patch(client, make(state="fixed"), state="expected", note="why")
    assert answer.status_code == 422
    assert set(fields(answer)) == {"state"}
    assert "can only become open" in fields(answer)["state"]


def test_concurrent_changes_are_reported_and_not_overwritten(client: TestClient, make: Make) -> None:
    number = make()
    seen = client.get(f"{URL}/{number}").json()["changed_at"]
    assert patch(client, number, author="Grace", state="acknowledged", changed_at=seen).status_code == 200
    answer = patch(client, number, state="invalid", note="a bad node", changed_at=seen)
    assert answer.status_code == 409
    assert answer.json()["title"] == "Changed by someone else"
    assert "by Grace" in fields(answer)["changed_at"]
    assert "it is acknowledged" in fields(answer)["changed_at"]
    after = client.get(f"{URL}/{number}").json()
    assert (after["state"], after["note"]) == ("acknowledged", "")


@pytest.mark.parametrize(("answer", "state"), [("accept", "fixed"), ("decline", "open")])
def test_a_proposal_is_accepted_or_declined(
    client: TestClient, make: Make, stack: SlowStack, answer: str, state: str
) -> None:
    number = make(proposal="fixed", proposal_run_id=stack.runs[-1])
    body = patch(client, number, proposal=answer, note="looked at it").json()
    assert (body["state"], body["proposal"], body["proposal_run_id"]) == (state, "", stack.runs[-1])
    event = body["events"][-1]
    assert (event["action"], event["note"]) == (f"proposal_{answer.removesuffix('e')}ed", "looked at it")
    assert event["before"]["proposal"] == "fixed"
    # After "fixed", the runs that showed it stay on record: the fix is confirmed, not only claimed.
    assert [member["proposal"] for member in body["members"]] == ["fixed" if answer == "accept" else ""]
    assert body["shown_state"] == state


def test_closing_it_otherwise_answers_the_proposal_too(client: TestClient, make: Make, stack: SlowStack) -> None:
    number = make(proposal="fixed", proposal_run_id=stack.runs[-1])
    assert patch(client, number, state="acknowledged").json()["proposal"] == "fixed"
    assert patch(client, number, state="fixed").json()["proposal"] == ""


def test_an_invalid_one_quarantines_its_slow_runs_when_asked(
    client: TestClient, engine: Engine, make: Make, stack: SlowStack
) -> None:
    number = make()
    body = patch(client, number, state="invalid", note="node 7 was throttled", quarantine=True).json()
    assert body["state"] == "invalid"
    assert body["members"][0]["quarantine"] == "node 7 was throttled"
    with read_session(engine) as session:
        run = session.get_one(RunRow, stack.since)
        assert (run.quarantine, run.quarantined_by) == ("node 7 was throttled", "Ada")
        assert session.execute(select(func.count()).where(col(AuditEventRow.subject) == "run")).scalar_one() == 1


def test_a_refused_change_quarantines_nothing(client: TestClient, engine: Engine, make: Make, stack: SlowStack) -> None:
    answer = patch(client, make(state="fixed"), state="invalid", note="node 7", quarantine=True)
    assert answer.status_code == 422
    with read_session(engine) as session:
        assert session.get_one(RunRow, stack.since).quarantine == ""


def test_several_are_changed_together(client: TestClient, make: Make) -> None:
    first, second = make(), make(assignee="Grace")
    body = {"author": "Ada", "assignee": "Grace", "regressions": [{"id": first}, {"id": second}]}
    answer = client.patch(URL, json=body)
    assert answer.status_code == 200
    assert answer.json()["changed"] == 1
    assert [item["assignee"] for item in answer.json()["items"]] == ["Grace", "Grace"]


def test_several_are_changed_all_or_none(client: TestClient, make: Make) -> None:
    good, closed, stale = make(), make(state="fixed"), make()
    answer = client.patch(
        URL, json={"author": "Ada", "state": "acknowledged", "regressions": [{"id": good}, {"id": closed}]}
    )
    assert answer.status_code == 422
    assert list(fields(answer)) == ["regressions.1.state"]
    old = (FIRST - timedelta(days=1)).isoformat()
    rows = [{"id": good}, {"id": stale, "changed_at": old}]
    answer = client.patch(URL, json={"author": "Ada", "state": "acknowledged", "regressions": rows})
    assert answer.status_code == 409
    assert list(fields(answer)) == ["regressions.1.changed_at"]
    answer = client.patch(
        URL, json={"author": "Ada", "state": "acknowledged", "regressions": [{"id": good}, {"id": 999}]}
    )
    assert answer.status_code == 404
    assert client.get(f"{URL}/{good}").json()["state"] == "open"


def test_missing_objects_are_not_found(client: TestClient) -> None:
    assert client.get(f"{URL}/7").status_code == 404
    assert patch(client, 7, state="fixed").status_code == 404
    assert client.get(URL).json()["items"] == []


def test_those_to_triage_are_counted_for_the_navigation(session: Session) -> None:
    assert regressions_to_triage(session) == 0
    stack = make_slow_stack(session)
    for state, proposal in (("open", ""), ("open", "stale"), ("open", ""), ("acknowledged", ""), ("fixed", "")):
        make_regression(session, stack, state=state, proposal=proposal)
    assert regressions_to_triage(session) == 2


def test_a_regression_goes_with_nothing_but_its_own_rows(session: Session) -> None:
    number = make_regression(session, make_slow_stack(session))
    session.delete(session.get_one(RegressionRow, number))
    session.flush()
    assert session.execute(select(func.count(col(RegressionMemberRow.run_id)))).scalar_one() == 0
    assert session.execute(select(func.count(col(RunRow.id)))).scalar_one() == 17


@pytest.fixture
def postgres(postgres_url: str, tmp_path: Path) -> Iterator[Engine]:
    postgres = make_engine(Settings(data_dir=tmp_path, database_url=postgres_url, broker_url="redis://127.0.0.1:1"))
    yield postgres
    postgres.dispose()


def test_lists_filters_and_sums(postgres: Engine) -> None:
    with transaction(postgres) as session:
        stack = make_slow_stack(session)
        make_regression(session, stack, cause="one")
        make_regression(session, stack, cause="two", gpu_hours_per_day=None, worst_delta_pct=None, state="fixed")
    with read_session(postgres) as session:
        for sort in (f"{sign}{name}" for name in SORTS for sign in ("", "-")):
            regressions = find_regressions(session, RegressionQuery(sort=sort))
            assert len(regressions.items) == 2, sort
            if sort.lstrip("-") != "age":
                assert regressions.items[-1].cause == "two", sort
        everything = RegressionQuery(
            q=f"one #{stack.since} H100", project="triage", assignee="nobody", metric="step_time_ms", kind="run",
            axis="code", gpu="H100", model="Qwen3-30B-A3B",
        )  # fmt: skip
        assert [item.cause for item in find_regressions(session, everything).items] == ["one"]
        counted = count_states(session, RegressionQuery())
        assert (counted.by_state["fixed"], counted.by_state["any"], counted.triage) == (1, 2, 1)
        assert counted.cost == SumOfCosts(12.5, 1, 0)
        assert regressions_to_triage(session) == 1
        assert options_of(session).gpus == ("H100",)
        title = get_regression(session, regressions.items[0].id).members[0].title
        assert title == "Qwen3-30B-A3B · 16 × H100 · forced balance · nemo:26.06"


def test_of_two_concurrent_changes_one_is_refused(postgres: Engine) -> None:
    with transaction(postgres) as session:
        number = make_regression(session, make_slow_stack(session))
    with read_session(postgres) as session:
        seen = Seen(number, get_regression(session, number).changed_at)
    messages: list[str] = []
    ready = threading.Barrier(2)

    def change(who: str) -> None:
        ready.wait()
        try:
            change_regressions(postgres, [seen], RegressionChange(who, state="acknowledged", note=who))
        except EditConflict as error:
            messages.append(error.errors[0].message)

    threads = [threading.Thread(target=change, args=(who,)) for who in ("Ada", "Grace")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(messages) == 1
    with read_session(postgres) as session:
        newest, opened = audit.events(session, "regression", number)
    assert f"was changed by {newest.who} at" in messages[0]
    assert opened.by_service


def test_an_unknown_filter_is_refused_with_the_nearest_one(client: TestClient) -> None:
    for path in ("/api/v1/regressions", "/regressions"):
        assert client.get(f"{path}?assignees=mara").status_code == 422
    (error,) = client.get("/api/v1/regressions?assignees=mara").json()["errors"]
    assert (error["field"], "assignee?" in error["message"]) == ("assignees", True)
    assert client.get("/api/v1/regressions?assignee=mara&format=csv").status_code == 200


def test_a_run_that_ends_a_regression_is_back_and_not_improved(client: TestClient, engine: Engine) -> None:
    times = [400.0, 401.0] * 6 + [480.0, 481.0] * 3 + [401.0]
    with transaction(engine) as session:
        runs = make_stack(session, times, project="back")
    regressions = client.get("/api/v1/regressions?project=back&state=any").json()["items"]
    verdict = client.get(f"/api/v1/runs/{runs[-1]}/verdict").json()
    assert verdict["reason"].startswith(f"Back to the level before regression {regressions[0]['id']}: ")
    assert "recovered" in client.get(f"/runs/{runs[-1]}").text.partition('class="badges"')[2].partition("<nav")[0]
    with transaction(engine) as session:
        faster = make_stack(session, [*times[:-1], 300.0], project="faster")
    assert "Back to" not in client.get(f"/api/v1/runs/{faster[-1]}/verdict").json()["reason"]

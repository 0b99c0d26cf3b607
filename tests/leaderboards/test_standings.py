"""Stored standings: their index, and properties on every database."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine
from sqlmodel import Session, select

from app.domain.definitions import DEFINITION_VERSION
from app.domain.ranking.runs import DISPATCHERS, NEED_A_PACKAGE, reaches
from app.domain.ranking.standings import Board
from app.pipeline.rank import difference, rank
from app.settings import Settings
from app.storage.database import make_engine, read_session, transaction
from app.storage.standings import StandingsFilters, hardware_and_families, leader_changes, stack_standings, standings_of
from app.storage.tables import RunRow
from tests.builders import (
    add_availability,
    judge,
    make_leaderboard,
    make_project,
    make_stack,
    settle_standings,
    stated_activity,
)
from tests.cases import every_case, sized

HERE = ("h100", "qwen3-30b-a3b")


@pytest.fixture
def engine(either_engine: Engine) -> Engine:
    return either_engine


def test_a_page_has_the_stacks_of_one_hardware_and_family(session: Session) -> None:
    leaderboard = make_leaderboard(session)
    page = standings_of(session, *HERE, StandingsFilters())
    assert {item.stack_key for item in page.items} == {
        leaderboard[name] for name in ("tie", "leader", "only", "directional")
    }
    assert (page.hardware, page.family, page.total) == ("H100", "Qwen3-30B-A3B", 4)
    assert all("cluster" in item.unknown and "container" not in item.unknown for item in page.items)
    boards = {item.stack_key: item.standings.boards for item in page.items}
    readings = {name: [board.reading for board in boards[leaderboard[name]]] for name in ("tie", "leader", "only")}
    assert readings == {"tie": ["tie"], "leader": ["leader"], "only": ["only_measurement"]}
    tie = boards[leaderboard["tie"]][0]
    assert sorted(tie.leaders) == ["deepep", "hybridep"]
    gain = next(entry for entry in tie.entries if entry.dispatcher == "deepep").gain
    assert gain is not None
    assert "more memory" in gain.sentence
    standings = stack_standings(session, leaderboard["tie"])
    assert standings is not None
    assert [item.why for item in standings.standings.refused] == ["too_short", "quarantined"]
    assert (standings.runs, standings.gpus, standings.container) == (10, 16, "nvcr.io/nvidia/nemo:26.06")
    assert standings.about["seq_len"] == 4096


def test_summaries_cover_all_stacks_and_not_only_those_shown(session: Session) -> None:
    leaderboard = make_leaderboard(session)
    page = standings_of(session, *HERE, StandingsFilters(), 2, size=1)
    assert (len(page.items), page.total, page.pages) == (1, 4, 4)
    training = next(summary for summary in page.summaries if summary.semantic_class == "training_equivalent")
    assert (training.stacks, training.rankings) == (3, 2)
    tallies = {tally.dispatcher: tally for tally in training.overall.tallies}
    assert (tallies["hybridep"].won, tallies["hybridep"].tied, tallies["hybridep"].could_not_run) == (1, 1, 1)
    assert tallies["alltoall"].lost == 2
    gain = tallies["hybridep"].gain
    assert gain is not None
    assert {gain.lowest_stack, gain.highest_stack} == {leaderboard["tie"], leaderboard["leader"]}


def test_filters(session: Session) -> None:
    leaderboard = make_leaderboard(session)
    with every_case() as case:
        for filters, names in (
            (StandingsFilters(routing="forced"), {"directional"}),
            (StandingsFilters(routing="dropless"), {"tie", "leader", "only"}),
            (StandingsFilters(semantic_class="benchmark_only"), {"directional"}),
            (StandingsFilters(precision="fp8"), {"leader"}),
            (StandingsFilters(ep_size="large"), {"leader"}),
            (StandingsFilters(floor="validated"), {"tie", "leader", "only", "directional"}),
            (StandingsFilters(project="another"), set()),
        ):
            with case(filters):
                page = standings_of(session, *HERE, filters)
                assert {item.stack_key for item in page.items} == {leaderboard[name] for name in names}
                assert page.total == len(names)
                assert page.options.precisions == ("bf16", "fp8")
                assert all(board.floor == filters.floor for item in page.items for board in item.standings.boards)


def test_the_index_and_the_history_of_leaders(session: Session) -> None:
    make_leaderboard(session)
    index = [
        (family.hardware_slug, family.family_slug, family.stacks, family.rankings)
        for family in hardware_and_families(session)
    ]
    assert index == [("gb200", "deepseek-v3", 1, 1), ("h100", "qwen3-30b-a3b", 4, 2)]
    assert hardware_and_families(session, "another") == ()
    here = leader_changes(session, hardware_slug=HERE[0], family_slug=HERE[1])
    assert sorted(item.change.sentence for item in here) == ["deepep and hybridep (tie)", "hybridep"]
    assert {change.project for change in leader_changes(session)} == {"moe-lab"}
    assert stack_standings(session, "0" * 64) is None


ROUTING = ("dropless", "forced-balance", "capacity-drop")
FINE = {"completed", "unknown", ""}
SOUND: dict[str, st.SearchStrategy[Any]] = {
    "dispatcher": st.sampled_from(DISPATCHERS[1:4]),
    "step_time_ms": st.sampled_from((300.0, 330.0, 400.0, 401.0)),
    "evidence_level": st.sampled_from(("validated", "validated", "screen", "smoke")),
    "semantic_class": st.sampled_from(("training_equivalent", "training_equivalent", "benchmark_only")),
    "routing_mode": st.sampled_from(("dropless", *ROUTING)),
    "container": st.sampled_from(("nemo:26.06", "nemo:26.06", "nemo:26.02")),
    "purpose": st.sampled_from(("ci", "experiment", "release")),
}
ODD: tuple[dict[str, Any], ...] = (
    {"quarantine": "bad node"},
    {"outcome": "failed"},
    {"outcome": "out_of_memory"},
    {"status": "failed", "outcome": "failed"},
    {"is_steady": False},
    {"window_length": 4, "short": True},
    {"window_length": 8, "short": True},
    {"not_finite": 2},
    {"fair_for_timing": False},
    {"reception": "receiving"},
    {"definition_version": DEFINITION_VERSION - 1, "recompute_failed": DEFINITION_VERSION},
    {"shape": "24,1024"},
    {"active": None},
    {"active": "alltoall"},
    {"missing": "deepep"},
    {"missing": "hybridep"},
    {"dispatcher": None},
    {"log_step_time": None},
)
NUMBERS = count(1)


@pytest.fixture(scope="module")
def module_engine(tmp_path_factory: pytest.TempPathFactory, migrated_file: Any) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("property")
    (folder / "threewalls.db").write_bytes(migrated_file.read_bytes())
    module_engine = make_engine(Settings(data_dir=folder))
    yield module_engine
    module_engine.dispose()


@st.composite
def any_run(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly eligible runs, so that there are rankings to check; others have one or two anomalies."""
    fields = {name: draw(values) for name, values in SOUND.items()}
    for odd in draw(st.one_of(st.just([]), st.lists(st.sampled_from(ODD), max_size=2))):
        fields |= odd
    return fields


def add(session: Session, project: str, run: dict[str, Any]) -> None:
    fields = dict(run)
    active, missing = fields.pop("active", "as requested"), fields.pop("missing", "")
    keyed = {"container": fields.pop("container"), "routing_mode": fields.pop("routing_mode")}
    dispatcher, time = fields.pop("dispatcher"), fields.pop("step_time_ms")
    activity = stated_activity(dispatcher, active) if dispatcher else {}
    knobs: dict[str, Any] = keyed | {"dispatcher": dispatcher or ...}
    fields = {"definition_version": DEFINITION_VERSION} | fields
    (run_id,) = make_stack(session, [time], project=project, fields=knobs, judged=False, activity=activity, **fields)
    if missing:
        add_availability(session, run_id, missing)


def check(session: Session, stack_key: str, board: Board) -> None:
    """Against the rows themselves, not the result of ranking."""
    for entry in board.entries:
        for run in (session.get_one(RunRow, int(name)) for name in entry.runs):
            carried = (run.result.activity.get("dispatcher") or {}).get("active") or {}
            assert run.stack_key == stack_key
            assert run.result.contract["routing_mode"]["value"] == board.routing_mode
            assert run.semantic_class == board.semantic_class
            assert (run.quarantine, run.status, run.reception) == ("", "ready", "whole")
            assert run.outcome in FINE
            assert run.is_steady
            assert run.fair_for_timing
            assert run.not_finite == 0
            assert (run.window_length or 0) >= 5
            assert run.definition_version == DEFINITION_VERSION
            assert entry.dispatcher == carried.get("value", run.dispatcher)
            assert entry.dispatcher not in NEED_A_PACKAGE or carried
            assert reaches(run.evidence_level, "screen" if board.floor == "matched_ab" else board.floor)
            if run.short and run.evidence_level != "validated":
                assert entry.directional
    names = [name for entry in board.entries for name in entry.runs]
    assert len(names) == len(set(names))


@settings(max_examples=sized(20, 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(any_run(), min_size=1, max_size=14))
def test_no_ranking_that_is_kept_mixes_what_must_not_be(module_engine: Engine, runs: list[dict[str, Any]]) -> None:
    project = f"project-{next(NUMBERS)}"
    with transaction(module_engine) as session:
        for number, run in enumerate(runs):
            add(session, project, run | {"name": f"run-{number}"})
        owner = make_project(session, project).id
        keys = session.exec(select(RunRow.stack_key).where(RunRow.project_id == owner).distinct()).all()
        for key in keys:
            judge(session, project, key)
        settle_standings(session)
    with read_session(module_engine) as session:
        for key in keys:
            standings = stack_standings(session, key, floor="")
            if standings is None:
                rows = session.exec(select(RunRow.reception).where(RunRow.stack_key == key)).all()
                assert set(rows) == {"receiving"}
                continue
            assert difference(session, rank(session, standings.project_id, key, learn=False)) == ()
            for board in standings.standings.boards:
                check(session, key, board)

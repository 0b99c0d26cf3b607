"""What is kept of each stack: a page of stacks, the slim results of all of them, and the index."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlmodel import Session

from app.settings import Settings
from app.storage.database import make_engine, transaction
from app.storage.leader_changes import leader_changes
from app.storage.standings import StandingsFilters, hardware_and_families, stack_standings, standings_of
from tests.builders import make_leaderboard
from tests.cases import every_case

HERE = ("h100", "qwen3-30b-a3b")


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Engine]:
    if request.param == "postgresql":
        settings = settings.model_copy(update={"database_url": request.getfixturevalue("postgres_url")})
    engine = make_engine(settings)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with transaction(engine) as session:
        yield session


def test_a_page_has_the_stacks_of_one_hardware_and_family(session: Session) -> None:
    made = make_leaderboard(session)
    page = standings_of(session, *HERE, StandingsFilters())
    assert {one.stack_key for one in page.items} == {made[name] for name in ("tie", "leader", "only", "directional")}
    assert (page.hardware, page.family, page.total) == ("H100", "Qwen3-30B-A3B", 4)
    boards = {one.stack_key: one.standings.boards for one in page.items}
    readings = {name: [board.reading for board in boards[made[name]]] for name in ("tie", "leader", "only")}
    assert readings == {"tie": ["tie"], "leader": ["leader"], "only": ["only_measurement"]}
    tie = boards[made["tie"]][0]
    assert sorted(tie.leaders) == ["deepep", "hybridep"]
    gain = next(one for one in tie.entries if one.dispatcher == "deepep").gain
    assert gain is not None
    assert "more memory" in gain.sentence
    kept = stack_standings(session, made["tie"])
    assert kept is not None
    assert [one.why for one in kept.standings.refused] == ["too_short", "quarantined"]
    assert (kept.runs, kept.gpus, kept.container) == (10, 16, "nvcr.io/nvidia/nemo:26.06")
    assert kept.about["seq_len"] == 4096


def test_summaries_are_of_all_stacks_however_few_are_shown(session: Session) -> None:
    made = make_leaderboard(session)
    page = standings_of(session, *HERE, StandingsFilters(), 2, size=1)
    assert (len(page.items), page.total, page.pages) == (1, 4, 4)
    training = next(one for one in page.summaries if one.semantic_class == "training_equivalent")
    assert (training.stacks, training.rankings) == (3, 2)
    tallies = {one.dispatcher: one for one in training.overall.tallies}
    assert (tallies["hybridep"].won, tallies["hybridep"].tied, tallies["hybridep"].could_not_run) == (1, 1, 1)
    assert tallies["alltoall"].lost == 2
    gain = tallies["hybridep"].gain
    assert gain is not None
    assert {gain.lowest_stack, gain.highest_stack} == {made["tie"], made["leader"]}


def test_filters(session: Session) -> None:
    made = make_leaderboard(session)
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
                assert {one.stack_key for one in page.items} == {made[name] for name in names}
                assert page.total == len(names)
                assert page.options.precisions == ("bf16", "fp8")
                assert all(board.floor == filters.floor for one in page.items for board in one.standings.boards)


def test_the_index_and_the_history_of_leaders(session: Session) -> None:
    make_leaderboard(session)
    index = [(one.hardware_slug, one.family_slug, one.stacks, one.rankings) for one in hardware_and_families(session)]
    assert index == [("gb200", "deepseek-v3", 1, 1), ("h100", "qwen3-30b-a3b", 4, 2)]
    assert hardware_and_families(session, "another") == ()
    here = leader_changes(session, hardware_slug=HERE[0], family_slug=HERE[1])
    assert sorted(one.change.sentence for one in here) == ["deepep and hybridep (tie)", "hybridep"]
    assert {one.project for one in leader_changes(session)} == {"moe-lab"}
    assert stack_standings(session, "0" * 64) is None

"""Rank a stack: read its runs, and store the standings in the transaction that ends the work on the stack.

Standings depend only on the runs of the stack and the priors of its family, not on the order of arrival.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Engine,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    inspect,
    or_,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, col

from app.domain.contract.fields import STACK_FIELDS
from app.domain.definitions import DEFINITION_VERSION, RANKING_VERSION
from app.domain.naming import stack_title, stated_text
from app.domain.numbers import plural
from app.domain.ranking.across import board_results
from app.domain.ranking.rank import (
    LEADER_FLOOR,
    HeadChange,
    StoredState,
    board_class,
    explained,
    head_changes,
    newest_run,
    prior_to_keep,
    rank_stack,
)
from app.domain.ranking.runs import RankedRun, family_of, hardware_of
from app.domain.ranking.scaling import ScalingRuns, scaling_runs
from app.domain.ranking.standings import Board, StackStandings
from app.domain.run import Stated, Value
from app.domain.verdict.record import UNFIT
from app.domain.verdict.step_time import FEWEST_ITERATIONS, Prior
from app.errors import ThreewallsError
from app.pipeline.assess import LEAST_OF_CONFIGURATION, LOOK_BACK
from app.pipeline.work import stack_queue
from app.settings import Settings
from app.storage import json_text
from app.storage.database import make_engine, read_session, transaction
from app.storage.json_text import from_json, to_json
from app.storage.readings import losses_of_runs
from app.storage.runs import stored_contract
from app.storage.stacks import COMPARED, MOST_RUNS, StackRun, facts_of, family_prior
from app.storage.standings import add_leader_changes, last_heads
from app.storage.tables import (
    AvailabilityRow,
    RankingPriorRow,
    RunResultRow,
    RunRow,
    StackWorkRow,
    StandingBoardRow,
    StandingRow,
    not_indexed,
    select_any,
    table_of,
    utc_now,
)

# --- The runs of a stack that leaderboards need, and the description of the stack from its newest run.
#
# Of a history of any length, only the newest runs are read, and some runs of each configuration that paused.

PROCESSED_STATUSES = ("ready", "failed")

_MOST_TITLE = 1000
_RANKED = (
    *COMPARED, RunRow.ordered_at, RunRow.evidence_level, RunRow.dispatcher, RunRow.gpu, RunRow.gpus,
    RunRow.tokens_per_s_per_gpu, RunRow.tflops_per_gpu, col(RunResultRow.activity)["dispatcher"].label("carried"),
)  # fmt: skip

# Built once, because building them takes as long as running them.
_ALL: Select[Any] = (
    select_any(*_RANKED)
    .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
    .where(
        # Makes SQLite look up the runs of the stack instead of reading all runs of the project in order.
        not_indexed(col(RunRow.project_id)) == bindparam("project_id"),
        col(RunRow.stack_key) == bindparam("stack_key"),
        col(RunRow.status).in_(PROCESSED_STATUSES),
        col(RunRow.reception) != "receiving",
    )
    .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
)
_NEWEST_RUNS = _ALL.limit(LOOK_BACK)
_OF_CONFIGURATION = _ALL.where(
    col(RunRow.config_key) == bindparam("config_key"), col(RunRow.status) == "ready", col(RunRow.quarantine) == ""
).limit(LEAST_OF_CONFIGURATION)
_CONFIGURATIONS: Select[Any] = (
    # Needs no project, because a stack key depends on it. An index has all columns that this reads.
    select_any(RunRow.config_key, func.count().label("runs"))
    .where(
        col(RunRow.stack_key) == bindparam("stack_key"),
        col(RunRow.status).in_(PROCESSED_STATUSES),
        col(RunRow.reception) != "receiving",
    )
    .group_by(col(RunRow.config_key))
)
_CONTRACTS: Select[Any] = (
    select_any(RunRow.config_key, RunResultRow.contract)
    .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
    .where(col(RunRow.id).in_(bindparam("run_ids", expanding=True)))
)
_MISSING: Select[Any] = (
    select_any(AvailabilityRow.run_id, AvailabilityRow.dispatcher)
    .where(
        col(AvailabilityRow.run_id).in_(bindparam("run_ids", expanding=True)),
        col(AvailabilityRow.available).is_(False),
    )
    .order_by(col(AvailabilityRow.dispatcher))
)


@dataclass(frozen=True, slots=True)
class StackAbout:
    """The description of a stack in lists, from its newest run."""

    gpu: str
    hardware_slug: str
    family_slug: str
    title: str
    container: str
    gpus: int | None
    known: Mapping[str, Value]
    newest_run_id: int
    newest_at: datetime


@dataclass(frozen=True, slots=True)
class RankedStack:
    """The newest processed runs of a stack (at least one) of `total`. `contracts`: one per config key."""

    runs: tuple[RankedRun, ...]
    contracts: Mapping[str, Mapping[str, Stated]]
    about: StackAbout
    total: int


@dataclass(frozen=True, slots=True)
class InMemory:
    """Data of a stack that judging has already read. `newest`: all its runs or more than LOOK_BACK; empty if not read.

    `contracts`: by run. `may_miss`: whether a log of the project shows that the package of a dispatcher is missing.
    """

    newest: Sequence[StackRun] = ()
    contracts: Mapping[int, Mapping[str, Stated]] = field(default_factory=dict)
    may_miss: bool = True

    @property
    def rows(self) -> list[Row[Any]]:
        """Return the runs to rank, oldest first; empty if too few of them were read."""
        rows = [run.row for run in self.newest if run.reception != "receiving"]
        return rows[-LOOK_BACK:] if len(self.newest) <= LOOK_BACK or len(rows) >= LOOK_BACK else []


NOTHING_READ = InMemory()


def ranked_stack(session: Session, project_id: int, stack_key: str, read: InMemory) -> RankedStack | None:
    """Return the runs of a stack; None if none was processed. A run whose log is growing does not count."""
    rows, total = _read_runs(session, project_id, stack_key, read.rows)
    if not rows:
        return None
    of_configurations = _contracts(session, {row.config_key: row.id for row in rows}, read.contracts)
    missing = _missing(session, [row.id for row in rows]) if read.may_miss else {}
    last = rows[-1]
    contract = of_configurations[last.config_key]
    family = _Description.of(contract, last.gpu)
    runs = tuple(_ranked(row, of_configurations[row.config_key], family, missing.get(row.id, ())) for row in rows)
    about = StackAbout(
        gpu=last.gpu or "",
        hardware_slug=family.hardware_slug,
        family_slug=family.family_slug,
        title=stack_title(contract, dispatcher=False)[:_MOST_TITLE],
        container=stated_text(contract, "container"),
        gpus=last.gpus,
        known={name: contract[name].value for name in STACK_FIELDS if name in contract},
        newest_run_id=last.id,
        newest_at=last.ordered_at,
    )
    return RankedStack(runs, of_configurations, about, total)


def _read_runs(
    session: Session, project_id: int, stack_key: str, already: Sequence[Row[Any]]
) -> tuple[list[Row[Any]], int]:
    """Return the runs to rank, oldest first, and the number of all processed runs of the stack."""
    key = {"project_id": project_id, "stack_key": stack_key}
    newest = list(reversed(already)) or session.execute(_NEWEST_RUNS, key).all()
    if len(newest) < LOOK_BACK:
        return list(reversed(newest)), len(newest)
    rows = {row.id: row for row in newest}
    eligible = Counter(row.config_key for row in newest if row.status == "ready" and not row.quarantine)
    configurations = session.execute(_CONFIGURATIONS, key).all()
    for configuration in configurations:
        if eligible[configuration.config_key] < min(configuration.runs, LEAST_OF_CONFIGURATION):
            own = key | {"config_key": configuration.config_key}
            rows |= {row.id: row for row in session.execute(_OF_CONFIGURATION, own)}
    ordered = sorted(rows.values(), key=lambda row: (row.ordered_at, row.id))
    return ordered, sum(configuration.runs for configuration in configurations)


@dataclass(frozen=True, slots=True)
class _Description:
    """Values that all runs of a stack share, from the newest run."""

    hardware: str
    hardware_slug: str
    family: str
    family_slug: str
    precision: str

    @classmethod
    def of(cls, contract: Mapping[str, Stated], gpu: str | None) -> "_Description":
        hardware = hardware_of(gpu)
        family = family_of(
            stated_text(contract, "model"), {name: stated_value.value for name, stated_value in contract.items()}
        )
        return cls(hardware.name, hardware.slug, family.name, family.slug, stated_text(contract, "precision"))


def _ranked(row: Row[Any], contract: Mapping[str, Stated], about: _Description, missing: tuple[str, ...]) -> RankedRun:
    carried = row.carried or {}
    ep = contract["ep"].value if "ep" in contract else None
    return RankedRun(
        facts=facts_of(row),
        ordered_at=row.ordered_at,
        requested=_value(carried.get("requested")) or row.dispatcher,
        active=_value(carried.get("active")),
        evidence_level=row.evidence_level,
        hardware=about.hardware,
        family=about.family,
        precision=about.precision,
        routing_mode=stated_text(contract, "routing_mode"),
        ep=ep if isinstance(ep, int) else None,
        gpus=row.gpus,
        tokens_per_s_per_gpu=row.tokens_per_s_per_gpu,
        tflops_per_gpu=row.tflops_per_gpu,
        missing=missing,
        inferred=(carried.get("active") or {}).get("source") == "derived",
    )


def _contracts(
    session: Session, runs: Mapping[str, int], already: Mapping[int, Mapping[str, Stated]]
) -> dict[str, Mapping[str, Stated]]:
    """Return one contract per config key. Runs with the same key agree on all fields of the key."""
    contracts = {config: already[run_id] for config, run_id in runs.items() if run_id in already}
    if missing := [run_id for config, run_id in runs.items() if config not in contracts]:
        rows = session.execute(_CONTRACTS, {"run_ids": missing})
        contracts |= {row.config_key: stored_contract(row.contract) for row in rows}
    return contracts


def _missing(session: Session, run_ids: list[int]) -> dict[int, tuple[str, ...]]:
    """Return, by run, the dispatchers whose package is missing according to its log."""
    missing: dict[int, tuple[str, ...]] = {}
    for run_id, dispatcher in session.execute(_MISSING, {"run_ids": run_ids}):
        missing[run_id] = (*missing.get(run_id, ()), dispatcher)
    return missing


def _value(entry: Mapping[str, Any] | None) -> str | None:
    value = None if entry is None else entry["value"]
    return None if value is None else str(value)


# --- Priors: how much launches of a family (same project, GPU and semantic class) vary.
#
# The estimate changes slightly with every run. The stored prior is replaced only if the estimate has moved far enough.
# So one upload ranks one stack, not the whole family, and ranking everything again gives the stored result.

_NEWEST: Select[Any] = (
    select_any(RunRow.config_key, RunRow.outcome, RunRow.log_step_time, RunRow.window_length, RunRow.not_finite)
    .where(
        col(RunRow.project_id) == bindparam("project_id"),
        col(RunRow.gpu) == bindparam("gpu"),
        col(RunRow.semantic_class) == bindparam("semantic_class"),
        col(RunRow.definition_version) == DEFINITION_VERSION,
        col(RunRow.purpose) == "ci",
        col(RunRow.status) == "ready",
        col(RunRow.is_steady).is_(True),
        col(RunRow.short).is_(False),
        col(RunRow.quarantine) == "",
    )
    .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
    .limit(MOST_RUNS)
)
"""Built once, because building it takes as long as running it."""


@dataclass(frozen=True, slots=True)
class FamilyPriors:
    """Priors by semantic class. `version`: 0 if none are stored; then every class has the default prior.

    `has_moved`: these priors must replace the stored ones.
    """

    gpu: str = ""
    version: int = 0
    of_class: Mapping[str, Prior] = field(default_factory=dict)
    has_moved: bool = False


NO_PRIORS = FamilyPriors()


def stored_priors(session: Session, project_id: int, gpu: str | None) -> FamilyPriors:
    """Return the stored priors. Without a known GPU there is no family and no prior."""
    row = session.get(RankingPriorRow, (project_id, gpu), populate_existing=True) if gpu else None
    if row is None:
        return FamilyPriors(gpu or "")
    return FamilyPriors(row.gpu, row.version, {name: from_json(Prior, prior) for name, prior in row.priors.items()})


def learned_priors(session: Session, project_id: int, gpu: str | None, classes: Iterable[str]) -> FamilyPriors:
    """Return the stored priors, with new ones where the estimate has moved; `version` is then the next one.

    `keep_priors` stores them.
    """
    stored = stored_priors(session, project_id, gpu)
    if not gpu:
        return stored
    of_class = dict(stored.of_class)
    for name in sorted(set(classes)):
        of_class[name] = prior_to_keep(stored.of_class.get(name), _fresh(session, project_id, gpu, name))
    moved = stored.version == 0 or of_class != stored.of_class
    return FamilyPriors(gpu, stored.version + moved, of_class, moved)


def keep_priors(session: Session, project_id: int, priors: FamilyPriors) -> int:
    """Store the priors if they have moved. Return the version for the stack's row.

    If another worker has changed the priors, the returned version is outdated, and the stack is ranked again.
    """
    if not priors.gpu:
        return 0
    if not priors.has_moved:
        return priors.version
    chosen = select(RankingPriorRow).where(
        col(RankingPriorRow.project_id) == project_id, col(RankingPriorRow.gpu) == priors.gpu
    )
    row = session.execute(chosen.with_for_update().execution_options(populate_existing=True)).scalar_one_or_none()
    stored = {name: to_json(prior) for name, prior in priors.of_class.items()}
    if row is None:
        session.add(RankingPriorRow(project_id=project_id, gpu=priors.gpu, version=1, priors=stored))
    elif priors.version > row.version:
        row.version, row.priors, row.changed_at = priors.version, stored, utc_now()
    elif row.priors != stored:
        return 0
    session.flush()
    return priors.version


def _fresh(session: Session, project_id: int, gpu: str, semantic_class: str) -> Prior:
    parameters = {"project_id": project_id, "gpu": gpu, "semantic_class": semantic_class}
    groups: dict[str, list[float]] = {}
    for row in reversed(session.execute(_NEWEST, parameters).all()):
        usable = (row.window_length or 0) >= FEWEST_ITERATIONS and row.log_step_time is not None
        if usable and row.outcome not in UNFIT and not row.not_finite:
            groups.setdefault(row.config_key, []).append(row.log_step_time)
    return family_prior(groups.values())


Key = tuple[int, str]
"""Project and stack key."""

BATCH_STACKS = 16
# Core tables, because these rows are compared and written in bulk without session objects.
_STACKS: Table = table_of(StandingRow)
_BOARDS: Table = table_of(StandingBoardRow)


def _put_stack(statement: Any) -> Any:
    """Return an insert that replaces the row of a stack."""
    keys = ("project_id", "stack_key")
    replaced = {column.name: statement.excluded[column.name] for column in _STACKS.columns if column.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=replaced)


_PUT_STACK = {"sqlite": _put_stack(sqlite.insert(_STACKS)), "postgresql": _put_stack(postgresql.insert(_STACKS))}


@dataclass(frozen=True)
class Ranked:
    """The standings of a stack to store; None if it has no runs left. `heads`: changes of leaders.

    `sizes`: the runs of its configurations, for the scaling page.
    """

    project_id: int
    stack_key: str
    standings: StackStandings | None = None
    about: StackAbout | None = None
    runs: int = 0
    priors: FamilyPriors = NO_PRIORS
    heads: tuple[HeadChange, ...] = ()
    sizes: tuple[ScalingRuns, ...] = ()

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Return the columns of the stack's row without the time; empty without standings."""
        if self.standings is None or self.about is None:
            return {}
        about = asdict(self.about)
        values, newest_at = about.pop("known"), about.pop("newest_at")
        return {
            "hardware": self.standings.hardware,
            "family": self.standings.family,
            "precision": self.standings.precision,
            **about,
            "about": to_json(values),
            "newest_at": newest_at,
            "runs": self.runs,
            "ranking_version": RANKING_VERSION,
            "prior_version": self.priors.version,
            "document": to_json(replace(self.standings, boards=())) | {"scaling": json_text.dumps(to_json(self.sizes))},
        }

    @cached_property
    def boards(self) -> list[dict[str, Any]]:
        stack = self.standings
        if stack is None:
            return []
        return [
            {
                "floor": board.floor,
                "routing_mode": board.routing_mode,
                "semantic_class": board.semantic_class,
                "reading": board.reading,
                "is_ranking": board.is_ranking,
                "results": to_json(board_results(stack, board).results),
                "document": to_json(board),
            }
            for board in stack.boards
        ]


def rank(
    session: Session,
    project_id: int,
    stack_key: str,
    *,
    learn: bool = True,
    read: InMemory = NOTHING_READ,
) -> Ranked:
    """Compute the standings of a stack. `learn`: update the priors from the family instead of using the stored ones."""
    stack = ranked_stack(session, project_id, stack_key, read)
    if stack is None:
        return Ranked(project_id, stack_key)
    gpu = stack.about.gpu
    classes = {run.facts.semantic_class for run in stack.runs}
    priors = learned_priors(session, project_id, gpu, classes) if learn else stored_priors(session, project_id, gpu)
    standings = rank_stack(stack.runs, priors.of_class, stack.contracts, losses=partial(losses_of_runs, session))
    heads = _head_changes(session, project_id, standings, stack) if learn else ()
    sizes = scaling_runs(stack.runs, stack.contracts, priors.of_class)
    return Ranked(project_id, stack_key, standings, stack.about, stack.total, priors, heads, sizes)


def _head_changes(
    session: Session, project_id: int, standings: StackStandings, stack: RankedStack
) -> tuple[HeadChange, ...]:
    """Return the changes of leaders since the stored boards, with the runs that caused them."""
    changes = head_changes(standings, last_heads(session, project_id, standings.stack_key))
    if not changes:
        return ()
    before = _stored_states(session, project_id, standings.stack_key)
    after = {board_class(entry): entry for entry in standings.boards_at(LEADER_FLOOR)}
    positions = {run.name: run.ordered_at for run in stack.runs}
    return tuple(
        explained(entry, before(board_class(entry.after)), after.get(board_class(entry.after)), positions)
        for entry in changes
    )


def _stored_states(session: Session, project_id: int, stack_key: str) -> Callable[[tuple[str, str]], StoredState]:
    """Return a function that returns the stored state of the stack's board of a class."""
    of_boards = (_BOARDS.c.project_id == project_id, _BOARDS.c.stack_key == stack_key, _BOARDS.c.floor == LEADER_FLOOR)
    documents = session.execute(select(_BOARDS.c.document).where(*of_boards)).scalars()
    boards = {board_class(entry): entry for entry in (from_json(Board, row) for row in documents)}
    of_stack = (_STACKS.c.project_id == project_id, _STACKS.c.stack_key == stack_key)
    row = session.execute(select(_STACKS.c.ranking_version, _STACKS.c.document).where(*of_stack)).one_or_none()
    refused = [entry["run"] for entry in row.document["refused"]] if row else []
    newest = newest_run(boards.values(), refused)
    other_rules = row is not None and row.ranking_version != RANKING_VERSION
    return lambda wanted: StoredState(boards.get(wanted), newest, other_rules)


def keep(session: Session, ranked: Ranked) -> bool:
    """Store the standings if they differ from the stored ones. Return whether they did."""
    ranked = _with_changes(session, ranked)
    is_new = bool(difference(session, ranked))
    if is_new:
        _write(session, ranked)
    return is_new


def put(session: Session, ranked: Ranked) -> None:
    """Store the standings of a stack with a new run, without a comparison: they always differ from the stored ones."""
    _write(session, _with_changes(session, ranked))


def _with_changes(session: Session, ranked: Ranked) -> Ranked:
    """Store the priors and the changes of leaders. Return the standings with the version of the priors in them."""
    version = keep_priors(session, ranked.project_id, ranked.priors)
    add_leader_changes(session, ranked.project_id, ranked.stack_key, ranked.heads)
    return replace(ranked, priors=replace(ranked.priors, version=version))


def difference(session: Session, ranked: Ranked) -> tuple[str, ...]:
    """Return the names of stored columns and boards that differ from `ranked`; () if all are equal."""
    columns = ranked.columns
    row = session.execute(select(_STACKS).where(*_of(_STACKS, ranked))).one_or_none()
    if row is None or not columns:
        return () if row is None and not columns else ("the stack itself",)
    columns_that_differ = [
        name for name, value in columns.items() if _ranking_text(value) != _ranking_text(getattr(row, name))
    ]
    stored = {_board_name(board): _ranking_text(board) for board in _stored_boards(session, ranked)}
    computed = {_board_name(board): _ranking_text(board) for board in ranked.boards}
    names = sorted(name for name in stored.keys() | computed.keys() if stored.get(name) != computed.get(name))
    return (*columns_that_differ, *(f"board {name}" for name in names))


def request_next_rankings(session: Session) -> list[int]:
    """Request that the next stacks with outdated ranking rules or priors are ranked again, but not judged.

    Return the ids to enqueue after the commit. A parked stack waits until one of its runs changes.
    """
    same = and_(
        col(StackWorkRow.project_id) == StandingRow.project_id, col(StackWorkRow.stack_key) == StandingRow.stack_key
    )
    rests = or_(col(StackWorkRow.id).is_(None), and_(col(StackWorkRow.work) == "", col(StackWorkRow.attempts) == 0))
    chosen = _behind().outerjoin(StackWorkRow, same).where(rests).limit(BATCH_STACKS)
    return [stack_queue.request(session, row.project_id, row.stack_key) for row in session.execute(chosen).all()]


def behind(session: Session) -> list[Key]:
    """Return the stacks that were ranked with outdated rules or priors."""
    return [(row.project_id, row.stack_key) for row in session.execute(_behind())]


def all_stacks(session: Session) -> list[Key]:
    """Return every stack that has runs or standings."""
    of_runs = select_any(RunRow.project_id, RunRow.stack_key).where(col(RunRow.stack_key) != "")
    of_standings = select_any(StandingRow.project_id, StandingRow.stack_key)
    return sorted((row.project_id, row.stack_key) for row in session.execute(of_runs.union(of_standings)))


def _behind() -> Select[Any]:
    """Return a select of outdated stacks in the order in which all code locks them."""
    family = and_(
        col(RankingPriorRow.project_id) == StandingRow.project_id, col(RankingPriorRow.gpu) == StandingRow.gpu
    )
    chosen: Select[Any] = select_any(StandingRow.project_id, StandingRow.stack_key).outerjoin(RankingPriorRow, family)
    moved = col(RankingPriorRow.version) != StandingRow.prior_version
    return chosen.where(or_(col(StandingRow.ranking_version) != RANKING_VERSION, moved)).order_by(
        col(StandingRow.project_id), col(StandingRow.stack_key)
    )


def _write(session: Session, ranked: Ranked) -> None:
    key = {"project_id": ranked.project_id, "stack_key": ranked.stack_key}
    session.execute(delete(_BOARDS).where(*_of(_BOARDS, ranked)))
    if not ranked.columns:
        session.execute(delete(_STACKS).where(*_of(_STACKS, ranked)))
        return
    session.execute(_PUT_STACK[session.get_bind().dialect.name], key | ranked.columns | {"updated_at": utc_now()})
    if boards := ranked.boards:
        session.execute(insert(_BOARDS), [key | board for board in boards])


def _stored_boards(session: Session, ranked: Ranked) -> list[dict[str, Any]]:
    columns = [column for column in _BOARDS.columns if column.name not in ("project_id", "stack_key")]
    return [dict(row._mapping) for row in session.execute(select(*columns).where(*_of(_BOARDS, ranked)))]


def _of(table: Table, ranked: Ranked) -> tuple[ColumnElement[bool], ...]:
    return table.c.project_id == ranked.project_id, table.c.stack_key == ranked.stack_key


def _board_name(board: Mapping[str, Any]) -> str:
    return f"{board['routing_mode'] or 'unknown routing'}, {board['semantic_class']}, {board['floor']}"


def _ranking_text(value: Any) -> str:
    """Return a value as text for comparison, with times in one zone."""
    return value.isoformat() if isinstance(value, datetime) else json_text.column_text(value)


# --- `threewalls rebuild-standings`: rank all stacks again from their runs, or report which ones would change.

SAME, DIFFERENT = 0, 3
"""Exit codes. 1 is reserved: it means a regression in every command."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result for one stack. `differs`: the parts that differ. `waits`: not compared: it waits to be ranked."""

    key: Key
    differs: tuple[str, ...] = ()
    waits: bool = False


def rebuild_standings(settings: Settings, *, check: bool) -> int:
    """Rank every stack again and print the result. Return 3 if `check` finds stored standings that differ."""
    engine = make_engine(settings)
    try:
        if not inspect(engine).has_table(str(StandingRow.__tablename__)):
            raise ThreewallsError("The database has no standings table yet. Run `threewalls migrate` first.")
        rebuilt = list(compare_all(engine) if check else rebuild_all(engine))
    finally:
        engine.dispose()
    for line in _report(rebuilt, check=check):
        print(line)
    return DIFFERENT if check and any(stack.differs for stack in rebuilt) else SAME


def compare_all(engine: Engine) -> Iterator[Rebuilt]:
    """Rank each stack with the stored priors and compare; write nothing."""
    with read_session(engine) as session:
        stacks, late = all_stacks(session), set(behind(session))
    for key in stacks:
        with read_session(engine) as session:  # one snapshot per stack, for its runs and standings
            waits = key in late or stack_queue.pending_id(session, *key) is not None
            if waits:
                yield Rebuilt(key, waits=True)
            else:
                yield Rebuilt(key, difference(session, rank(session, *key, learn=False)))


def rebuild_all(engine: Engine) -> Iterator[Rebuilt]:
    """Rank and store each stack; do it again for stacks whose priors changed because of a later stack."""
    with read_session(engine) as session:
        stacks = all_stacks(session)
    yield from [_rebuild(engine, key) for key in stacks]
    while True:
        with read_session(engine) as session:
            stacks = behind(session)
        if not stacks:
            return
        for key in stacks:
            _rebuild(engine, key)


def _rebuild(engine: Engine, key: Key) -> Rebuilt:
    with transaction(engine) as session:
        stack_queue.lock(session, *key)  # a concurrent worker has read the same runs or will rank again
        ranked = rank(session, *key)
        differs = difference(session, ranked)
        keep(session, ranked)
    return Rebuilt(key, differs)


def _report(rebuilt: Iterable[Rebuilt], *, check: bool) -> Iterator[str]:
    stacks = list(rebuilt)
    for stack in stacks:
        for name in stack.differs:
            yield f"stack {stack.key[1][:12]}: {name} {'differs from a rebuild' if check else 'was corrected'}"
    compared = [stack for stack in stacks if not stack.waits]
    different = sum(bool(stack.differs) for stack in compared)
    end = f"{different} differed" if different else "all stored standings match"
    yield f"{plural(len(compared), 'stack')} ranked again: {end}."
    if waiting := len(stacks) - len(compared):
        yield f"{plural(waiting, 'stack')} not compared, because their ranking is pending. Check again later."

"""`threewalls rebuild-standings`: ranks every stack again from its runs, or only tells whether that would change it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlalchemy import Engine, inspect
from sqlmodel import Session

from app.domain.numbers import counted
from app.errors import ThreewallsError
from app.pipeline import stack_work
from app.pipeline.rank import Key, all_stacks, behind, difference, keep, rank
from app.settings import Settings
from app.storage.database import make_engine, read_session, transaction
from app.storage.tables import StandingRow

SAME, DIFFERENT = 0, 3
"""1 is a regression, whatever the command."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """One stack. `differs`: what was kept otherwise. `waits`: a worker is still to rank it, so it was not compared."""

    key: Key
    differs: tuple[str, ...] = ()
    waits: bool = False


def rebuild_standings(settings: Settings, *, check: bool) -> int:
    """Print what was found. Return 3 when `check` finds that what is kept is not what a rebuild makes."""
    engine = make_engine(settings)
    try:
        if not inspect(engine).has_table(str(StandingRow.__tablename__)):
            raise ThreewallsError("The database has no standings yet. Run `threewalls migrate` first.")
        found = list(compare_all(engine) if check else rebuild_all(engine))
    finally:
        engine.dispose()
    for line in _report(found, check=check):
        print(line)
    return DIFFERENT if check and any(one.differs for one in found) else SAME


def compare_all(engine: Engine) -> Iterator[Rebuilt]:
    """Ranks each stack with the priors that are kept, and writes nothing."""
    with read_session(engine) as session:
        stacks, late = all_stacks(session), set(behind(session))
    for key in stacks:
        with read_session(engine) as session:  # one for each, so that its runs and its standings are of one moment
            waits = key in late or stack_work.waiting_for(session, *key) is not None
            yield Rebuilt(key, waits=True) if waits else Rebuilt(key, _differs(session, key))


def rebuild_all(engine: Engine) -> Iterator[Rebuilt]:
    """Ranks and keeps each stack, again where a later one moved the priors of its family."""
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


def _differs(session: Session, key: Key) -> tuple[str, ...]:
    return difference(session, rank(session, *key, learn=False))


def _rebuild(engine: Engine, key: Key) -> Rebuilt:
    with transaction(engine) as session:
        stack_work.lock(session, *key)  # a worker that ranks it meanwhile has read the same runs, or ranks it again
        ranked = rank(session, *key)
        differs = difference(session, ranked)
        keep(session, ranked)
    return Rebuilt(key, differs)


def _report(found: Iterable[Rebuilt], *, check: bool) -> Iterator[str]:
    stacks = list(found)
    for one in stacks:
        for name in one.differs:
            yield f"stack {one.key[1][:12]}: {name} {'is' if check else 'was'} kept otherwise than a rebuild makes it"
    compared = [one for one in stacks if not one.waits]
    different = sum(bool(one.differs) for one in compared)
    end = f"{different} differed" if different else "what was kept is what a rebuild makes"
    yield f"{counted(len(compared), 'stack')} ranked again: {end}."
    if waiting := len(stacks) - len(compared):
        yield f"{counted(waiting, 'stack')} not compared, because a worker is still to rank them. Check again later."

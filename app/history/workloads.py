"""A history across containers: the runs of a stack joined with those of the same workload in other containers."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from sqlmodel import Session, col

from app.domain.contract.fields import CONFIG_FIELDS
from app.domain.contract.values import shown
from app.domain.naming import container_tag, short_job
from app.domain.verdict.comparability import Difference
from app.domain.verdict.history_view import ConfigurationHistory, SegmentChange, StackSegment, letter
from app.domain.verdict.step_time import StepTimeChange
from app.domain.verdict.words import knobs_text, sides_text
from app.history.queries import HistoryOfStack, HistoryStack, Neighbour, get_stacks, read_histories
from app.storage.remembered import Remembered
from app.storage.runs import stored_contract
from app.storage.stacks import StackRun, changed_knobs
from app.storage.tables import RunResultRow, select_any
from app.storage.upgrade_changes import judged_levels
from app.storage.verdicts import current_verdicts

MOST_CONTAINERS, MOST_RUNS = 8, 5_000
"""Maximum other containers, and maximum runs of them, with which a history is joined: the nearest in time."""
MOST_STEPS, MOST_NAMED = 12, 24
"""Maximum configurations whose contracts are read for the changes, and for names."""
_MOST_KNOBS = 2
"""Maximum knobs in the name of a configuration."""


@dataclass(frozen=True, slots=True)
class ContainerStep:
    """A change of container. `position`: the first run. `before`: the previous container; empty for the first.

    `from_ms` and `to_ms`: step times of the judged upgrade from the previous container, of the configuration `letter`,
    with its `decision` (also `unconfirmed`, `in one run`, `already slow`); None without one, or if it is inconclusive
    and a level does not hold. `by_configuration`: the step of each configuration that ran in both, each from its own
    first counted run; the one used last comes last.
    """

    stack_key: str
    container: str
    full_name: str
    position: int
    before: str
    letter: str = ""
    decision: str = ""
    from_ms: float | None = None
    to_ms: float | None = None
    by_configuration: "tuple[ContainerStep, ...]" = ()

    @property
    def delta_pct(self) -> float | None:
        """Return the change of the step time."""
        return 100 * (self.to_ms / self.from_ms - 1) if self.from_ms and self.to_ms else None

    @property
    def is_decided(self) -> bool:
        """Return whether the upgrade was judged slower, faster or unchanged."""
        return self.decision in ("regression", "improvement", "no_change") and self.delta_pct is not None


@dataclass(frozen=True, slots=True)
class ConfigurationStep:
    """A configuration with which a job continued in its container. `run`: its first counted run.

    `before`: the last counted run of that job with another configuration. `knobs`: those that differ. `decision`: of
    the verdict of `run`, if it compared `run` with `before` and decided; else empty. `from_ms` and `to_ms`: step times
    of that verdict, else levels of the segments on both sides, None if unknown or if one does not hold.
    """

    letter: str
    before: StackRun
    run: StackRun
    from_ms: float | None
    to_ms: float | None
    knobs: tuple[Difference, ...]
    decision: str = ""

    @property
    def delta_pct(self) -> float | None:
        """Return the change of the step time."""
        return 100 * (self.to_ms / self.from_ms - 1) if self.from_ms and self.to_ms else None

    @property
    def named_knobs(self) -> tuple[tuple[str, str, str], ...]:
        """Return each knob with its values on both sides."""
        return tuple((knob.field, *sides_text(knob)) for knob in self.knobs)


def configuration_steps(session: Session, history: HistoryOfStack) -> tuple[ConfigurationStep, ...]:
    """Return the newest MOST_STEPS steps, oldest first."""
    runs = history.runs
    counted = sorted((own for own in history.configurations if own.counted), key=lambda own: own.counted[0])
    steps: dict[str, tuple[ConfigurationHistory, ConfigurationHistory, int]] = {}
    for number, own in enumerate(counted):
        first = runs[own.counted[0]]
        earlier = [
            (other.counted[bisect_left(other.counted, own.counted[0]) - 1], other)
            for other in counted[:number]
            for run in (runs[other.counted[0]],)
            if run.job == first.job and run.facts.stack_key == first.facts.stack_key
        ]
        if earlier and own.letter not in {other.letter for other in counted[:number]}:
            position, before = max(earlier, key=lambda pair: pair[0])
            steps[own.letter] = own, before, position
    newest = list(steps.values())[-MOST_STEPS:]
    pairs = [(runs[position].id, runs[own.counted[0]].id) for own, _, position in newest]
    knobs, judged = changed_knobs(session, pairs), _judged(session, pairs)
    return tuple(
        ConfigurationStep(
            letter=own.letter,
            before=runs[position],
            run=runs[own.counted[0]],
            from_ms=change.baseline_ms if change else _level_at(before, position),
            to_ms=change.candidate_ms if change else _level_ms(own.levels[0]) if own.levels else None,
            knobs=knobs[pair],
            decision=change.decision if change else "",
        )
        for (own, before, position), pair in zip(newest, pairs, strict=True)
        for change in (judged.get(pair),)
    )


def _judged(session: Session, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], StepTimeChange]:
    """Return the decided change of each pair whose second run was judged against the first."""
    verdicts = current_verdicts(session, [after for _, after in pairs])
    return {
        (before, after): change
        for before, after in pairs
        if after in verdicts and str(before) in verdicts[after].document.baseline
        for change in (verdicts[after].document.verdict.step_time,)
        if change is not None and change.decision != "inconclusive"
    }


def _level_at(own: ConfigurationHistory, position: int) -> float | None:
    return next((_level_ms(level) for level in own.levels[::-1] if level.first <= position), None)


def _level_ms(level: StackSegment) -> float | None:
    return level.step_time_ms if level.holds else None


def configuration_names(session: Session, history: HistoryOfStack) -> dict[str, str]:
    """Return what distinguishes the newest MOST_NAMED configurations, by letter.

    It is the job if each has its own, else the knob in which they differ from the oldest one, after the job where
    several jobs share the settings; else the dispatcher; else empty. Those alike also name their first run.
    """
    newest = {own.letter: history.runs[own.runs[-1]] for own in history.configurations}
    jobs = [run.job for run in newest.values()]
    short = {job: short_job(job, jobs) for job in jobs}
    if len(newest) > 1 and len(short) == len(newest):
        return {name: short[run.job] for name, run in newest.items()}
    first, *others = sorted(newest, key=lambda name: (len(name), name))
    pairs = {name: (newest[first].id, newest[name].id) for name in others[-MOST_NAMED:]}
    knobs = changed_knobs(session, list(pairs.values()))
    named = {name: knobs_text(knobs[pair], _MOST_KNOBS) for name, pair in pairs.items()}
    of_job = {own.letter: short[newest[own.letter].job] for own in history.configurations if own.job}
    texts = {
        name: ", ".join(filter(None, (of_job.get(name), named.get(name)))) or run.dispatcher or ""
        for name, run in newest.items()
    }
    alike = Counter(texts.values())
    began = {own.letter: history.runs[own.runs[0]].id for own in reversed(history.configurations)}
    return {name: f"{text} since #{began[name]}" if text and alike[text] > 1 else text for name, text in texts.items()}


def across_containers(
    session: Session, own: HistoryOfStack, neighbours: Sequence[Neighbour]
) -> tuple[HistoryOfStack, dict[str, HistoryStack]]:
    """Return the history joined with those of its neighbours, and the joined stacks by key; none if it stands alone.

    Only configurations of neighbours with counted runs are included. A configuration with the same settings as an
    earlier one gets the same letter.
    """
    histories = [own, *_others(session, own, neighbours)]
    if len(histories) == 1:
        return own, {}
    stacks = {history.stack.stack_key: history.stack for history in histories}
    question = (str(session.get_bind().engine.url), own.stack.project_id, *stacks)
    state = own.stack, [(history.runs, history.configurations, history.pins) for history in histories]
    joined = _remembered.find(question, state)
    if joined is None:
        joined = _joined(histories, _letters(session, histories))
        _remembered.keep(question, state, joined)
    return joined, stacks


_remembered = Remembered[HistoryOfStack](16)
"""Joined histories, so that the chart does not join again what the page has joined."""


def _others(session: Session, own: HistoryOfStack, neighbours: Sequence[Neighbour]) -> list[HistoryOfStack]:
    newest = own.runs[-1].ordered_at
    nearest = sorted(neighbours, key=lambda other: abs(other.last_at - newest))[:MOST_CONTAINERS]
    runs = accumulate(neighbour.runs for neighbour in nearest)
    keys = [neighbour.stack_key for neighbour, upto in zip(nearest, runs, strict=True) if upto <= MOST_RUNS]
    stacks = get_stacks(session, keys)
    histories = read_histories(session, [stacks[key] for key in keys if key in stacks])
    return [history for history in histories if any(part.counted for part in history.configurations)]


def _letters(session: Session, histories: Sequence[HistoryOfStack]) -> dict[tuple[str, str], str]:
    """Return the letter of each configuration, by config key and job."""
    counted = [
        (configuration, history.runs[configuration.counted[-1]].id)
        for history in histories
        for configuration in history.configurations
        if configuration.counted
    ]
    knobs = _knobs(session, [run_id for _, run_id in counted])
    letters = {(own.config_key, own.job): own.letter for own in histories[0].configurations}
    by_knobs: dict[tuple[str, ...], str] = {}
    free = len(letters)
    for configuration, run_id in counted:
        name = configuration.config_key, configuration.job
        if name not in letters:
            if (same := by_knobs.get((configuration.job, *knobs[run_id]))) is None:
                same, free = letter(free), free + 1
            letters[name] = same
        by_knobs.setdefault((configuration.job, *knobs[run_id]), letters[name])
    return letters


def _knobs(session: Session, run_ids: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """Return the settings of runs that are not part of the stack key."""
    rows = session.execute(
        select_any(RunResultRow.run_id, RunResultRow.contract).where(col(RunResultRow.run_id).in_(run_ids))
    )
    contracts = {run_id: stored_contract(contract) for run_id, contract in rows}
    return {
        run_id: tuple(
            shown(contract[name].value) if name in contract and contract[name].value is not None else ""
            for name in CONFIG_FIELDS
        )
        for run_id, contract in contracts.items()
    }


def _joined(histories: Sequence[HistoryOfStack], letters: Mapping[tuple[str, str], str]) -> HistoryOfStack:
    own = histories[0]
    drawn = [
        (run.ordered_at, run.id, number, position)
        for number, history in enumerate(histories)
        for configuration in history.configurations
        if number == 0 or configuration.counted
        for position in configuration.runs
        for run in (history.runs[position],)
    ]
    order = [(number, position) for *_, number, position in sorted(drawn)]
    positions = {pair: position for position, pair in enumerate(order)}
    configurations = [
        _moved(
            configuration,
            {position: positions[number, position] for position in configuration.runs},
            letters[configuration.config_key, configuration.job],
            is_last=number == 0 and configuration.is_last,
        )
        for number, history in enumerate(histories)
        for configuration in history.configurations
        if number == 0 or configuration.counted
    ]
    return HistoryOfStack(
        stack=own.stack,
        runs=tuple(histories[number].runs[position] for number, position in order),
        eligibilities=tuple(histories[number].eligibilities[position] for number, position in order),
        configurations=tuple(sorted(configurations, key=lambda configuration: configuration.runs[0])),
        pins=tuple(pin for history in histories for pin in history.pins),
    )


def _moved(
    own: ConfigurationHistory, positions: Mapping[int, int], name: str, *, is_last: bool
) -> ConfigurationHistory:
    """Return the configuration with positions in the joined history."""

    def segment(level: StackSegment) -> StackSegment:
        return replace(level, first=positions[level.first], last=positions[level.last])

    def change(before: SegmentChange) -> SegmentChange:
        return replace(before, run=positions[before.run], before=positions[before.before])

    return replace(
        own,
        letter=name,
        runs=tuple(positions[position] for position in own.runs),
        counted=tuple(positions[position] for position in own.counted),
        levels=tuple(map(segment, own.levels)),
        changes=tuple(map(change, own.changes)),
        is_last=is_last,
    )


def container_steps(
    session: Session,
    joined: HistoryOfStack,
    shown: Sequence[ConfigurationHistory],
    stacks: Mapping[str, HistoryStack],
) -> Iterator[ContainerStep]:
    """Yield where each container begins with one of the shown configurations. `stacks`: the joined ones by key."""
    judged = judged_levels(session, joined.stack.project_id, list(stacks)) if stacks else {}
    of_stack: dict[str, list[ConfigurationHistory]] = {}
    for configuration in shown if stacks else ():
        of_stack.setdefault(joined.runs[configuration.runs[0]].facts.stack_key, []).append(configuration)
    # Not from the first counted run: a band that begins later would show runs in the container before.
    begins = sorted((min(part.runs[0] for part in parts), key) for key, parts in of_stack.items())
    for (_, before), (position, key) in pairwise([(0, ""), *begins]):
        contract = stacks[key].contract
        step = ContainerStep(
            stack_key=key,
            container=container_tag(contract) or "unknown container",
            full_name=str(contract["container"].value or "") if "container" in contract else "",
            position=position,
            before=container_tag(stacks[before].contract) if before else "",
        )
        earlier = {own.letter: own for own in of_stack.get(before, ()) if own.counted}
        shared = [own for own in of_stack[key] if own.counted and own.letter in earlier]
        both = []
        for own in sorted(shared, key=lambda own: own.counted[-1]):
            job = joined.runs[own.counted[0]].facts.job
            decision, from_ms, to_ms = judged.get((before, key, own.config_key, job), ("", None, None))
            levels = earlier[own.letter].levels[-1], own.levels[0]
            if decision == "inconclusive" and not all(level.holds for level in levels):
                from_ms = to_ms = None
            of_job = replace(step, position=own.counted[0], letter=own.letter, decision=decision)
            both.append(replace(of_job, from_ms=from_ms, to_ms=to_ms))
        used = both[-1:] or [step]
        yield replace(used[0], position=position, by_configuration=tuple(both))

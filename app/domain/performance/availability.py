"""Find which dispatchers work in a run's container, from failed imports and active use.

Active use is proven by a log line or inferred from iterations; the evidence says which.
"""

from collections.abc import Mapping

from app.domain.run import (
    Activity,
    DispatcherAvailability,
    LogEvidence,
    ParsedLog,
    Stated,
    events_of_last_process,
)

_MISSING = {"deepep_missing": "deepep", "hybridep_missing": "hybridep", "ncclep_missing": "ncclep"}
MAX_EVIDENCE = 3


def availability(
    log: ParsedLog, contract: Mapping[str, Stated], activities: Mapping[str, Activity]
) -> tuple[DispatcherAvailability, ...]:
    """Return one fact per dispatcher that the log shows; active use overrides an earlier failed import."""
    container = _container(contract)
    facts: dict[str, DispatcherAvailability] = {}
    last = events_of_last_process(log)
    for event in (*(event for event in log.events if event not in last), *last):
        if event.kind in _MISSING:
            name = _MISSING[event.kind]
            before = facts[name].evidence if name in facts else ()
            facts[name] = DispatcherAvailability(
                name, False, container, (*before, LogEvidence(event.file, event.line, event.text))[:MAX_EVIDENCE]
            )
    used = activities.get("dispatcher")
    active = used.active if used is not None else None
    if active is not None and isinstance(active.value, str) and log.n:
        facts[active.value] = DispatcherAvailability(active.value, True, container, _use(log, active))
    return tuple(facts.values())


def _container(contract: Mapping[str, Stated]) -> str | None:
    image = contract["container"].value if "container" in contract else None
    return image if isinstance(image, str) else None


def _use(log: ParsedLog, active: Stated) -> tuple[LogEvidence, ...]:
    """Return the first iteration that ran with the dispatcher."""
    files = log.columns.get("log_file")
    file, line = 0 if files is None else int(files[0]), int(log.line_numbers[0])
    inferred = active.source == "derived"
    return (LogEvidence(file, line, f"inferred: {active.detail}" if inferred else active.detail, inferred),)

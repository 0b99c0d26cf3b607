"""Where a fact of a run comes from, for people: who said it, and where that can be read."""

from dataclasses import dataclass

from app.domain.rules.facts import FACTS, Fact
from app.domain.rules.filling import fact_text
from app.recommendations.advise import Advice

_FAILURES = ("oom", "oom_phase", "oom_ranks", "import_error")
_FIGURES = ("step_s", "tokens_s_gpu", "tflops_gpu", "window", "window_first", "window_last", "fits", "evidence_level")
_ACTIVITY = ("requested_dispatcher", "resolved_dispatcher", "backend_proof", "capture_proof")


@dataclass(frozen=True, slots=True)
class Origin:
    """`said`: a few words; `href`: where it stands, "" where no page shows it."""

    said: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class FactRow:
    """A fact as a page shows it; `follows`: the facts that it was worked out from."""

    name: str
    meaning: str
    value: str
    unit: str
    origin: Origin
    follows: tuple[tuple[str, str], ...] = ()


def fact_row(advice: Advice, name: str) -> FactRow:
    """A known fact with its value and where it comes from."""
    fact, value = FACTS[name], advice.told.facts[name]
    text = "unset" if value is None else fact_text(value)
    inputs = () if name in advice.stated else tuple(fact.inputs)
    follows = tuple((one, origin_of(advice, FACTS[one]).href) for one in inputs if one in FACTS)
    return FactRow(name, fact.meaning, text, fact.unit if value is not None else "", origin_of(advice, fact), follows)


def origin_of(advice: Advice, fact: Fact) -> Origin:
    """Who said a fact of this run."""
    run, page = advice.run, f"/runs/{advice.run.id}"
    stated = run.contract.get(fact.name)
    if stated is not None and fact.name in advice.stated:
        return Origin(stated.detail or stated.source, f"{page}#contract-{fact.name}")
    if (by := advice.stated_by(fact.name)) is not None:
        return Origin(f"stated by {by.author} on {by.at:%Y-%m-%d}", f"{page}/next#stated")
    if fact.name in advice.reading.extra:
        return Origin("stated in the metadata", f"/api/v1{page}")
    if fact.name in advice.stated:
        return _read(advice, fact, page)
    if fact.group == "setting":
        return _threshold(advice, fact)
    return Origin("follows from") if fact.inputs else Origin("follows from the contract", f"{page}#contract")


def _threshold(advice: Advice, fact: Fact) -> Origin:
    if advice.rules.thresholds[fact.name] == fact.default:
        return Origin("our default, no source gives one", "/playbook#thresholds")
    return Origin(f"set by THREEWALLS_{fact.name.upper()}; no source gives one", "/playbook#thresholds")


def _read(advice: Advice, fact: Fact, page: str) -> Origin:
    """Of a fact that no contract field and no metadata state."""
    if fact.name == "compared":
        return Origin("this page is about one run")
    if any(name in advice.reading.arguments for name in fact.argument):
        return Origin("the trainer's arguments in the log", f"{page}#log")
    return _measured(fact.name, page)


def _measured(name: str, page: str) -> Origin:
    if name in _FAILURES:
        return Origin("failures in the log", f"{page}#health")
    if name in _FIGURES:
        return Origin("measured in the steady window", f"{page}#run-top")
    if name in _ACTIVITY:
        return Origin("what was asked for and what ran", f"{page}#run-top")
    if name == "comm_timer_frac":
        return Origin("timers in the log", f"{page}#timers")
    if name == "installed_flex_backends":
        return Origin("runs in this container", "/availability")
    return Origin("read from the run", f"{page}#health")

"""Where a fact of a run comes from, for people: who said it, and where that can be read."""

from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from app.domain.rules.engine import Evaluation, Suggestion
from app.domain.rules.facts import FACTS, Fact
from app.domain.rules.filling import fact_text
from app.recommendations.advise import Advice
from app.recommendations.words import linked

_FAILURES = ("oom", "oom_phase", "oom_ranks", "import_error")
_FIGURES = ("step_s", "tokens_s_gpu", "tflops_gpu", "window", "window_first", "window_last", "fits", "evidence_level")
_CONTRACT = ("unknown_fields", "unknown_names")
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


def fact_row(advice: Advice, name: str, told: Evaluation | None = None) -> FactRow:
    """A known fact with its value and where it comes from. `told`: of the pair, for a rule about two runs."""
    fact, value = FACTS[name], (advice.told if told is None else told).facts[name]
    text = "unset" if value is None else fact_text(value)
    inputs = () if name in advice.stated else tuple(fact.inputs)
    follows = tuple((one, origin_of(advice, FACTS[one]).href) for one in inputs if one in FACTS)
    return FactRow(
        name, fact.meaning, text, fact.unit if value is not None else "", origin_of(advice, fact, told), follows
    )


def origin_of(advice: Advice, fact: Fact, told: Evaluation | None = None) -> Origin:
    """Who said a fact of this run, or of the pair."""
    if fact.group == "compared" and advice.pair is not None and told is advice.pair.told:
        return Origin("the run beside those that it was judged against", advice.pair.compare(advice.run.id))
    if fact.name in advice.stated:
        return _stated(advice, fact)
    if fact.group == "setting":
        return _threshold(advice, fact)
    return Origin("follows from") if fact.inputs else Origin("follows from the contract", f"{_page(advice)}#contract")


def _page(advice: Advice) -> str:
    return f"/runs/{advice.run.id}"


def _stated(advice: Advice, fact: Fact) -> Origin:
    page, field = _page(advice), advice.run.contract.get(fact.name)
    if field is not None:
        return Origin(field.detail or field.source, f"{page}#contract-{fact.name}")
    if (by := advice.stated_by(fact.name)) is not None:
        return Origin(f"stated by {by.author} on {by.at:%Y-%m-%d}", f"{page}/next#stated")
    if fact.name in advice.reading.extra:
        return Origin("stated in the metadata", f"/api/v1{page}")
    return _read(advice, fact, page)


def _threshold(advice: Advice, fact: Fact) -> Origin:
    if advice.rules.thresholds[fact.name] == fact.default:
        return Origin("our default, no source gives one", "/playbook#thresholds")
    return Origin(f"set by THREEWALLS_{fact.name.upper()}; no source gives one", "/playbook#thresholds")


def _read(advice: Advice, fact: Fact, page: str) -> Origin:
    """Of a fact that no contract field and no metadata state."""
    if fact.name == "compared":
        return Origin("this page is about one run", f"{page}/next")
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
    where = "contract" if name in _CONTRACT else "health"
    return Origin("read from the run", f"{page}#{where}")


def linked_why(advice: Advice, one: Suggestion) -> Markup:
    """The reason of a suggestion, its numbers with where they come from."""
    told = advice.told_by(one.rule.id)
    return linked(one.rule.why, told.facts, partial(href_of, advice, told))


def href_of(advice: Advice, told: Evaluation, name: str) -> str:
    """Where a fact can be read; of one that follows from others, where the first of them can."""
    if name not in FACTS:
        return ""
    fact = FACTS[name]
    href = origin_of(advice, fact, told).href
    return href or next((found for one in fact.inputs if one in FACTS and (found := href_of(advice, told, one))), "")

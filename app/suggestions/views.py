"""Suggestions and the sources of facts as pages show them."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from markupsafe import Markup, escape

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import explained
from app.domain.experiments.journey import Continuation
from app.domain.experiments.values import LETTERS, Sizing
from app.domain.numbers import contract_value, gain_change, gpu_hours, plural
from app.domain.rules.change import ChangeDiff, is_set
from app.domain.rules.engine import CheckedRequirement, Evaluation, MissingFact, Suggestion
from app.domain.rules.expression import fact_text, filled, marked
from app.domain.rules.facts import FACTS, Fact
from app.domain.rules.stated import STATEABLE
from app.domain.text import capitalized, some_of
from app.pipeline.suggest import RunSuggestions
from app.storage.experiments import ExperimentItem
from app.storage.readings import StatedFact
from app.storage.setbacks import REGRESSION_RULE, REGRESSION_RULES, RERUN_RULE
from app.storage.suspect_evidence import MeasuredHere
from app.suggestions.commands import StateForm, fact_input
from app.web.forms import ContractInput
from app.web.templating import coded

# --- Missing facts, grouped by source, with an input for each.

SHOWN = 8
"""Number of facts shown; the others are folded."""
GROUPS = (
    ("profile", "From a profile of steady steps"),
    ("contract", "From the launch: contract fields"),
    ("asked", "From the launch: other options"),
    ("stated", "From the user who ran it"),
    ("log", "From the log or an uploaded trace"),
)


@dataclass(frozen=True, slots=True)
class MissingRow:
    """`input`: its form input. Without one, `href` is the page where it can be added, or empty."""

    name: str
    meaning: str
    supply: str
    input: ContractInput | None
    href: str
    unlocks: tuple[tuple[str, str], ...]
    together: int


@dataclass(frozen=True, slots=True)
class MissingGroup:
    title: str
    rows: tuple[MissingRow, ...]


@dataclass(frozen=True, slots=True)
class StatedRow:
    """`counts`: the value of the files if it overrides the statement, else empty."""

    statement: StatedFact
    value: str
    meaning: str
    counts: str


class MissingView:
    """Missing facts of a run. `fact`: the fact to list first."""

    def __init__(self, advice: RunSuggestions, form: StateForm, fact: str = "") -> None:
        self._advice = advice
        self.form = form
        wanted = {fact, *(name.partition(".")[2] for name in form.values)}
        missing = list(advice.evaluation.missing)
        listed = {item.fact.name for item in missing}
        missing += [MissingFact(STATEABLE[name], (), ()) for name in wanted if name in STATEABLE and name not in listed]
        useful = [item for item in missing if item.decides]
        first = [item for item in missing if item.fact.name in wanted]
        shown = {id(item) for item in (*first, *useful[:SHOWN])}
        self.groups = self._grouped(item for item in missing if id(item) in shown)
        self.more = self._grouped(item for item in missing if id(item) not in shown)
        self.more_count = len(missing) - len(shown)

    def _grouped(self, facts: Iterable[MissingFact]) -> list[MissingGroup]:
        """Return groups in the order of their most useful fact."""
        rows: dict[str, list[MissingRow]] = {}
        for item in facts:
            rows.setdefault(item.fact.section, []).append(self._row(item))
        titles = dict(GROUPS)
        return [MissingGroup(titles.get(section, "From elsewhere"), tuple(of)) for section, of in rows.items()]

    def _row(self, item: MissingFact) -> MissingRow:
        rules, fact = self._advice.book.rules, item.fact
        unlocks = (*item.decides, *(rule for rule in item.alone if rule not in item.decides))
        return MissingRow(
            name=fact.name,
            meaning=fact.meaning,
            supply=fact.supply,
            input=fact_input(fact, self.form) if fact.name in STATEABLE else None,
            href=_contract_address(self._advice, fact),
            unlocks=tuple((rule, rules[rule].title) for rule in unlocks),
            together=len(item.together),
        )

    @property
    def stated(self) -> list[StatedRow]:
        """Return stated and withdrawn facts of this run, newest first."""
        rows = []
        for statement in self._advice.statements:
            fact = FACTS.get(statement.name)
            counts = ""
            if (
                not statement.removed
                and statement.name in self._advice.stated
                and self._advice.stated_by(statement.name) is None
            ):
                counts = fact_text(self._advice.stated[statement.name])
            value = "" if statement.removed else fact_text(statement.value)
            rows.append(StatedRow(statement, value, fact.meaning if fact is not None else "", counts))
        return rows

    @property
    def can_take_back(self) -> list[str]:
        """Return facts whose statement is in use."""
        return sorted(
            name for name in {statement.name for statement in self._advice.statements} if self._advice.stated_by(name)
        )


def supply_address(advice: RunSuggestions, fact: Fact) -> str:
    """Return the address to add a fact: the run page for contract fields, else the page of suggestions."""
    if fact.name in STATEABLE:
        return f"/runs/{advice.run.id}/next?fact={fact.name}#a-fact.{fact.name}"
    return _contract_address(advice, fact)


def _contract_address(advice: RunSuggestions, fact: Fact) -> str:
    page = f"/runs/{advice.run.id}"
    if fact.name in advice.run.unknown:
        return f"{page}#a-field.{fact.name}"
    if fact.name in FIELDS:
        return f"{page}?amend={fact.name}#supply"
    return ""


# --- Suggestions as text.

MOST_SHOWN_CHANGES = 4
"""As many as the layout of a pipeline takes: PP, VPP, overlap of its sends, EP."""


def setting_text(suggestion: Suggestion, facts: Mapping[str, object]) -> str:
    """Format what changes: `pp 2, vpp 2, ep 8`; of many fields the first ones, of one number `dispatch_sms 32 → 16`."""
    changes = {name: value for name, value in suggestion.set.items() if not is_set(name, value, facts)}
    if len(changes) == 1 and not suggestion.env:
        ((name, value),) = changes.items()
        before = facts.get(name)
        if isinstance(before, int | float) and not isinstance(before, bool) and not isinstance(value, bool):
            return f"{name} {contract_value(before)} → {contract_value(value)}"
    texts = [f"{name} {contract_value(value)}" for name, value in {**changes, **suggestion.env}.items()]
    return some_of(texts, MOST_SHOWN_CHANGES)


_MARKED = re.compile("\ue000([\\w.]+)\ue001([^\ue000-\ue002]*)\ue002")
_NUMBER = re.compile(r"(?<![\w.-])\d")
_FIGURE = re.compile("(?<![#\\w.:/])\\d(?:[\\d.,]*\\d)?(?:[\u202f ]?%)?(?!\\w)")
_CODE = re.compile(r"`[^`]*`|\{[^{}]*\}")


def numbered(text: str) -> bool:
    """Return whether the text contains a number outside words, code and inserted facts."""
    return bool(_NUMBER.search(_CODE.sub("", text)))


def linked(text: str, values: Mapping[str, object], href_of: Callable[[str], str]) -> Markup:
    """Return the text of a rule with its facts, each number linked to its source."""

    def link(match: re.Match[str]) -> str:
        name, value = match.groups()
        href = href_of(name) if any(c.isdigit() for c in value) else ""
        if not href:
            return value
        # Of a fact that is a sentence, its figure alone is the link.
        whole = f'<a class="fact" href="{escape(href)}">\\g<0></a>'
        return _FIGURE.sub(whole, value, count=1) if " " in value else whole.replace("\\g<0>", value)

    return Markup(_MARKED.sub(link, str(coded(filled(text, values, marked)))))  # noqa: S704  # coded escapes


_NEXT_SENTENCE = re.compile(r"(?<=[.?]) (?=[A-Z]|<a )")


def sentences_within(text: Markup, most_words: int) -> tuple[Markup, Markup]:
    """Return the first sentences that have at most so many words in all, and the others."""
    sentences = _NEXT_SENTENCE.split(str(text))
    counts = accumulate(len(Markup(item).striptags().split()) for item in sentences)  # noqa: S704  parts of markup
    first = sum(count <= most_words for count in counts)
    return Markup(" ".join(sentences[:first])), Markup(" ".join(sentences[first:]))  # noqa: S704


def sentence(title: str) -> str:
    """Return the title with a full stop."""
    return title if title.endswith((".", "?")) else f"{title}."


def measured_text(measurement: MeasuredHere) -> str:
    """Format a local result: `measured here: 15.4 % faster (3 A/Bs on this stack)`, or `..., undecided (...)`."""
    result = measurement.result
    figure = gain_change(result.median_gain_pct).figure + ("" if result.settled else ", undecided")
    return f"measured here: {figure} ({plural(result.n, 'A/B')} {result.where})"


def check_first_text(needs: Iterable[CheckedRequirement], shown_by: int | None) -> str:
    """Return the prerequisites that are not met, or that none is known to be; else empty."""
    needs = tuple(needs)
    unmet = [need.text.rstrip(".") for need in needs if need.state == "unmet"]
    if unmet:
        return f"Not met: {'; '.join(unmet)}"
    is_unchecked = needs and shown_by is None and all(need.state == "unknown" for need in needs)
    return f"{met_count(needs, shown_by)} prerequisites met" if is_unchecked else ""


def run_with_change(advice: RunSuggestions, rule: str) -> int | None:
    """Return the newest run that completed with the change of a rule, in an experiment on this run; None without one.

    It shows that all prerequisites are met, as it differs from this run in nothing else.
    """
    experiment = advice.experiments.get(rule)
    if experiment is None or not experiment.result.candidate:
        return None
    if str(advice.run.id) not in (str(experiment.baseline_run_id), *experiment.result.baseline):
        return None
    return int(experiment.result.candidate[-1])


def met_count(needs: Iterable[CheckedRequirement], shown_by: int | None) -> str:
    """Format how many prerequisites are met, as `2 of 3`; `shown_by`: a run that shows that the unknown ones are."""
    states = [need.state for need in needs]
    return f"{states.count('met') + (states.count('unknown') if shown_by is not None else 0)} of {len(states)}"


@dataclass(frozen=True, slots=True)
class GainView:
    """An expected change of throughput in percent with its range, and what it rests on.

    `is_settled`: all intervals exclude zero. `is_measured`: by A/Bs on the run's stack.
    """

    pct: float
    low: float
    high: float
    evidence: str
    is_settled: bool
    is_measured: bool = False


@dataclass(frozen=True, slots=True)
class Revert:
    """The way back to the setting before a regression, without an A/B.

    `text`: what to do and its cost; `plan`: label of the A/B, with its cost.
    """

    text: str
    plan: str


@dataclass(frozen=True, slots=True)
class CopiedFlags:
    """The flags of a change for the trainer of the run. `copied`: what to set, else what to remove."""

    paste: str
    remove: tuple[str, ...]

    @property
    def copied(self) -> str:
        return self.paste or " ".join(self.remove)

    @property
    def label(self) -> str:
        return f"Copy {plural(1 if self.copied.count('--') < 2 else 2, 'flag', number=False)}"

    @property
    def sentence(self) -> str:
        """Return what to do: `Set `--a`` or `Remove `--b``, or both."""
        parts = [f"set `{self.paste}`"] if self.paste else []
        parts += [f"remove {', '.join(f'`{flag}`' for flag in self.remove)}"] if self.remove else []
        text = " and ".join(parts)
        return text[0].upper() + text[1:]


def copied_flags(change: ChangeDiff) -> CopiedFlags | None:
    """Return the flags of a change; None if it has none that can be copied, or one with a placeholder."""
    written = [item for item in (change.megatron_lm, change.bridge) if (item.paste or item.remove) and not item.fill]
    if not written:
        return None
    best = min(written, key=lambda item: item.against not in ("command", "arguments"))
    return CopiedFlags(best.paste, best.remove)


def revert_view(suggestion: Suggestion, change: ChangeDiff, sizing: Sizing | None, *, purpose: str) -> Revert | None:
    """Return how to undo the likely cause of a regression; None for other suggestions, or without flags."""
    flags = copied_flags(change)
    if suggestion.place.tier != "regression" or sizing is None or flags is None:
        return None
    each, total = "", ""
    if sizing.gpu_hours is not None:
        each = f", about {gpu_hours(sizing.gpu_hours / (2 * sizing.runs_each))} GPU-hours"
        total = f", {gpu_hours(sizing.gpu_hours)} GPU-hours"
    run = "next CI run" if purpose == "ci" else "next run"
    return Revert(
        f"{flags.sentence} in the {run}; its verdict confirms it: 1 run{each}.",
        f"Plan A/B ({2 * sizing.runs_each} runs{total})",
    )


def rerun_address(advice: RunSuggestions, rule: str) -> str:
    """Return where to rerun the job if a rerun comes before what this rule suggests; else empty."""
    asked = rule == RERUN_RULE or (rule == REGRESSION_RULE and advice.evaluation.facts.get("regression_rerun") is True)
    return f"/runs/{advice.run.id}?tab=why#rerun" if asked else ""


def gain_view(suggestion: Suggestion) -> GainView | None:
    """Return the gain by own or published results, else by the planner; None without a figure, and for a blocker.

    A launch that cannot run has no speed to compare with.
    """
    if suggestion.kind == "blocker":
        return None
    expected, forecast = suggestion.place.expected, suggestion.forecast
    if expected is not None:
        own, is_of_run = expected.statement.own, expected.statement.is_of_run
        evidence = [expected.statement.name or "published" if own is None else f"{own.count} {own.where}"]
        if own is not None and suggestion.place.tier == "regression":
            evidence += of_run_texts(suggestion)
        # A settled A/B of the run's own stack needs no others.
        if is_of_run or (own is not None and own.same_contract and not expected.is_settled):
            evidence += [
                f"{gain_change(other.median_gain_pct).figure} {other.where}{'' if other.settled else ', undecided'}"
                for statement in suggestion.evidence.statements
                if (other := statement.own) is not None and not other.same_contract
            ][:1]
        is_measured = own is not None and own.same_contract
        return GainView(
            expected.pct, expected.low, expected.high, "; ".join(evidence), expected.is_settled, is_measured
        )
    if forecast is None or forecast.gain_pct is None:
        return None
    low, high = forecast.gain_range_pct or (forecast.gain_pct, forecast.gain_pct)
    return GainView(forecast.gain_pct, low, high, "planner", not low <= 0 <= high)


def of_run_texts(suggestion: Suggestion) -> list[str]:
    """Return what comparisons of the run itself show: `undoes the slowdown of this run: 11.2 % faster`."""
    return [
        f"{statement.name}: {gain_change(statement.pct).figure}"
        for statement in suggestion.evidence.statements
        if statement.is_of_run and statement.pct is not None
    ]


def elsewhere_text(suggestion: Suggestion, gpu: object) -> str:
    """Return what is measured on other kinds of GPU if nothing is for this one; empty without such a result."""
    own = next((item.own for item in suggestion.evidence.statements if item.own is not None and item.own.on_gpu), None)
    if own is None or suggestion.place.expected is not None:
        return ""
    change = gain_change(own.median_gain_pct, own.low_pct, own.high_pct).text
    return f"Effect on {gpu} unknown; {change} {own.where} ({own.count})"


_DECIDED = {"accepted": "accepted this change", "rejected": "rejected this change", "done": "measured this change"}


def experiment_text(experiment: ExperimentItem) -> str:
    """Format what an experiment says about a suggestion: `Experiment #1 accepted this change: 3.9 % faster`."""
    gain = experiment.result.gain if experiment.state in _DECIDED else None
    result = "" if gain is None else f": {gain_change(gain.pct).figure}"
    state = _DECIDED.get(experiment.state, "is measuring this change")
    if experiment.state == "accepted" and experiment.result.evidence_level != "validated":
        state = experiment.state_text
    return f"Experiment #{experiment.id} {state}{result}"


def is_accepted(experiment: ExperimentItem | None) -> bool:
    return experiment is not None and experiment.state == "accepted"


_RUN_LINK = Markup('<a href="/runs/{0}/next">#{0}</a>')
_DECIDE_LINK = Markup('<a href="/experiments/{0}#decide">#{0}</a>')
_OPEN_LINK = Markup('<a href="/experiments/{0}">#{0}</a>')


def journey_leads(continued: Continuation, rule: str) -> bool:
    """Return whether the journey comes before a suggestion of the run.

    Experiments from this run do. A journey that went on in another run does not come before a regression of this one.
    """
    if rule in REGRESSION_RULES and continued.run_id is not None:
        return bool(continued.decide)
    return continued.leads


def continued_text(continued: Continuation, unfinished: Sequence[ExperimentItem] = ()) -> Markup:
    """Return what comes before any next step: `Continued in #193; decide experiment #7; experiment #8 planned.`, or
    `Run 2 more of A and 2 of B for experiment #2.` `unfinished`: the experiments that are named.
    """
    parts = []
    if continued.run_id is not None:
        parts.append(Markup("continued in {}").format(_RUN_LINK.format(continued.run_id)))
    if continued.decide:
        parts.append(Markup("decide {}").format(_experiments(continued.decide, _DECIDE_LINK)))
    if continued.under_way and not parts:
        named = _experiments(continued.under_way, _OPEN_LINK)
        runs = _to_run(unfinished)
        parts.append(Markup("{} {}").format(runs, named) if runs else Markup("continue {} first").format(named))
    else:
        groups = (("waiting", continued.waiting), ("planned", continued.planned))
        parts += [Markup("{} {}").format(_experiments(group, _OPEN_LINK), word) for word, group in groups if group]
    return Markup("{}.").format(capitalized(Markup("; ").join(parts)))


def _to_run(unfinished: Sequence[ExperimentItem]) -> str:
    """Return what the only experiment needs, before its name; empty for several."""
    if len(unfinished) != 1:
        return ""
    (experiment,) = unfinished
    if experiment.state == "planned":
        return "start"
    missing = [(letter, experiment.runs_each - experiment.counted[side]) for side, letter in LETTERS.items()]
    needed = [f"{n} {'more ' if place == 0 else ''}of {letter}" for place, (letter, n) in enumerate(missing) if n > 0]
    return f"run {' and '.join(needed)} for" if needed else ""


def _experiments(numbers: Sequence[int], link: Markup) -> Markup:
    named = Markup(", ").join(link.format(number) for number in numbers[:MOST_NAMED])
    return Markup("{} {}").format(plural(len(numbers), "experiment", number=False), named)


MOST_NAMED = 3
"""Experiments of a kind that a lead names."""
_FAILURES = ("oom", "oom_phase", "oom_ranks", "import_error")
_FIGURES = ("step_s", "tokens_s_gpu", "tflops_gpu", "window", "window_first", "window_last", "fits", "evidence_level")
_CONTRACT = ("unknown_fields", "unknown_names")
_OTHER_RUNS = ("fitted_run", "worked_run", "faster_run", "earlier_profile_run")
"""Facts that are the number of another run."""
_ACTIVITY = ("requested_dispatcher", "resolved_dispatcher", "backend_proof", "capture_proof")


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a fact in a few words. `href`: its page, or empty."""

    text: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class FactRow:
    """A fact as a page shows it. `follows`: the facts it is derived from."""

    name: str
    meaning: str
    value: str
    unit: str
    origin: Origin
    follows: tuple[tuple[str, str], ...] = ()


def fact_row(advice: RunSuggestions, name: str, evaluation: Evaluation | None = None) -> FactRow:
    """Return a known fact with its value and source. `evaluation`: that of the pair, for a rule about two runs."""
    fact, value = FACTS[name], (advice.evaluation if evaluation is None else evaluation).facts[name]
    text = "unset" if value is None else fact_text(value)
    inputs = () if name in advice.stated else tuple(fact.inputs)
    follows = tuple((base, origin_of(advice, FACTS[base]).href) for base in inputs if base in FACTS)
    return FactRow(
        name, fact.meaning, text, fact.unit if value is not None else "", origin_of(advice, fact, evaluation), follows
    )


def origin_of(advice: RunSuggestions, fact: Fact, evaluation: Evaluation | None = None) -> Origin:
    """Return the source of a fact of this run, or of the pair."""
    if fact.section == "compared" and advice.pair is not None and evaluation is advice.pair.evaluation:
        return Origin("comparison with the baseline runs", advice.pair.compare(advice.run.id))
    if fact.name in _OTHER_RUNS:
        return Origin("another run of this project", f"/runs/{advice.evaluation.facts[fact.name]}")
    if fact.name in advice.profile.profile_of:
        return _profiled(advice, fact)
    if fact.name in advice.stated:
        return _stated(advice, fact)
    if fact.section == "setting":
        return _threshold(advice, fact)
    return Origin("derived from") if fact.inputs else Origin("derived from the contract", f"{_page(advice)}#contract")


CONTRADICTION = 0.02
"""A stated value is shown next to the measured one if they differ by more than this. Our choice."""


def _profiled(advice: RunSuggestions, fact: Fact) -> Origin:
    profile, value = advice.profile.profile_of[fact.name], advice.profile.values[fact.name]
    by = advice.reading.stated.get(fact.name, advice.reading.extra.get(fact.name))
    differs = isinstance(by, int | float) and isinstance(value, float) and abs(by - value) > CONTRADICTION
    contradiction = f"; contradicts the stated {fact_text(by)}" if differs else ""
    title, measured = advice.profile.titles[profile], advice.profile.run_id
    whose = "" if measured == advice.run.id else f" of run #{measured}, which has the same configuration"
    return Origin(f"measured by {title}{whose}{contradiction}", f"/runs/{measured}/profiles/{profile}")


@dataclass(frozen=True, slots=True)
class RestsOn:
    """The profile that a suggestion rests on, and the numbers: `exposed_comm_frac 0.162`."""

    profile: str
    href: str
    numbers: str


def rests_on(advice: RunSuggestions, names: Iterable[str]) -> tuple[RestsOn, ...]:
    """Return the profiles that measured the facts of a condition, or the facts they derive from."""
    measured = advice.profile.profile_of
    bases = dict.fromkeys(base for name in names if name in FACTS for base in (name, *FACTS[name].inputs))
    numbers: dict[int, list[str]] = {}
    for name in bases:
        if name in measured:
            numbers.setdefault(measured[name], []).append(f"{name} {fact_text(advice.profile.values[name])}")
    return tuple(
        RestsOn(advice.profile.titles[profile], f"/runs/{advice.profile.run_id}/profiles/{profile}", ", ".join(texts))
        for profile, texts in numbers.items()
    )


def _page(advice: RunSuggestions) -> str:
    return f"/runs/{advice.run.id}"


def _stated(advice: RunSuggestions, fact: Fact) -> Origin:
    page, field = _page(advice), advice.run.contract.get(fact.name)
    if field is not None:
        return Origin(explained(field) or field.source, f"{page}#contract-{fact.name}")
    if (by := advice.stated_by(fact.name)) is not None:
        return Origin(f"stated by {by.author} on {by.at:%Y-%m-%d}", f"{page}/next#stated")
    if fact.name in advice.reading.extra:
        return Origin("stated in the metadata", f"/api/v1{page}")
    return _read(advice, fact, page)


def _threshold(advice: RunSuggestions, fact: Fact) -> Origin:
    if advice.rules.thresholds[fact.name] == fact.default:
        return Origin("our default; no published value", "/playbook#thresholds")
    return Origin(f"set by THREEWALLS_{fact.name.upper()}; no published value", "/playbook#thresholds")


def _read(advice: RunSuggestions, fact: Fact, page: str) -> Origin:
    """Return the source of a fact that neither contract nor metadata state."""
    if fact.name == "compared":
        return Origin("this page shows one run", f"{page}/next")
    if any(name in advice.reading.arguments for name in fact.argument):
        return Origin("trainer arguments in the log", f"{page}#log")
    return _measured(fact.name, page)


def _measured(name: str, page: str) -> Origin:
    if name in _FAILURES:
        return Origin("failures in the log", f"{page}#health")
    if name in _FIGURES:
        return Origin("measured in the steady window", f"{page}#run-top")
    if name in _ACTIVITY:
        return Origin("requested and active settings", f"{page}#run-top")
    if name == "comm_timer_frac":
        return Origin("timers in the log", f"{page}#timers")
    if name == "installed_flex_backends":
        return Origin("runs in this container", "/availability")
    where = "contract" if name in _CONTRACT else "health"
    return Origin("read from the run", f"{page}#{where}")


def linked_why(advice: RunSuggestions, suggestion: Suggestion) -> Markup:
    """Return the reason of a suggestion, its numbers linked to their sources."""
    if suggestion.assumed:
        return coded(suggestion.why)
    evaluation = advice.evaluation_of(suggestion.rule.id)
    return linked(suggestion.rule.why, evaluation.facts, partial(href_of, advice, evaluation))


def href_of(advice: RunSuggestions, evaluation: Evaluation, name: str) -> str:
    """Return the page of a fact; for a derived fact, that of its first input with one."""
    if name not in FACTS:
        return ""
    fact = FACTS[name]
    href = origin_of(advice, fact, evaluation).href
    return href or next(
        (address for base in fact.inputs if base in FACTS and (address := href_of(advice, evaluation, base))), ""
    )

"""The page of one suggestion: a rule evaluated for one run, with its change, evidence and sources."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from markupsafe import Markup

from app.domain.contract.fields import FIELDS
from app.domain.experiments.journey import Continuation
from app.domain.numbers import THIN, axis_limit_pct, contract_value, gain_change, grouped, plural
from app.domain.planning.hardware import in_gib
from app.domain.rules.change import ChangeDiff, FrameworkChange, change_of, without_context
from app.domain.rules.engine import CheckedRequirement, Suggestion, base_facts
from app.domain.rules.evidence import Statement
from app.domain.rules.expression import fact_text, false_part, with_names
from app.domain.rules.facts import FACTS
from app.domain.rules.rule import PublishedResult, Recipe, Rule, Source
from app.domain.rules.stated import Contradiction, contradictions_of, overruling
from app.errors import NotFound
from app.pipeline.suggest import PairSuggestions, RunSuggestions, place_text
from app.storage.experiments import ExperimentItem
from app.storage.suspect_evidence import MeasuredHere
from app.suggestions.views import (
    CopiedFlags,
    FactRow,
    GainView,
    RestsOn,
    Revert,
    continued_text,
    copied_flags,
    elsewhere_text,
    experiment_text,
    fact_row,
    gain_view,
    href_of,
    is_accepted,
    journey_leads,
    linked,
    met_count,
    numbered,
    rerun_address,
    rests_on,
    revert_view,
    run_with_change,
    sentences_within,
    setting_text,
    supply_address,
)
from app.web.templating import coded

MOST_LEAD_WORDS = 16
MOST_CONDITION_WORDS = 7
_DIFF_LINES = 200
_AGAINST = {
    "command": "Compared with the run's own command from its metadata.",
    "arguments": "Compared with the arguments in its log; the command itself was not uploaded.",
    "contract": "Compared with the contract; no command or arguments of this trainer are known.",
    "nothing": "The current values are unknown: no command or arguments of this trainer were uploaded.",
}
_WHERE = {
    "command": "/api/v1/runs/{}",
    "arguments": "/runs/{}#log",
    "contract": "/runs/{}#contract",
    "nothing": "/runs/{}#contract",
}


@dataclass(frozen=True, slots=True)
class Lacking:
    """An unknown fact."""

    name: str
    meaning: str
    supply: str
    href: str


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A published result. `older`: differences here that lower its rank."""

    strength: str
    text: str
    setting: str
    source: str
    href: str
    date: str
    older: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FrameworkRow:
    """The change for one trainer. `against` names what the diff compares with, `href` where to read it."""

    name: str
    change: FrameworkChange
    against: str
    href: str


class StepPage:
    """Data of the page. Raises NotFound for an unknown rule."""

    def __init__(
        self, advice: RunSuggestions, rule: str, continued: Continuation, unfinished: Sequence[ExperimentItem] = ()
    ) -> None:
        if rule not in advice.book.rules:
            raise NotFound(f"Rule {rule[:60]!r} does not exist. It may have been renamed. Check the URL.")
        self._advice = advice
        self.continued = continued
        self._unfinished = unfinished
        self.run = advice.run
        self.rule: Rule = advice.book.rules[rule]
        self._evaluation = advice.evaluation_of(rule)
        self.suggestion: Suggestion | None = self._evaluation.find(rule)
        conditional = (item for item in self._evaluation.conditional if item.rule.id == rule)
        self._offered: Suggestion | None = self.suggestion or next(conditional, None)
        self.change: ChangeDiff | None = None if self._offered is None else self._change(self._offered)

    def _change(self, suggestion: Suggestion) -> ChangeDiff:
        advice = self._advice
        return change_of(suggestion, self._evaluation.facts, advice.launch, advice.reading.arguments)

    @property
    def experiment(self) -> ExperimentItem | None:
        """Return the experiment on the run's stack that makes this change; None without one."""
        return self._advice.experiments.get(self.rule.id)

    @property
    def is_accepted(self) -> bool:
        return is_accepted(self.experiment)

    @property
    def effect_title(self) -> str:
        """Return the title above the effect: whether it is measured on this stack."""
        if self.kind == "blocker":
            return "Without this change"
        return "Measured effect" if self.gain is not None and self.gain.is_measured else "Expected effect"

    experiment_text = staticmethod(experiment_text)

    @property
    def state(self) -> str:
        """Return fires, asks (facts are missing) or silent."""
        if self.suggestion is not None:
            return "fires"
        return "asks" if any(asking.rule.id == self.rule.id for asking in self._advice.evaluation.asks) else "silent"

    @property
    def silent_because(self) -> str:
        """Return what in its condition is false, with the value of a single fact: `earlier_wall` is communication."""
        part = false_part(self.rule.when, self._evaluation.facts)
        if len(part.names) != 1:
            return f"`{part.source}` is false" if len(part.source.split()) <= MOST_CONDITION_WORDS else ""
        (name,) = part.names
        value = fact_text(self._evaluation.facts.get(name)) or "empty"
        return f"`{name}` is {value}" if len(value.split()) <= MOST_CONDITION_WORDS else f"`{part.source}` is false"

    @property
    def applying(self) -> Suggestion | None:
        """Return the first suggestion of the same phase for this run, which is offered where the rule is silent."""
        to_do = (*self._advice.evaluation.blockers, *self._advice.evaluation.suggestions)
        return next((item for item in to_do if item.rule.phase == self.rule.phase), None)

    @property
    def why(self) -> Markup:
        """Return the reason with the facts of this run, each number linked to its source."""
        if self.suggestion is not None and self.suggestion.assumed:
            return coded(self.suggestion.why)
        return linked(self.rule.why, self._evaluation.facts, partial(href_of, self._advice, self._evaluation))

    @property
    def lead(self) -> tuple[Markup, Markup]:
        """Return the lead of the page and the rest of the reason; the settings lead if its first sentence is long.

        The experiment that accepted the change leads if there is one, and where its journey continued; else why it is
        deferred, or the A/Bs that found it slower.
        """
        accepted = self.experiment if self.is_accepted else None
        if accepted is not None:
            lead = Markup('<a href="/experiments/{}">{}</a>.').format(accepted.id, experiment_text(accepted))
            if (continued := replace(self.continued, waiting=(), planned=())).leads:
                lead += Markup(" {}").format(continued_text(continued))
            return lead, self.why
        if self.suggestion is not None and self.suggestion.withheld:
            deferred = Markup("Deferred. {}").format(coded(self.suggestion.withheld))
            first, rest = sentences_within(deferred, MOST_LEAD_WORDS)
            return first, Markup(" ").join(part for part in (rest, self.why) if part)
        if self.journey_leads:
            return continued_text(self.continued, self._unfinished), self.why
        if self.slower_here is not None:
            slower = gain_change(self.slower_here.result.median_gain_pct).figure
            return Markup("Already measured on this stack: {}, {}.").format(slower, _where(self.slower_here)), self.why
        first, rest = sentences_within(self.why, MOST_LEAD_WORDS)
        if first or self.suggestion is None:
            return first or rest, Markup() if not first else rest
        setting = setting_text(self.suggestion, self._evaluation.facts)
        return (Markup("Set {}.").format(setting), rest) if setting else (rest, Markup())

    @property
    def journey_leads(self) -> bool:
        return journey_leads(self.continued, self.rule.id)

    @property
    def slower_here(self) -> MeasuredHere | None:
        """Return the A/Bs on the run's stack that found the change slower, also in reverse; None if none decided so."""
        if self.suggestion is None:
            return None
        own = (item for item in self.measured if item.result.same_contract)
        return next((item for item in own if item.result.high_pct < 0), None)

    @property
    def flags(self) -> CopiedFlags | None:
        return None if self.change is None else copied_flags(self.change)

    @property
    def change_text(self) -> str:
        """Return the change, with the facts of this run if the rule fires."""
        return with_names(self.rule.change.text) if self.suggestion is None else self.suggestion.change_text

    @property
    def place(self) -> str:
        """Return the reason for its rank."""
        return "" if self.suggestion is None else place_text(self.suggestion, self._advice.sizing(self.suggestion))

    @property
    def gain(self) -> GainView | None:
        """Return the gain, also where only a profile decides whether the rule fires."""
        return None if self._offered is None else gain_view(self._offered)

    @property
    def elsewhere(self) -> str:
        """Return the effect on other kinds of GPU if that on this one is unknown; empty without one."""
        return "" if self._offered is None else elsewhere_text(self._offered, self._evaluation.facts.get("gpu"))

    @property
    def revert(self) -> Revert | None:
        """Return how to undo the likely cause of a regression without an A/B; None for other suggestions."""
        if self.suggestion is None or self.change is None:
            return None
        return revert_view(self.suggestion, self.change, self._advice.sizing(self.suggestion), purpose=self.run.purpose)

    @property
    def limit_pct(self) -> float:
        """Return the end of the axis of the expected gain, a multiple of 5 %."""
        return axis_limit_pct([] if self.gain is None else [(self.gain.low, self.gain.high)])

    @property
    def shown_by(self) -> int | None:
        """Return the run that shows that the prerequisites are met; None without one."""
        return run_with_change(self._advice, self.rule.id)

    @property
    def needs_text(self) -> str:
        """Format how many prerequisites are met and conflicts present."""
        if self.suggestion is None:
            return ""
        present = [conflict.state for conflict in self.suggestion.conflicts].count("met")
        needs = [f"{met_count(self.suggestion.needs, self.shown_by)} met"] if self.suggestion.needs else []
        return ", ".join([*needs, plural(present, "conflict")] if self.suggestion.conflicts else needs)

    @property
    def unmet(self) -> list[CheckedRequirement]:
        """Return the prerequisites that are not known to be met, which users see before they make the change."""
        needs = () if self.suggestion is None else self.suggestion.needs
        return [need for need in needs if need.state != "met" and not (need.state == "unknown" and self.shown_by)]

    @property
    def rerun(self) -> str:
        """Return where to rerun the job if a rerun comes before the change; else empty."""
        return rerun_address(self._advice, self.rule.id)

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        return () if self.suggestion is None else self.suggestion.recipes

    def numbered(self, text: str) -> bool:
        return numbered(text)

    @property
    def kind(self) -> str:
        return self.rule.kind if self.suggestion is None else self.suggestion.kind

    @property
    def pair(self) -> PairSuggestions | None:
        """Return the baseline runs if the rule compares runs and fires."""
        pair = self._advice.pair
        return pair if pair is not None and self._evaluation is pair.evaluation else None

    @property
    def compare(self) -> str:
        """Return the URL that compares a slower run with its baseline; empty for other suggestions."""
        pair, suggestion = self._advice.pair, self.suggestion
        is_slower = suggestion is not None and suggestion.place.tier == "regression"
        return pair.compare(self.run.id) if is_slower and pair is not None and pair.of_baseline else ""

    @property
    def facts(self) -> list[FactRow]:
        """Return the known facts in the condition, even if the rule does not fire."""
        evaluation = self._evaluation
        return [fact_row(self._advice, name, evaluation) for name in self.rule.when.names if name in evaluation.facts]

    @property
    def title(self) -> str:
        return self.rule.title if self.suggestion is None else self.suggestion.title

    @property
    def rests_on(self) -> tuple[RestsOn, ...]:
        return () if self.suggestion is None else rests_on(self._advice, self.rule.when.names)

    @property
    def waiting_for_profile(self) -> tuple[tuple[str, str], ...]:
        """Return the rules that a profile would decide, as rule and title; on the step that asks for one."""
        if self.suggestion is None or self.rule.phase != "profile" or self.rule.hints.blocks != "retune":
            return ()
        evaluation = self._evaluation
        asking = [asked.rule for asked in evaluation.asks if _needs_profile(asked.missing)]
        rules = [*(suggestion.rule for suggestion in evaluation.conditional), *asking]
        return tuple(dict.fromkeys((rule.id, rule.title) for rule in rules if rule.id != self.rule.id))

    @property
    def lacking(self) -> list[Lacking]:
        asking = next((asking for asking in self._advice.evaluation.asks if asking.rule.id == self.rule.id), None)
        names = () if asking is None else asking.missing
        return [self._lacking(name) for name in names if name in FACTS]

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the unknown contract fields, for the rule that asks for them."""
        return self.run.unknown if self.suggestion is not None and "{unknown_names}" in self.rule.why else ()

    def memory_of(self, requirement: CheckedRequirement) -> str:
        """Return the peak memory of the run where a prerequisite depends on it: `69.8 of 80 GiB`; else empty."""
        facts = self._advice.evaluation.facts
        peak, size = facts.get("mem_alloc_peak_gb"), facts.get("hbm_gb")
        if "headroom_frac" not in requirement.condition or not (isinstance(peak, float) and isinstance(size, float)):
            return ""
        return f"{grouped(in_gib(peak), 1)} of {grouped(in_gib(size))}{THIN}GiB"

    def lacks(self, requirement: CheckedRequirement) -> list[Lacking]:
        """Return the missing facts of a prerequisite."""
        return [
            self._lacking(name)
            for name in base_facts(requirement.missing, self._advice.evaluation.facts)
            if name in FACTS
        ]

    def _lacking(self, name: str) -> Lacking:
        fact = FACTS[name]
        return Lacking(name, fact.meaning, fact.supply, supply_address(self._advice, fact))

    @property
    def frameworks(self) -> list[FrameworkRow]:
        """Return the change for Megatron-LM and Megatron-Bridge, if it has flags for them."""
        if self.change is None:
            return []
        rows = (("Megatron-LM", self.change.megatron_lm), ("Megatron-Bridge", self.change.bridge))
        return [
            FrameworkRow(
                name,
                change if len(change.lines) <= _DIFF_LINES else without_context(change),
                _AGAINST[change.against],
                _WHERE[change.against].format(self.run.id),
            )
            for name, change in rows
            if any(line.sign != " " for line in change.lines)
        ]

    @property
    def open(self) -> list[Lacking]:
        """Return the unknown facts that new values depend on."""
        return (
            [] if self.suggestion is None else [self._lacking(name) for name in self.suggestion.open if name in FACTS]
        )

    @property
    def measured(self) -> tuple[MeasuredHere, ...]:
        return self._advice.measured(self.rule.id)

    @property
    def older_here(self) -> tuple[str, ...]:
        """Return what changed since the local measurements."""
        if self.suggestion is None:
            return ()
        return tuple(
            text
            for statement in self.suggestion.evidence.statements
            if statement.own is not None
            for text in statement.expired
        )

    @property
    def own_runs(self) -> list[Statement]:
        """Return what runs of this project show without a matched A/B: a verdict, or a faster run."""
        statements = () if self.suggestion is None else self.suggestion.evidence.statements
        return [statement for statement in statements if statement.is_of_run]

    @property
    def published(self) -> list[PublishedRow]:
        if self.suggestion is None:
            return [self._published("published", evidence, ()) for evidence in self.rule.effect.evidence]
        statements = self.suggestion.evidence.statements
        return [
            self._published(statement.strength, statement, statement.expired)
            for statement in statements
            if statement.own is None and not statement.is_of_run
        ]

    def _published(self, strength: str, evidence: Statement | PublishedResult, older: tuple[str, ...]) -> PublishedRow:
        document = self._advice.book.sources.get(evidence.source)
        title, href = (document.title, document.url or "") if document is not None else (evidence.source, "")
        date = evidence.date or (document.date if document is not None else "")
        return PublishedRow(strength, evidence.text, evidence.setting, title, href, date, older)

    @property
    def hold(self) -> list[tuple[str, str]]:
        """Return the fields to hold fixed with their values: stack fields and those of the rule, known ones only."""
        changed = set() if self.change is None else {field.name for field in self.change.fields}
        stack = [name for name, field in FIELDS.items() if field.role == "stack"]
        names = dict.fromkeys([*self.rule.hints.hold, *stack])
        contract = self.run.contract
        return [
            (name, contract_value(contract[name].value))
            for name in names
            if name in contract and name not in changed and contract[name].value is not None
        ]

    @property
    def sources(self) -> list[Source]:
        return [self._advice.book.sources[key] for key in self.rule.sources]

    def source_titles(self, keys: tuple[str, ...]) -> str:
        sources = self._advice.book.sources
        return ", ".join(sources[key].title if key in sources else key for key in keys)

    @property
    def contradictions(self) -> list[tuple[Contradiction, str]]:
        """Return contradictions between the sources of the rule, each with the ruling."""
        own = [contradiction.result for contradiction in self.measured if contradiction.result.same_contract]
        sources = self._advice.book.sources
        return [
            (contradiction, overruling(contradiction, sources, own).because)
            for contradiction in contradictions_of(self.rule.id)
        ]


def _where(measured: MeasuredHere) -> Markup:
    """Link the newest experiment that measured it, else the newest run."""
    if measured.experiments:
        number = max(measured.experiments)
        return Markup('<a href="/experiments/{0}">experiment #{0}</a>').format(number)
    return Markup('<a href="/runs/{0}">run #{0}</a>').format(max(measured.runs))


def _needs_profile(missing: Iterable[str]) -> bool:
    return any(name in FACTS and FACTS[name].section == "profile" for name in missing)

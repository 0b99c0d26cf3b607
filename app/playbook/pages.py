"""Pages of the playbook: HTTP in, template out."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from sqlmodel import Session, col
from starlette.responses import HTMLResponse

from app.domain.access.principal import Action
from app.domain.contract.fields import FIELDS
from app.domain.contract.values import shown
from app.domain.numbers import plural, signed
from app.domain.rules.evidence import OwnResult, rule_evidence
from app.domain.rules.expression import Expression, filled, is_filled, with_names
from app.domain.rules.facts import FACTS, SETTINGS, Fact
from app.domain.rules.flags import Spelling, written
from app.domain.rules.rule import CONFIDENCES, KINDS, PHASES, WALLS, Rule, RuleBook, Setting, Source
from app.domain.rules.stated import Contradiction, Overruling, contradictions_of, overruling
from app.errors import NotFound
from app.storage.database import ListPage
from app.storage.journeys import runs_not_to_tune
from app.storage.rules import (
    NOTHING,
    FiredIn,
    RuleResults,
    RulesInForce,
    degrees_of,
    fired_counts,
    kinds_of,
    last_fired,
    places_of,
    planned,
    project_id_of,
    results_of_rule,
    rule_results,
    waiting,
)
from app.storage.stacks import names_of_stacks
from app.storage.suspect_evidence import MeasuredGain, MeasuredHere, memory_changes
from app.storage.tables import ProjectRow, select_any
from app.web.access_rule import requires
from app.web.dependencies import ReadSession, Rules
from app.web.lists import ListQuery, OneOf
from app.web.templating import render

# --- Filters of the playbook. The query string is its whole state, so it is validated as input.

ORIGINS: Mapping[str, str] = {"built-in": "this service", "team": "a team"}
ORDERS: Mapping[str, str] = {
    "workflow": "as in the workflow",
    "fired": "fired most often",
    "tried": "tried most often",
    "paid_off": "paid off most often",
    "newest": "newest source first",
}
OUTCOMES: Mapping[str, str] = {
    "fired": "fired here",
    "tried": "tried here",
    "paid_off": "paid off here",
    "disputed": "has conflicting sources",
}


class RuleQuery(ListQuery):
    """Filters of the playbook; an empty one means any."""

    page_defaults: ClassVar[Mapping[str, str]] = {"sort": "paid_off"}

    page_size: int = Field(50, ge=1, le=500)
    q: str = Field("", description="Words that must all occur: in id, title, reason, condition, flags or source.")
    phase: Annotated[str, OneOf(PHASES)] = ""
    wall: Annotated[str, OneOf(WALLS)] = ""
    kind: Annotated[str, OneOf(KINDS)] = ""
    confidence: Annotated[str, OneOf(CONFIDENCES)] = ""
    origin: Annotated[str, OneOf(tuple(ORIGINS))] = Field("", description="`built-in` or `team`.")
    only: Annotated[str, OneOf(tuple(OUTCOMES))] = Field("", description="`fired`, `tried`, `paid_off` or `disputed`.")
    project: str = Field("", description="Project whose runs are counted; empty for all.")
    sort: Annotated[str, OneOf(tuple(ORDERS))] = Field(
        "", description="`workflow` (the default), `fired`, `tried`, `paid_off` or `newest`."
    )


# --- The change of a rule without a run: its fields, and how both trainers spell them.


@dataclass(frozen=True, slots=True)
class ChangedField:
    """`value`: the new value; `computed`: an expression over the run's facts, which may choose among `choices`.

    `megatron_lm`, `bridge`: how it is written, one flag or override per line; for a computed value the flags that hold
    it, or a line for each choice.
    """

    name: str
    meaning: str
    value: str
    computed: bool
    megatron_lm: tuple[str, ...]
    bridge: tuple[str, ...]
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable; `value` "" unsets it."""

    name: str
    value: str
    computed: bool


def changed_fields(rule: Rule) -> tuple[ChangedField, ...]:
    return tuple(_field(name, value, rule.change.set) for name, value in rule.change.set.items())


def variables(rule: Rule) -> tuple[Variable, ...]:
    return tuple(
        Variable(name, "" if value is None else _shown(value), isinstance(value, Expression))
        for name, value in rule.change.env.items()
    )


def flags_of(rule: Rule) -> tuple[str, ...]:
    """Return every flag and override of the rule, for the search."""
    spelled = [line for field in changed_fields(rule) for line in (*field.megatron_lm, *field.bridge, field.name)]
    return (*spelled, *rule.change.megatron_lm, *rule.change.bridge, *rule.change.env)


_FEWEST_CHOICES = 2


def _field(name: str, value: Setting | Expression, others: Mapping[str, object]) -> ChangedField:
    field = FIELDS.get(name)
    meaning = field.meaning if field is not None else ""
    if isinstance(value, Expression):
        lm, bridge = (field.megatron_lm, field.bridge) if field is not None else ("", "")
        choices = value.choices if field is not None and field.kind != "words" else ()
        if len(choices) < _FEWEST_CHOICES:
            return ChangedField(name, meaning, _shown(value), True, (lm,) if lm else (), (bridge,) if bridge else ())
        spelled = [_spelled(name, choice, {}) for choice in choices]
        megatron, bridges = ([" ".join(lines) for lines in side if lines] for side in zip(*spelled, strict=True))
        return ChangedField(name, meaning, _shown(value), True, tuple(megatron), tuple(bridges), choices)
    others = {key: other for key, other in others.items() if not isinstance(other, Expression)}
    return ChangedField(name, meaning, _shown(value), False, *_spelled(name, value, others))


def _spelled(name: str, value: Setting, others: Mapping[str, object]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines of Megatron-LM and of Megatron-Bridge."""
    spelling = written(name, value, others)
    return _lines(spelling.megatron_lm), tuple(f"{path}={text}" for path, text in spelling.bridge.items())


def _lines(spelling: Spelling) -> tuple[str, ...]:
    there = tuple(" ".join((flag, *values)) for flag, values in spelling.flags.items())
    return (*there, *(f"without {flag}" for flag in spelling.without if not there))


def _shown(value: Setting | Expression) -> str:
    return value.source if isinstance(value, Expression) else shown(value)


# --- The playbook as a list: the matching rules, their results here, a page of them. Evaluates no rule.

NO_PROJECT = -1
"""Project id that has no counts, for a project that does not exist."""


EQUAL_MEMORY_PCT = 0.5
"""Peak memory that differs by less counts as equal. Our choice."""

OtherData = Literal["", "baseline", "faster", "profile"]


@dataclass(frozen=True, slots=True)
class RuleItem:
    """A rule with its results here. `disputed`: number of contradictions of sources that involve it.

    `fired` counts what the data of one run decides. `other_data`: what else decides the rule on pages of a run.
    `memory`: of a rule that saves memory, the changes of peak memory in its A/Bs, in percent.
    """

    rule: Rule
    sources: tuple[Source, ...]
    fired: int
    results: RuleResults
    disputed: int
    replaces: bool
    other_data: OtherData
    memory: Mapping[MeasuredGain, float]

    @property
    def is_refuted(self) -> bool:
        """Return whether it should save memory and no A/B here saved any."""
        return bool(self.memory) and all(change > -EQUAL_MEMORY_PCT for change in self.memory.values())

    @property
    def saved(self) -> str:
        """Return `0 of 6 saved memory`; empty for rules that save none, or without a measurement."""
        less = sum(change <= -EQUAL_MEMORY_PCT for change in self.memory.values())
        return f"{less} of {len(self.memory)} saved memory" if self.memory else ""


def find_rules(session: Session, rules: RulesInForce, query: RuleQuery) -> tuple[RuleItem, ...]:
    """Return the matching rules in the requested order."""
    project_id = counted_project(session, query.project)
    fired = fired_counts(session, project_id)
    results = rule_results(session, rules.book.rules.values(), project_id)
    words = query.q.casefold().split()
    items = [
        _item(session, rule, rules, fired, results)
        for rule in rules.book.rules.values()
        if _matches(rule, query) and all(word in _texts(rules)[rule.id] for word in words)
    ]
    matching = [item for item in items if _OUTCOME_TESTS[query.only](item)]
    return tuple(sorted(matching, key=_ORDERS[query.sort]))


def item_of(session: Session, rules: RulesInForce, rule: Rule, project: str) -> RuleItem:
    project_id = counted_project(session, project)
    results = results_of_rule(session, rule, rules.book.rules.values(), project_id)
    return _item(session, rule, rules, fired_counts(session, project_id), {rule.id: results})


def counted_project(session: Session, project: str) -> int | None:
    """Return the project whose runs count; None for all."""
    if not project:
        return None
    project_id = project_id_of(session, project)
    return NO_PROJECT if project_id is None else project_id


def projects(session: Session) -> tuple[str, ...]:
    return tuple(session.execute(select_any(ProjectRow.slug).order_by(col(ProjectRow.slug))).scalars())


@dataclass(frozen=True, slots=True)
class PhaseCount:
    """The rules of a phase, and how many of them fired, were tried and paid off here."""

    phase: str
    rules: int
    fired: int
    tried: int
    paid_off: int


def count_by_phase(items: Sequence[RuleItem]) -> list[PhaseCount]:
    """Return the counts of the phases in the order of the workflow, without empty phases."""
    groups = {phase: [item for item in items if item.rule.phase == phase] for phase in PHASES}
    return [
        PhaseCount(phase, len(group), *(sum(map(test, group)) for test in (_fired, _tried, _paid_off)))
        for phase, group in groups.items()
        if group
    ]


def summary_of_list(items: Sequence[RuleItem], rules: RulesInForce) -> str:
    """Return the first sentence of the page: how many rules match, and their results here."""
    if not items:
        return "No rule matches."
    team = sum(item.rule.origin == "team" for item in items)
    whose = f" ({team} of a team)" if team else ""
    fired, tried, paid = (sum(map(test, items)) for test in (_fired, _tried, _paid_off))
    which = plural(len(items), "rule" if len(items) == len(rules.book.rules) else "matching rule")
    return f"{paid} of {which}{whose} paid off here; {tried} tried, {fired} fired."


def _item(
    session: Session,
    rule: Rule,
    rules: RulesInForce,
    fired: Mapping[str, int],
    results: Mapping[str, RuleResults],
) -> RuleItem:
    own = results.get(rule.id, NOTHING)
    return RuleItem(
        rule=rule,
        sources=tuple(rules.book.sources[key] for key in rule.sources),
        fired=fired.get(rule.id, 0),
        results=own,
        disputed=len(contradictions_of(rule.id)),
        replaces=bool(rule.overrides),
        other_data=_other_data(rule),
        memory=memory_changes(session, own.gains) if rule.hints.for_memory and own.gains else {},
    )


def _other_data(rule: Rule) -> OtherData:
    facts = [FACTS[name] for name in rule.when.names if name in FACTS]
    sections = {FACTS[base].section for fact in facts for base in (fact.name, *fact.inputs) if base in FACTS}
    if "compared" in sections:
        return "baseline"
    if "faster" in sections:
        return "faster"
    return "profile" if "profile" in sections else ""


def _matches(rule: Rule, query: RuleQuery) -> bool:
    asked = (
        (query.phase, rule.phase),
        (query.wall, rule.wall),
        (query.kind, rule.kind),
        (query.confidence, rule.confidence),
        (query.origin, rule.origin),
    )
    return all(not wanted or wanted == has for wanted, has in asked)


@lru_cache(maxsize=4)
def _texts(rules: RulesInForce) -> Mapping[str, str]:
    """Return the searched text by rule, computed once for the rules in force."""
    return {rule.id: _text(rule, rules.book) for rule in rules.book.rules.values()}


def _text(rule: Rule, book: RuleBook) -> str:
    """Return the searched text of a rule, with contradicting statements, so that old flags lead here."""
    sources = [book.sources[key] for key in rule.sources]
    evidence = [contradiction for effect in rule.effect.evidence for contradiction in (effect.text, effect.setting)]
    disputes = [
        text for contradiction in contradictions_of(rule.id) for text in (contradiction.older, contradiction.newer)
    ]
    parts = (
        rule.id,
        rule.title,
        rule.why,
        rule.change.text,
        rule.when.source,
        rule.effect.text,
        rule.verify,
        rule.topic,
    )
    named = [f"{source.key} {source.title} {source.where} {source.date}" for source in sources]
    return " ".join((*parts, *flags_of(rule), *named, *evidence, *disputes, rule.overrides)).casefold()


def _fired(item: RuleItem) -> bool:
    return item.fired > 0


def _tried(item: RuleItem) -> bool:
    return item.results.tried > 0


def _paid_off(item: RuleItem) -> bool:
    return item.results.paid_off > 0


_OUTCOME_TESTS: Mapping[str, Callable[[RuleItem], bool]] = {
    "": lambda _: True,
    "fired": _fired,
    "tried": _tried,
    "paid_off": _paid_off,
    "disputed": lambda item: item.disputed > 0,
}


def _workflow(item: RuleItem) -> tuple[int, int, str]:
    return PHASES.index(item.rule.phase), KINDS.index(item.rule.kind), item.rule.id


_ORDERS: Mapping[str, Callable[[RuleItem], tuple[object, ...]]] = {
    "": _workflow,
    "workflow": _workflow,
    "fired": lambda item: (-item.fired, *_workflow(item)),
    "tried": lambda item: (-item.results.tried, -item.fired, *_workflow(item)),
    "paid_off": lambda item: (
        *(-item.results.paid_off, not item.results.tried, item.is_refuted, -item.results.tried, -item.fired),
        *_workflow(item),
    ),
    "newest": lambda item: (*(-ord(c) for c in f"{item.rule.valid:<10}"), *_workflow(item)),
}


# --- Thresholds without a published source: the value in force, the default, and who set it.


@dataclass(frozen=True, slots=True)
class Threshold:
    """`setting`: the variable that sets it."""

    name: str
    meaning: str
    value: float
    default: float
    setting: str
    rules: int

    @property
    def origin(self) -> str:
        if self.value == self.default:
            return "our default; no published value"
        return f"set here by {self.setting}; our default is {self.default:g}; no published value"


def thresholds(rules: RulesInForce, names: Iterable[str] = SETTINGS) -> tuple[Threshold, ...]:
    """Return the thresholds among `names`, with the number of rules that use each."""
    conditions = [rule.when.names for rule in rules.book.rules.values()]
    return tuple(
        Threshold(
            name=name,
            meaning=FACTS[name].meaning,
            value=rules.thresholds[name],
            default=SETTINGS[name],
            setting=f"THREEWALLS_{name.upper()}",
            rules=sum(name in asked for asked in conditions),
        )
        for name in names
        if name in SETTINGS
    )


# --- One complete rule without a run: its condition, its change, its evidence, and its results here.

LAST_RUNS = 10
OTHER_DATA_TEXT: Mapping[OtherData, str] = {
    "": "",
    "baseline": "Comparisons with a baseline are not counted.",
    "faster": "Comparisons with faster runs and records are not counted.",
    "profile": "Firings based on the profile of another run are not counted.",
}
NEEDED_DATA: Mapping[OtherData, str] = {"baseline": "baseline", "faster": "faster run", "profile": "profile"}
"""What decides a rule besides the data of one run."""
LEVELS = {
    "code": "enforced in code",
    "matched_ab": "matched A/B",
    "record": "published record, several knobs at once",
    "seed": "guide",
    "heuristic": "rule of thumb",
}
"""Kinds of published evidence as text."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published result with its source; `href` is "" without an address."""

    text: str
    setting: str
    level: str
    source: str
    href: str
    date: str
    at: str


@dataclass(frozen=True, slots=True)
class Dispute:
    """Two contradicting statements of sources, and which one counts."""

    contradiction: Contradiction
    ruling: Overruling
    older: tuple[Source, ...]
    newer: tuple[Source, ...]


_SHARE = re.compile(r"\{\w+:\.\d%\}(?= of )")
_BESIDE = re.compile(r" \([^(){}]*\{[^()]*\)| at [A-Z]{2,3} \{\w+\}")
"""Figures of a run that a sentence does not need: `(EP is {ep})`, `at EP {ep}`."""
_NAMED = re.compile(r"\b([A-Z]{2,3}) \{\w+\}(?![.:])")
"""A figure after its name: `TP {tp}`."""
_SENTENCE = re.compile(r"(?<=[.?!]) ")


class RulePageOf:
    """The data of the template. Raises NotFound for an unknown rule."""

    def __init__(self, session: Session, rules: RulesInForce, name: str, project: str = "") -> None:
        self._session = session
        self.rules = rules
        self.rule: Rule = rule_of(rules, name)
        self.project = project
        self.item: RuleItem = item_of(session, rules, self.rule, project)
        self.last: tuple[FiredIn, ...] = last_fired(session, name, LAST_RUNS, counted_project(session, project))
        self.planned = planned(session, name)
        self.replaced: Rule | None = rules.team.replaced.get(name)

    @cached_property
    def applies_to(self) -> FiredIn | None:
        """Return the newest run to apply it to; None without one. A run of an experiment is one side of an A/B."""
        of_ci = [fired for fired in self.last if fired.purpose != "experiment"]
        skipped = runs_not_to_tune(self._session, [fired.run_id for fired in of_ci])
        return next((fired for fired in of_ci if fired.run_id not in skipped), None)

    @property
    def lead(self) -> str:
        """Return the reason without the figures of a run: its sentences that name no other fact."""
        text = _BESIDE.sub("", _SHARE.sub("part", self.rule.why))
        text = text.replace("part", "Part", 1) if text.startswith("part") else text
        plain = [sentence for sentence in _SENTENCE.split(text) if "{" not in sentence]
        return " ".join(plain) if plain else self._by_example(self.rule.why)

    def _by_example(self, text: str) -> str:
        """Fill in the facts of the rule's first example, or their names if it lacks some."""
        example = next((example for example in self.rule.examples.fires if is_filled(text, example)), None)
        # Facts that end a reason bring their own space.
        named = with_names(re.sub(r"(?<=[.}])\{", " {", _NAMED.sub(r"\1", text)))
        return named if example is None else f"For example: {filled(text, example)}"

    @cached_property
    def stack_names(self) -> Mapping[str, str]:
        """Return the names of the stacks with matched A/Bs."""
        stacks = [stack for row in self.measured for stack in row.result.stacks]
        return names_of_stacks(self._session, stacks)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Return the facts of the condition, without thresholds."""
        return tuple(FACTS[name] for name in self.rule.when.names if name in FACTS and name not in SETTINGS)

    @property
    def thresholds(self) -> tuple[Threshold, ...]:
        return thresholds(self.rules, self.rule.when.names)

    @property
    def fields(self) -> tuple[ChangedField, ...]:
        return changed_fields(self.rule)

    @property
    def variables(self) -> tuple[Variable, ...]:
        return variables(self.rule)

    @property
    def megatron_lm(self) -> tuple[str, ...]:
        """Return further flags, as written."""
        return tuple(with_names(flag).replace("`", "") for flag in self.rule.change.megatron_lm)

    @property
    def bridge(self) -> tuple[str, ...]:
        return tuple(with_names(flag).replace("`", "") for flag in self.rule.change.bridge)

    @property
    def change_text(self) -> str:
        text = self.rule.change.text
        return self._by_example(text) if "{" in text else text

    @property
    def measured(self) -> tuple[MeasuredHere, ...]:
        """Return matched A/Bs of this service on the knob, by stack, best first."""
        return self.item.results.by_stack(self.rule.id)

    @property
    def together(self) -> OwnResult | None:
        measurement = self.item.results.together(self.rule.id)
        return None if measurement is None else measurement.result

    @cached_property
    def memory(self) -> str:
        """Format the change of peak memory in the A/Bs of a rule that saves memory; empty for others."""
        if not self.rule.hints.for_memory or not self.item.results.gains:
            return ""
        changes = self.item.memory.values()
        if not changes:
            return "no A/B measured its peak memory"
        where = plural(len(changes), "A/B")
        if max(map(abs, changes)) < EQUAL_MEMORY_PCT:
            return f"no difference in peak memory in {where}"
        return f"peak memory changed by {signed(min(changes))} to {signed(max(changes))} in {where}"

    def degrees_of(self, measurement: MeasuredHere) -> str:
        """Return the expert parallelism of A/Bs: `EP4`, which differs among the stack's runs; empty if unknown."""
        return degrees_of(gain for gain in self.item.results.gains if gain.run_id in measurement.runs)

    def memory_of(self, measurement: MeasuredHere) -> str:
        """Return the change of peak memory on the stack of an A/B: `+0.1 %`; empty if unknown or of no interest."""
        memory = self.item.memory
        changes = [pct for gain, pct in memory.items() if gain.run_id in measurement.runs]
        return " to ".join(dict.fromkeys((signed(min(changes)), signed(max(changes))))) if changes else ""

    @property
    def planned_abs(self) -> tuple[int, ...]:
        """Return the experiments among the measured results."""
        measurement = self.item.results.together(self.rule.id)
        return () if measurement is None else measurement.experiments

    @property
    def overridden(self) -> str:
        """Return why local measurements override the rule; "" where they do not, or agree."""
        return rule_evidence(self.rule, {}, self._own).overridden

    @property
    def published(self) -> list[Published]:
        return [
            Published(
                text=evidence.text,
                setting=evidence.setting,
                level=LEVELS[evidence.level],
                source=document.title
                if (document := self.rules.book.sources.get(evidence.source))
                else evidence.source,
                href=(document.url or "") if document else "",
                date=evidence.date or (document.date if document else ""),
                at=", ".join(f"{name} {value}" for name, value in evidence.at.items()),
            )
            for evidence in self.rule.effect.evidence
        ]

    @property
    def disputes(self) -> list[Dispute]:
        sources = self.rules.book.sources
        return [
            Dispute(
                contradiction,
                overruling(contradiction, sources, self._own),
                tuple(sources[key] for key in contradiction.older_sources if key in sources),
                tuple(sources[key] for key in contradiction.newer_sources if key in sources),
            )
            for contradiction in contradictions_of(self.rule.id)
        ]

    @property
    def unlocks(self) -> list[Rule]:
        return [self.rules.book.rules[name] for name in self.rule.hints.unlocks if name in self.rules.book.rules]

    @property
    def unlocked_by(self) -> list[Rule]:
        return [rule for rule in self.rules.book.rules.values() if self.rule.id in rule.hints.unlocks]

    @property
    def _own(self) -> Sequence[OwnResult]:
        return () if self.together is None else (self.together,)


def rule_of(rules: RulesInForce, name: str) -> Rule:
    """Show one rule. Raises NotFound for an unknown rule."""
    if name not in rules.book.rules:
        raise NotFound(f"Rule {name[:60]!r} does not exist. It may have been renamed.")
    return rules.book.rules[name]


router = APIRouter(include_in_schema=False)

ROWS = 25
"""Rules on a page of the list."""
OPTIONS = {
    "phases": PHASES,
    "walls": WALLS,
    "kinds": KINDS,
    "confidences": CONFIDENCES,
    "origins": ORIGINS,
    "outcomes": OUTCOMES,
    "orders": ORDERS,
}


@router.get("/playbook")
@requires(Action.READ)
def list_rules(request: Request, session: ReadSession, rules: Rules) -> HTMLResponse:
    query = RuleQuery.from_params(request.query_params)
    items = find_rules(session, rules, query)
    return render(
        request,
        "playbook/list.html",
        block="rule_table",
        address=query.address("/playbook"),
        page=ListPage.cut(items, query.page, ROWS),
        phases=count_by_phase(items),
        answer=summary_of_list(items, rules),
        filters=query,
        options=OPTIONS,
        projects=projects(session),
        left_out=rules.team.mistakes,
        files=rules.team.files_left_out,
        folder=rules.folder,
        waiting=waiting(session, rules.version),
        thresholds=thresholds(rules),
        needed_data=NEEDED_DATA,
        places_of=places_of,
    )


@router.get("/playbook/{rule}")
@requires(Action.READ)
def show_rule(request: Request, session: ReadSession, rules: Rules, rule: str, project: str = "") -> HTMLResponse:
    return render(
        request,
        "playbook/rule.html",
        p=RulePageOf(session, rules, rule, project[:300]),
        origins=ORIGINS,
        other_data_text=OTHER_DATA_TEXT,
        needed_data=NEEDED_DATA,
        degrees_of=degrees_of,
        kinds_of=kinds_of,
    )

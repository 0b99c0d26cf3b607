"""What would tell more: the facts that nobody stated, grouped by who knows them, with an input for each."""

from collections.abc import Iterable
from dataclasses import dataclass

from app.domain.contract.fields import FIELDS
from app.domain.rules.facts import FACTS, Fact
from app.domain.rules.filling import fact_text
from app.domain.rules.missing import MissingFact
from app.domain.rules.stating import STATEABLE
from app.recommendations.advise import Advice
from app.recommendations.state_form import StateForm, fact_input
from app.storage.stated_facts import StatedFact
from app.web.contract_inputs import ContractInput

SHOWN = 8
"""Facts that stand open on the page; the rest is folded."""
GROUPS = (
    ("profile", "From a profile of steady steps"),
    ("contract", "From the launch: fields of the contract"),
    ("asked", "From the launch: further options"),
    ("stated", "From whoever ran it"),
    ("log", "From the log, or a trace beside it"),
)


@dataclass(frozen=True, slots=True)
class MissingRow:
    """`input`: its place in the form; without one `href` leads to where it is filled in, "" where nothing does."""

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
    """`counts`: what the files tell instead, "" where the statement counts."""

    said: StatedFact
    value: str
    meaning: str
    counts: str


class MissingView:
    """`fact`: what somebody came to state."""

    def __init__(self, advice: Advice, form: StateForm, fact: str = "") -> None:
        self._advice = advice
        self.form = form
        wanted = {fact, *(name.partition(".")[2] for name in form.values)}
        missing = list(advice.told.missing)
        known = {one.fact.name for one in missing}
        missing += [MissingFact(STATEABLE[name], (), ()) for name in wanted if name in STATEABLE and name not in known]
        useful = [one for one in missing if one.decides]
        first = [one for one in missing if one.fact.name in wanted]
        shown = {id(one) for one in (*first, *useful[:SHOWN])}
        self.groups = self._grouped(one for one in missing if id(one) in shown)
        self.more = self._grouped(one for one in missing if id(one) not in shown)
        self.more_count = len(missing) - len(shown)

    def _grouped(self, found: Iterable[MissingFact]) -> list[MissingGroup]:
        """In the order of their most useful fact."""
        rows: dict[str, list[MissingRow]] = {}
        for one in found:
            rows.setdefault(one.fact.section, []).append(self._row(one))
        titles = dict(GROUPS)
        return [MissingGroup(titles.get(section, "From elsewhere"), tuple(of)) for section, of in rows.items()]

    def _row(self, one: MissingFact) -> MissingRow:
        rules, fact = self._advice.book.rules, one.fact
        unlocks = (*one.decides, *(rule for rule in one.alone if rule not in one.decides))
        return MissingRow(
            name=fact.name,
            meaning=fact.meaning,
            supply=fact.supply,
            input=fact_input(fact, self.form) if fact.name in STATEABLE else None,
            href=_contract_address(self._advice, fact),
            unlocks=tuple((rule, rules[rule].title) for rule in unlocks),
            together=len(one.together),
        )

    @property
    def stated(self) -> list[StatedRow]:
        """What people stated of this run, newest first, with what was taken back."""
        rows = []
        for one in self._advice.statements:
            fact = FACTS.get(one.name)
            counts = ""
            if not one.removed and one.name in self._advice.stated and self._advice.stated_by(one.name) is None:
                counts = fact_text(self._advice.stated[one.name])
            value = "" if one.removed else fact_text(one.value)
            rows.append(StatedRow(one, value, fact.meaning if fact is not None else "", counts))
        return rows

    @property
    def can_take_back(self) -> list[str]:
        """Facts whose statement counts."""
        return sorted(name for name in {one.name for one in self._advice.statements} if self._advice.stated_by(name))


def supply_address(advice: Advice, fact: Fact) -> str:
    """Where a fact can be filled in: the contract on the page of the run, others on the page of its next steps."""
    if fact.name in STATEABLE:
        return f"/runs/{advice.run.id}/next?fact={fact.name}#a-fact.{fact.name}"
    return _contract_address(advice, fact)


def _contract_address(advice: Advice, fact: Fact) -> str:
    page = f"/runs/{advice.run.id}"
    if fact.name in advice.run.unknown:
        return f"{page}#a-field.{fact.name}"
    if fact.name in FIELDS:
        return f"{page}?amend={fact.name}#supply"
    return ""

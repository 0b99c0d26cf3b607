"""What the scaling page shows: the question as it stands in the address, what could be asked, and the answer."""

from dataclasses import dataclass

from sqlmodel import Session

from app.domain.ranking.families import slug
from app.scaling.measure import Workloads, container_of, measure, workloads
from app.scaling.query import ScalingQuery
from app.scaling.view import Section, answer, sections
from app.web.numbers import counted


@dataclass(frozen=True, slots=True)
class ScalingPage:
    """`offers`: what has several sizes, of any project. `chosen` None: not exactly one of them was asked for."""

    query: ScalingQuery
    offers: tuple[Workloads, ...]
    chosen: Workloads | None
    sections: tuple[Section, ...]
    answer: str

    @property
    def container(self) -> str:
        return container_of(self.chosen, self.query) if self.chosen else ""

    @property
    def dispatchers(self) -> tuple[str, ...]:
        names = {view.series.dispatcher or "unknown" for section in self.sections for view in section.series}
        return tuple(sorted(names))


def scaling_page(session: Session, query: ScalingQuery) -> ScalingPage:
    offers = workloads(session)
    matching = [one for one in offers if _matches(one, query)]
    if len(matching) != 1:
        return ScalingPage(query, offers, None, (), _asked(offers, len(matching)))
    chosen = matching[0]
    found = sections(measure(session, chosen, query))
    return ScalingPage(query, offers, chosen, found, answer(found))


def _matches(one: Workloads, query: ScalingQuery) -> bool:
    asked = (
        (query.project, one.project),
        (query.hardware and slug(query.hardware), one.hardware_slug),
        (query.family and slug(query.family), one.family_slug),
    )
    return all(not wanted or wanted == has for wanted, has in asked)


def _asked(offers: tuple[Workloads, ...], matching: int) -> str:
    if not offers:
        return "No workload ran at several sizes yet."
    if not matching:
        return "Nothing of this ran at several sizes. Choose what did."
    return f"{counted(matching, 'workload')} ran at several sizes. Choose one."

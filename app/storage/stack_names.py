"""Names of ranked stacks, each told apart from those that share its title."""

from collections.abc import Iterable

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.stack_names import TitledStack, stack_names
from app.storage.findings import frozen
from app.storage.standings_tables import StandingRow
from app.storage.tables import ProjectRow


def names_of_titles(session: Session, titles: Iterable[str]) -> dict[str, str]:
    """Stack key -> name, of all ranked stacks that have one of these titles."""
    wanted = sorted(set(titles))
    if not wanted:
        return {}
    chosen = (
        select(StandingRow.stack_key, StandingRow.title, ProjectRow.slug, StandingRow.about)  # type: ignore[call-overload]
        .join(ProjectRow, col(ProjectRow.id) == StandingRow.project_id)
        .where(col(StandingRow.title).in_(wanted))
    )
    return stack_names(
        TitledStack(key, title, project, {name: frozen(value) for name, value in about.items()})
        for key, title, project, about in session.execute(chosen)
    )

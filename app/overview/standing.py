"""What the first page says to somebody for whom it has no runs: why, and whom to ask."""

from dataclasses import dataclass

from sqlmodel import Session

from app.domain.access.roles import Action
from app.domain.text import some_of
from app.storage.access_projects import project_slugs
from app.storage.people import administrators
from app.web.access.state import Access


@dataclass(frozen=True, slots=True)
class Standing:
    """`name`: of whoever is logged in and belongs to no project, else empty. `ask`: who gives a role.

    `empty`: why there are no runs, in a sentence. `uploads_to`: the one project that the reader may upload to, as far
    as there is one.
    """

    name: str
    ask: str
    empty: str
    uploads_to: str


def standing(session: Session, access: Access) -> Standing:
    person, of_all = access.person, access.may_anywhere(Action.ADMINISTER)
    if person is None or of_all:
        empty = "Nothing has been uploaded yet." if of_all else "No project with runs is public."
        return Standing("", "", empty, "")
    own = project_slugs(session, person.roles)
    if not own:
        ask = some_of(administrators(session), last="or")
        return Standing(person.name, ask, "You belong to no project yet.", "")
    uploads = project_slugs(session, [project for project in person.roles if access.may(Action.UPLOAD, project)])
    empty = f"Nothing has been uploaded to {some_of(own)} yet."
    return Standing("", "", empty, uploads[0] if len(uploads) == 1 else "")

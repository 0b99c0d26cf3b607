"""Import of users and roles from CSV: `POST /api/v1/users/import` and the form at `/settings/users/import`.

A file is imported whole or not at all.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import structlog
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.responses import HTMLResponse, JSONResponse, Response

from app.access.members import initial_password, read_role
from app.access.members_api import Author
from app.access.members_pages import MAX_FIELDS, MemberForm
from app.domain.access import passwords
from app.domain.access.principal import Action, Role
from app.domain.text import one_line
from app.errors import Conflict, FieldError, InvalidChange, NotFound, ThreewallsError
from app.settings import Settings
from app.storage import users
from app.storage.database import read_session, transaction
from app.storage.projects import find_project
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, AppSettings, api_router
from app.web.errors import documented
from app.web.forms import answer_form
from app.web.identity import signed
from app.web.templating import render

log = structlog.get_logger(__name__)

MAX_TEXT = 200_000
MAX_ROWS = 2_000
MAX_NEW = 100
"""New users of a file. Each costs a tenth of a second, for the hash of an initial password."""
_MOST_PROBLEMS = 20
_NO_STORE = {"Cache-Control": "no-store"}
COLUMNS = ("name", "email", "project", "role", "group")


@dataclass(frozen=True, slots=True)
class ImportLine:
    """A line of the file: a user, with a role in a project, or a group, or neither. `number`: counted from 1."""

    number: int
    name: str
    email: str = ""
    project: str = ""
    role: Role | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class ImportedUsers:
    """What a file changed, or would change. `passwords`: initial passwords of new users, empty in a dry run."""

    created: tuple[str, ...]
    roles: int
    groups: int
    passwords: tuple[tuple[str, str], ...] = ()


def read_lines(text: str) -> list[ImportLine]:
    """Parse a file with a heading of COLUMNS, of which `name` is required. Raises InvalidChange with every problem."""
    text = text.lstrip("\ufeff\r\n ").replace("\r\n", "\n").replace("\r", "\n")
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    try:
        rows = list(islice(csv.reader(io.StringIO(text), delimiter=delimiter), MAX_ROWS + 2))
    except csv.Error as error:
        raise _refused([f"it is not valid CSV: {error}"]) from None
    heading = [cell.strip().lower() for cell in rows[0]] if rows else []
    if "name" not in heading or set(heading) - set(COLUMNS) or len(set(heading)) != len(heading):
        raise _refused([f"the first line must name columns from {', '.join(COLUMNS)}; name is required"])
    body = [(number, row) for number, row in enumerate(rows[1:], start=2) if any(cell.strip() for cell in row)]
    if not 0 < len(body) <= MAX_ROWS:
        raise _refused([f"a file has 1 to {MAX_ROWS} lines after the heading"])
    lines, problems = [], []
    for number, row in body:
        cells = {name: one_line(cell) for name, cell in zip(heading, row, strict=False)}
        try:
            lines.append(_read_line(number, cells, len(row) > len(heading)))
        except InvalidChange as error:
            problems.append(f"line {number}: {error.errors[0].message}")
    if problems:
        raise _refused(problems)
    return lines


def _read_line(number: int, cells: dict[str, str], too_long: bool) -> ImportLine:
    if too_long:
        raise _refused(["has more cells than the heading"])
    project, role = cells.get("project", ""), cells.get("role", "")
    if bool(project) != bool(role):
        raise _refused(["needs both a project and a role, or neither"])
    email = cells.get("email", "")
    if email and ("@" not in email.strip("@ ") or len(email) > 300):
        raise _refused([f"{email[:60]} is not an e-mail address"])
    new_role = read_role(role.lower()) if role else None
    return ImportLine(
        number, users.checked_name(cells.get("name", "")), email, project, new_role, cells.get("group", "")
    )


def import_file(engine: Engine, settings: Settings, text: str, *, by: str, dry_run: bool) -> ImportedUsers:
    """Create the users of the file that do not exist, and give the roles and groups. Raises InvalidChange.

    A role that a user has is replaced. Nothing is ended: users, roles and groups that the file does not name stay.
    """
    lines = read_lines(text)
    with read_session(engine) as session:
        missing = _missing(session, lines)
    if dry_run:
        return ImportedUsers(
            tuple(line.name for line in missing), sum(bool(line.role) for line in lines),
            sum(bool(line.group) for line in lines),
        )  # fmt: skip
    # Hashing is slow, so it comes before the transaction takes SQLite's write lock.
    initial = {line.name: initial_password(line.name) for line in missing}
    hashes = {name: passwords.hashed(password, settings.password_memory_mib) for name, password in initial.items()}
    with transaction(engine) as session:
        for line in missing:
            users.create_user(
                session, line.name, by=by, password_hash=hashes[line.name], email=line.email, must_change_password=True
            )
        roles = sum(_give(session, line, by) for line in lines)
        joined = sum(_join(session, line, by) for line in lines)
    log.info("users_imported", created=len(missing), roles=roles, groups=joined)
    return ImportedUsers(tuple(initial), roles, joined, tuple(initial.items()))


def _missing(session: Session, lines: Sequence[ImportLine]) -> list[ImportLine]:
    """Return the first line of each user that does not exist. Raises InvalidChange for a contradictory line."""
    problems, new = [], dict[str, ImportLine]()
    for line in lines:
        user = users.find_user(session, line.name)
        if user is None and line.name not in new:
            if users.is_taken(session, line.name) or line.name.lower() in {name.lower() for name in new}:
                problems.append(f"line {line.number}: {line.name} differs from a user only in case")
            new[line.name] = line
        if user is not None and user.disabled_at is not None:
            problems.append(f"line {line.number}: {line.name} is disabled")
        if line.group and users.find_group(session, line.group) is None:
            problems.append(f"line {line.number}: no group {line.group[:60]}")
        if line.project:
            try:
                find_project(session, line.project)
            except NotFound:
                problems.append(f"line {line.number}: no project {line.project[:60]}")
    if len(new) > MAX_NEW:
        problems.append(f"a file may create at most {MAX_NEW} users, and this one would create {len(new)}; split it")
    if problems:
        raise _refused(problems)
    return list(new.values())


def _give(session: Session, line: ImportLine, by: str) -> bool:
    if line.role is None:
        return False
    user = users.find_user(session, line.name)
    project = find_project(session, line.project)
    if user is None:
        return False
    changed = users.set_role(session, project_id=project.id or 0, user_id=user.id or 0, role=line.role, by=by)
    session.flush()
    return changed


def _join(session: Session, line: ImportLine, by: str) -> bool:
    group = users.find_group(session, line.group) if line.group else None
    if group is None:
        return False
    users.add_to_group(session, group.id or 0, line.name, by=by)
    session.flush()
    return True


def _refused(problems: Sequence[str]) -> InvalidChange:
    shown = [
        *problems[:_MOST_PROBLEMS],
        *([f"and {len(problems) - _MOST_PROBLEMS} more"] if problems[_MOST_PROBLEMS:] else []),
    ]
    return InvalidChange(
        f"Nothing was imported: {'; '.join(shown)}.", tuple(FieldError("csv", problem) for problem in shown)
    )


# --- API and page, for administrators.

api = api_router("access", "/api/v1/users")
router = APIRouter(include_in_schema=False, prefix="/settings/users")


class UsersFile(BaseModel, extra="forbid"):
    csv: str = Field(
        min_length=1,
        max_length=MAX_TEXT,
        description=f"Lines with the columns {', '.join(COLUMNS)} in any order; `name` is required.",
    )
    dry_run: bool = Field(False, description="Check the file and report what it would do.")
    author: Author = ""


class NewPassword(BaseModel):
    name: str
    password: str


class UsersImport(BaseModel):
    dry_run: bool
    created: list[str] = Field(description="Names of new users.")
    roles: int = Field(description="Roles that were given or changed; in a dry run those of the file.")
    groups: int = Field(description="Lines with a group.")
    passwords: list[NewPassword] = Field(
        description="Initial passwords of new users, which are shown only once; empty in a dry run."
    )


@api.post("/import", responses=documented(409, 422), response_model=UsersImport)
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
def import_users(engine: AppEngine, settings: AppSettings, body: UsersFile) -> JSONResponse:
    """Create users and give roles and groups, from CSV. The file is imported whole or not at all."""
    done = import_file(engine, settings, body.csv, by=signed(body.author), dry_run=body.dry_run)
    answer = UsersImport(
        dry_run=body.dry_run, created=list(done.created), roles=done.roles, groups=done.groups,
        passwords=[NewPassword(name=name, password=password) for name, password in done.passwords],
    )  # fmt: skip
    return JSONResponse(answer.model_dump(mode="json"), headers=_NO_STORE)


class ImportForm(MemberForm):
    longest = MAX_TEXT


@router.get("/import")
@requires(Action.ADMINISTER)
def show_import(request: Request) -> HTMLResponse:
    return _page(request, ImportForm())


@router.post("/import")
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
async def import_form(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    """Check or import the file, as the button says. The answer shows initial passwords once."""

    def act(form: ImportForm) -> Response:
        dry_run = form.value("do") != "import"
        done = import_file(engine, settings, form.value("csv"), by=form.by, dry_run=dry_run)
        return _page(request, form if dry_run else ImportForm(), done=done, dry_run=dry_run)

    def again(_session: Session, form: ImportForm, _: ThreewallsError) -> Response:
        return _page(request, form, 422)

    catch = (InvalidChange, Conflict)
    return await answer_form(request, ImportForm, act, again, max_fields=MAX_FIELDS, catch=catch)


def _page(
    request: Request,
    form: ImportForm,
    status: int = 200,
    *,
    done: ImportedUsers | None = None,
    dry_run: bool = False,
) -> HTMLResponse:
    response = render(
        request, "access/import.html", status=status, form=form, done=done, dry_run=dry_run, columns=COLUMNS
    )
    response.headers.update(_NO_STORE)
    return response

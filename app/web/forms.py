"""Forms: read within limits, handled by one helper, and shown again with errors."""

import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar, Self, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from python_multipart.multipart import parse_options_header
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import RedirectResponse, Response

from app.domain.contract.fields import FIELDS
from app.domain.contract.statements import TAKE_BACK
from app.domain.numbers import contract_value
from app.domain.run import Value
from app.errors import BrokenForm, Conflict, FieldError, InvalidChange, InvalidUpload, NotFound, ThreewallsError
from app.web.dependencies import reading
from app.web.identity import author

AUTHOR = "author"
"""The input for the user's name, in every form that changes something (templates/components/ui.html)."""

_MAX_PART_SIZE = 1024 * 1024
_URL_ENCODED = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of a form: files, text fields, and bytes of a text field (`part_size`)."""

    files: int
    fields: int
    part_size: int

    def too_large(self) -> InvalidUpload:
        limit = f"{self.part_size:,} bytes"
        return InvalidUpload(
            f"A text field of this form is larger than {limit}. Nothing was saved. Shorten `meta`, and send logs as "
            "files; with curl: -F log=@FILE.",
            (FieldError("meta", f"must have at most {limit}, like every text field"),),
        )

    def too_many(self, what: str) -> BrokenForm:
        limits = f"may have at most {self.files} files and {self.fields} text fields"
        message = f"Too many {what}: a form {limits}. Nothing was saved. Send fewer."
        return BrokenForm(message, (FieldError("body", limits),))


class _Parser(MultiPartParser):
    """Starlette's parser, with BrokenForm and InvalidUpload for forms that exceed a limit."""

    def __init__(self, headers: Headers, stream: AsyncGenerator[bytes, None], limits: _Limits) -> None:
        super().__init__(headers, stream, max_files=math.inf, max_fields=math.inf, max_part_size=limits.part_size)
        self._limits = limits

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        try:
            super().on_part_data(data, start, end)
        except MultiPartException:
            raise self._limits.too_large() from None

    def on_part_end(self) -> None:
        super().on_part_end()
        files = sum(isinstance(value, UploadFile) for _, value in self.items)
        if files > self._limits.files:
            raise self._limits.too_many("files")
        if len(self.items) - files > self._limits.fields:
            raise self._limits.too_many("fields")


@asynccontextmanager
async def sent_form(
    request: Request, *, max_files: int, max_fields: int, max_part_size: int = _MAX_PART_SIZE
) -> AsyncIterator[FormData]:
    """Read the form of a request. Its files are closed after the block. `max_part_size`: bytes of a text field.

    Raises BrokenForm, and InvalidUpload for a text field that is too large.
    """
    limits = _Limits(max_files, max_fields, max_part_size)
    content_type = request.headers.get("content-type", "")
    if content_type.startswith(_URL_ENCODED):
        form = _read_pairs(await request.body(), limits)
    elif content_type.startswith(_MULTIPART):
        form = await _read_parts(request, content_type, limits)
    else:
        form = FormData()
    try:
        yield _with_author(form)
    finally:
        await form.close()


def _read_pairs(body: bytes, limits: _Limits) -> FormData:
    """Parse `name=value&...` in place of Starlette's parser, which takes 0.6 s of processor time per MB."""
    if 3 * body.count(b"%") > len(body):  # more escapes (of 3 bytes) than fit: invalid, and slow to parse
        raise _broken("contains invalid escapes")
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=limits.fields)
    except ValueError:
        raise limits.too_many("fields") from None
    if any(len(value) > limits.part_size for _, value in pairs):
        raise limits.too_large()
    return FormData([*pairs])


async def _read_parts(request: Request, content_type: str, limits: _Limits) -> FormData:
    if b"boundary" not in parse_options_header(content_type)[1]:
        why = "is multipart/form-data without a boundary"
        raise BrokenForm(
            f"The Content-Type header {why}. Nothing was saved. Let the HTTP client write this header.",
            (FieldError("Content-Type", why),),
        )
    async with aclosing(request.stream()) as stream:
        try:
            return await _Parser(request.headers, stream, limits).parse()
        except MultiPartException as error:
            raise _broken(error.message.rstrip(".")) from error


def _broken(why: str) -> BrokenForm:
    return BrokenForm(
        "The body is not a complete multipart form: it is damaged or truncated, or its boundary differs from the "
        "Content-Type. Nothing was saved. Send it again; let the HTTP client build the form, with curl: -F log=@FILE.",
        (FieldError("body", why),),
    )


def _with_author(form: FormData) -> FormData:
    """Return the form with the logged-in user as author."""
    if AUTHOR not in form:
        return form
    stated = form[AUTHOR]
    others = [(name, value) for name, value in form.multi_items() if name != AUTHOR]
    return FormData([*others, (AUTHOR, author(stated) if isinstance(stated, str) else stated)])


@dataclass(frozen=True, slots=True)
class Form:
    """A form as it was sent. `values` and `errors`: by input. `problem`: an error without an input, shown on top.

    `chosen`: the values of inputs that can be sent several times.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    inputs: ClassVar[tuple[str, ...]] = ()
    hidden: ClassVar[tuple[str, ...]] = ()
    """Inputs that are not visible and so cannot show an error."""
    several: ClassVar[tuple[str, ...]] = ()
    longest: ClassVar[int | None] = None
    """Maximum length of texts in characters; longer ones are truncated."""

    @classmethod
    def has_input(cls, name: str) -> bool:
        return name in cls.inputs

    @classmethod
    def read(cls, sent: Mapping[str, object]) -> Self:
        """Return the form from the sent values, without unknown inputs."""
        names = [name for name in sent if cls.has_input(name) or name in cls.hidden]
        texts = {name: value for name in names if isinstance(value := sent[name], str)}
        # Browsers send line breaks as CRLF.
        values = {name: text.strip().replace("\r\n", "\n")[: cls.longest] for name, text in texts.items()}
        lists = {name: sent.getlist(name) for name in cls.several} if isinstance(sent, FormData) else {}
        chosen = {name: tuple(item for item in items if isinstance(item, str)) for name, items in lists.items()}
        return cls(values, chosen=chosen)

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def input_of(self, field: str) -> str:
        """Return the name of the input that shows errors of `field`."""
        return field

    def errors_by_input(self, error: ThreewallsError) -> dict[str, str]:
        errors: dict[str, str] = {}
        for wrong in error.errors:
            name = self.input_of(wrong.field)
            errors[name] = "; ".join(filter(None, (errors.get(name), wrong.message)))
        return errors

    def refused(self, error: ThreewallsError) -> Self:
        """Return the form with `error` at the inputs that it concerns, or above the form."""
        errors = {name: text for name, text in self.errors_by_input(error).items() if self.has_input(name)}
        return replace(self, errors=errors, problem="" if errors else error.detail)


SentForm = TypeVar("SentForm", bound=Form)


def read_time(text: str) -> datetime | None:
    """Return the ISO 8601 time of a hidden input; None for anything else, or without a time zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else None


async def answer_form(
    request: Request,
    form: type[SentForm],
    act: Callable[[SentForm], str | Response],
    again: Callable[[Session, SentForm, ThreewallsError], Response] | None = None,
    *,
    max_fields: int,
    catch: tuple[type[ThreewallsError], ...] = (InvalidChange,),
) -> Response:
    """Read a form and handle it in a thread. `act` returns the address of the next page or a response.

    If `act` raises one of `catch`, `again` renders the form with the errors; without `again` the error page shows
    them.
    """
    async with sent_form(request, max_files=0, max_fields=max_fields) as sent:
        filled = form.read(sent)

    def answer() -> Response:
        try:
            result = act(filled)
        except catch as error:
            if again is None:
                raise
            with reading(request) as session:
                return again(session, filled.refused(error), error)
        return RedirectResponse(result, status_code=303) if isinstance(result, str) else result

    return await run_in_threadpool(answer)


def status_of(error: ThreewallsError) -> int:
    """Return the HTTP status of a page that shows the form again with this error."""
    return 409 if isinstance(error, Conflict) else 404 if isinstance(error, NotFound) else 422


# --- Inputs for contract fields: a select or a text box, with the meaning of the field.

PREFIX = "field."
"""Prefix of the names of inputs for contract fields."""
ROLES = {"stack": "Must be equal to compare.", "config": "A tuning knob.", "info": "Not compared."}
ANOTHER, ANOTHER_VALUE = "another", "another_value"
"""Inputs for the name and the value of a contract field that the form does not list."""
_HINTS = {
    "count": "A whole number from 1.",
    "whole": "A whole number from 0.",
    "number": "A number.",
    "words": "Words, separated by commas.",
    "counts": "Whole numbers, separated by commas.",
    "layers": "A whole number, or 0 and 1 for each layer, separated by commas.",
}


@dataclass(frozen=True, slots=True)
class ContractInput:
    """An input for a contract field. `choices`: (value, label) pairs of a select. `why`: meaning and role."""

    name: str
    field: str
    why: str
    hint: str
    choices: tuple[tuple[str, str], ...]
    numeric: bool
    value: str
    error: str


def contract_input(name: str, form: Form, before: Value = None) -> ContractInput:
    """Return the input for the contract field `name`, filled with the sent value, else with `before`."""
    field = FIELDS[name]
    choices: tuple[tuple[str, str], ...] = ()
    if field.kind == "flag":
        choices = (("true", "on"), ("false", "off"))
    elif field.kind == "choice":
        choices = tuple((choice, choice) for choice in field.choices)
    hint = _HINTS.get(field.kind, "")
    if field.kind == "words" and field.choices:
        hint = f"Any of {', '.join(field.choices)}."
    typed = form.value(PREFIX + name)
    return ContractInput(
        name=PREFIX + name,
        field=name,
        why=f"{field.meaning} {ROLES[field.role]}",
        hint=hint + (f" In {field.unit}." if field.unit else ""),
        choices=choices,
        numeric=field.kind in ("count", "whole", "number"),
        value=typed or _shown(before),
        error=form.error(PREFIX + name),
    )


def stated(values: Mapping[str, str], prefix: str = PREFIX) -> dict[str, str]:
    """Return the non-empty values of inputs whose name begins with `prefix`, by the rest of the name."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix) and value}


class StatementForm(Form):
    """A form that states values of a run (inputs with `prefix`) or withdraws one (the input `take_back`)."""

    inputs = ("author", "note")
    hidden = ("take_back",)
    prefix: ClassVar[str] = PREFIX

    def stated(self) -> dict[str, object]:
        """Return the entered values by name, with `TAKE_BACK` for the withdrawn one."""
        entered: dict[str, object] = dict(stated(self.values, self.prefix))
        withdrawn = self.value("take_back")
        return entered | ({withdrawn: TAKE_BACK} if withdrawn else {})

    def refused(self, error: ThreewallsError) -> Self:
        """Return the form with `error` at the inputs that it concerns; other errors are shown above the form."""
        errors = self.errors_by_input(error)
        elsewhere = [text for name, text in errors.items() if name not in self.values and name not in self.inputs]
        return replace(self, errors=errors, problem=" ".join(elsewhere) if errors else error.detail)


class ContractForm(Form):
    """A form with inputs for contract fields in addition to its own."""

    @classmethod
    def has_input(cls, name: str) -> bool:
        return name in cls.inputs or name.removeprefix(PREFIX) in FIELDS

    error_path: ClassVar[str] = "fields."
    """Prefix of contract fields in errors."""

    def input_of(self, field: str) -> str:
        name = field.replace(self.error_path, PREFIX, 1) if field.startswith(self.error_path) else field
        return ANOTHER_VALUE if name == PREFIX + self.value(ANOTHER) else name


def _shown(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return contract_value(value)

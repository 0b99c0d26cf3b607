"""Forms as they are sent, read within limits; what is wrong with one is said in words that help."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl

from fastapi import Request
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException

from app.errors import BrokenForm, FieldError, InvalidUpload
from app.web.access.acting import author

AUTHOR = "author"
"""The input of every form that changes something (templates/components/ui.html)."""

_MAX_PART_SIZE = 1024 * 1024
_URL_ENCODED = "application/x-www-form-urlencoded"


@asynccontextmanager
async def sent_form(
    request: Request, *, max_files: int, max_fields: int, max_part_size: int = _MAX_PART_SIZE
) -> AsyncIterator[FormData]:
    """The form of a request; its files are closed at the end. `max_part_size` is of a text field, in bytes.

    Raises BrokenForm, and InvalidUpload for a text field that is too large.
    """
    try:
        if request.headers.get("content-type", "").startswith(_URL_ENCODED):
            form = _read_pairs(await request.body(), max_fields, max_part_size)
        else:
            form = await request.form(max_files=max_files, max_fields=max_fields, max_part_size=max_part_size)
    except HTTPException as error:
        if error.status_code != 400:
            raise
        raise _explained(error.detail, max_files, max_fields, max_part_size) from error
    try:
        yield _signed(form)
    finally:
        await form.close()


def _read_pairs(body: bytes, max_fields: int, max_part_size: int) -> FormData:
    """A form of `name=value&...`. Starlette's parser walks it byte by byte: 0.6 s of processor time a MB."""
    if 3 * body.count(b"%") > len(body):  # an escape has three bytes; half ones take as long as whole ones
        raise HTTPException(400, "Broken escapes.")
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=max_fields)
    except ValueError:
        raise HTTPException(400, "Too many fields.") from None
    if any(len(value) > max_part_size for _, value in pairs):
        raise HTTPException(400, "Part exceeded maximum size.")
    return FormData([*pairs])


def _signed(form: FormData) -> FormData:
    """With the name of whoever is logged in, where a form says who acts."""
    if AUTHOR not in form:
        return form
    stated = form[AUTHOR]
    others = [(name, value) for name, value in form.multi_items() if name != AUTHOR]
    return FormData([*others, (AUTHOR, author(stated) if isinstance(stated, str) else stated)])


def _explained(told: str, max_files: int, max_fields: int, max_part_size: int) -> InvalidUpload:
    """Starlette tells a person's mistake by a few words; these are the first of each."""
    if told.startswith("Part exceeded"):
        limit = f"{max_part_size:,} bytes"
        return InvalidUpload(
            f"A text field of this form is larger than {limit}. Nothing was kept. Shorten `meta`, and send logs as "
            "files; with curl: -F log=@FILE.",
            (FieldError("meta", f"must have at most {limit}, as every text field"),),
        )
    if told.startswith("Too many"):
        what = f"holds at most {max_files} files and {max_fields} text fields"
        kind = told.partition(".")[0]
        return BrokenForm(f"{kind}: a form {what}. Nothing was kept. Send fewer.", (FieldError("body", what),))
    if "boundary" in told:
        why = "says multipart/form-data without a boundary"
        return BrokenForm(
            f"The Content-Type header {why}. Nothing was kept. Let the HTTP client write this header itself.",
            (FieldError("Content-Type", why),),
        )
    return BrokenForm(
        "The body is no whole multipart form: it is damaged, cut off, or not of the boundary that its Content-Type "
        "names. Nothing was kept. Send it again; let the HTTP client make the form, with curl: -F log=@FILE.",
        (FieldError("body", told.rstrip(".")),),
    )

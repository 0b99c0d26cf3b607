"""The parts of an upload's form: its files, its metadata, and nothing that would be left lying unread."""

from collections.abc import Iterator

from starlette.datastructures import FormData, UploadFile

from app.errors import EmptyUpload, FieldError, InvalidUpload
from app.runs.ingest import UploadedFile
from app.runs.upload import Kind

META = "meta"
KINDS: tuple[Kind, ...] = ("log", "config", "events")
_KNOWN = (*KINDS, META)
_SHOWN = 50


def uploaded_files(form: FormData) -> list[UploadedFile]:
    """Its files by kind, in the order they were sent. Raises InvalidUpload naming a part that is none of an upload."""
    _check_names(form)
    return [UploadedFile(kind, sent.filename or kind, sent.file) for kind in KINDS for sent in _sent(form, kind)]


def metadata_of(form: FormData, max_bytes: int) -> bytes | None:
    """`meta` as a text or as a file: clients send either."""
    value = form.get(META)
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    text = value.file.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise InvalidUpload(
            f"The metadata is larger than {max_bytes:,} bytes. Nothing was kept. Shorten `meta`: it is for what is "
            "known of the run; documents go beside the log as `config`.",
            (FieldError(META, f"must have at most {max_bytes:,} bytes"),),
        )
    return text


def _check_names(form: FormData) -> None:
    known = ", ".join(f"`{name}`" for name in _KNOWN)
    unknown = sorted({name[:_SHOWN] for name in form if name not in _KNOWN})
    if unknown:
        sent = ", ".join(f"`{name}`" for name in unknown)
        errors = tuple(FieldError(name, f"is no part of an upload; parts are {known}") for name in unknown)
        missing = " There is no log in this upload." if "log" not in form else ""
        detail = f"The form has a part that nobody would read: {sent}.{missing} Parts are {known}. Nothing was kept."
        raise (EmptyUpload if missing else InvalidUpload)(detail, errors)
    if len(form.getlist(META)) > 1:
        raise InvalidUpload(
            f"`{META}` was sent {len(form.getlist(META))} times. Nothing was kept. Put all into one JSON object.",
            (FieldError(META, f"must be sent once; parts that may be repeated are {', '.join(KINDS)}"),),
        )


def _sent(form: FormData, kind: Kind) -> Iterator[UploadFile]:
    for value in form.getlist(kind):
        if isinstance(value, UploadFile):
            yield value
        else:
            raise InvalidUpload(
                f"The form field `{kind}` holds text, not a file. Nothing was kept. With curl: -F {kind}=@FILE.",
                (FieldError(kind, "must be a file"),),
            )

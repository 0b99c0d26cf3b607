"""The expected errors, as one tree. They are independent of HTTP; `web/errors.py` maps them to statuses.

ThreewallsError
├── InvalidUpload            the upload cannot become a run
│   ├── BrokenForm           the body is not a readable form
│   ├── EmptyUpload
│   ├── NotALog              binary data or an archive instead of text
│   ├── TooLarge             over a size limit, also after decompression
│   │   └── OverQuota        over the project's storage quota
│   ├── BrokenCompression
│   └── InvalidMetadata      one FieldError per field
├── UnreadLog                no reader recognises the log
├── InvalidChange            a change of existing data is refused; one FieldError per field
├── InvalidQuery             an invalid filter or page number
├── UsageError               invalid options or files of a command
├── NotFound
├── NotAllowed               the caller lacks the permission
├── TooMany                  over a rate limit
│   ├── TooManyRuns          over the project's quota of runs within 24 hours
│   └── TooManyMessages      over the project's limit of messages
├── Conflict                 the current state does not allow it: an archived project, a used Idempotency-Key
│   ├── OffsetConflict       a piece of a log that does not begin where the stored part ends
│   ├── EditConflict         someone else changed it since it was read
│   └── NotReady             the run is not processed yet
└── Unavailable              a required service did not answer
    ├── Overloaded           too many requests are waiting
    ├── DiskFull             too little disk space
    └── DamagedObject        a stored log is missing or damaged
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass


@dataclass(frozen=True)
class FieldError:
    """An invalid field. `field`: its path as sent, for example `meta.window.first`. `meant`: the likely valid name."""

    field: str
    message: str
    meant: str = ""


class ThreewallsError(Exception):
    """An expected error. `title`: its kind. `detail`: what happened, what was saved and what to do next."""

    title = "Error"

    def __init__(self, detail: str, errors: tuple[FieldError, ...] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors


class InvalidUpload(ThreewallsError):
    title = "Invalid upload"
    problem = ""

    @classmethod
    def of_file(cls, problem: str, advice: str) -> InvalidUpload:
        """Return the error of an uploaded file. `problem` alone is for files that are read after the upload."""
        error = cls(f"{problem} Nothing was saved. {advice}")
        error.problem = problem
        return error


class BrokenForm(InvalidUpload):
    title = "Invalid form"


class EmptyUpload(InvalidUpload):
    title = "The file is empty"


class NotALog(InvalidUpload):
    title = "This is not a text log"


class UnreadLog(ThreewallsError):
    title = "Unknown log format"


class TooLarge(InvalidUpload):
    title = "The upload is too large"


class OverQuota(TooLarge):
    title = "The project's storage quota is used up"


class BrokenCompression(InvalidUpload):
    title = "The compressed file cannot be read"


class InvalidMetadata(InvalidUpload):
    title = "Invalid metadata"


class InvalidChange(ThreewallsError):
    title = "Invalid change"

    @classmethod
    def of(cls, *errors: FieldError, outcome: str = "Nothing was changed") -> InvalidChange:
        """Return the error that names the fields to correct. `outcome`: what it means for the change."""
        names = ", ".join(dict.fromkeys(error.field for error in errors))
        return cls(f"Correct {names}. {outcome}.", errors)

    @classmethod
    def of_field(cls, field: str, message: str, outcome: str = "Nothing was changed") -> InvalidChange:
        """Return the error of one field. `message` follows the name of the field: `must be ...`."""
        return cls(f"{outcome}: the {field.replace('_', ' ')} {message}.", (FieldError(field, message),))


class InvalidQuery(ThreewallsError):
    title = "Invalid filter"


class NotFound(ThreewallsError):
    title = "Not found"

    @classmethod
    def of(cls, name: str) -> NotFound:
        """Return the error for something with this name, such as `Run 61`."""
        return cls(f"{name} does not exist. It may have been deleted.")


class NotAllowed(ThreewallsError):
    title = "Not allowed"


class TooMany(ThreewallsError):
    """Raised at a rate limit. `retry_after`: seconds until the next attempt."""

    title = "Too many requests"

    def __init__(self, detail: str, retry_after: int) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class TooManyRuns(TooMany):
    title = "The project's daily run quota is used up"


class TooManyMessages(TooMany):
    title = "Too many messages"


class Conflict(ThreewallsError):
    title = "Conflict with the current state"


class OffsetConflict(Conflict):
    """Raised for a piece at the wrong place. `offset`: the byte at which it must begin, the size of the stored part."""

    title = "The log does not continue here"

    def __init__(self, detail: str, offset: int) -> None:
        super().__init__(detail)
        self.offset = offset


class EditConflict(Conflict):
    title = "Changed by someone else"


class NotReady(Conflict):
    title = "This run is not processed yet"


class Unavailable(ThreewallsError):
    """Raised when a required service fails. `retry_after`: seconds until another attempt makes sense."""

    title = "A service did not answer"
    retry_after = 30


class Overloaded(Unavailable):
    title = "The service is overloaded"
    retry_after = 5


class DiskFull(Unavailable):
    title = "The disk is full"
    retry_after = 300


class DamagedObject(Unavailable):
    title = "A stored log cannot be read"


def new_error_id() -> str:
    """Return an id for an unexpected error, which the user sees and the log contains."""
    return uuid.uuid4().hex[:8]


class UsageError(ThreewallsError):
    """Invalid or contradicting options or files of a command. The message says what to change."""

    title = "Invalid command line"

"""What can go wrong, as one tree. Errors know nothing of HTTP; `web/errors.py` maps them.

ThreewallsError
├── InvalidUpload            what was sent cannot become a run
│   ├── BrokenForm           no form can be read out of the body
│   ├── EmptyUpload
│   ├── NotALog              binary data, or an archive instead of a text
│   ├── TooLarge             over a size limit, also after decompression
│   │   └── OverQuota        of what the files of a project may take
│   ├── BrokenCompression
│   └── InvalidMetadata      carries one FieldError a field
├── InvalidChange            a change of something that is there already, refused; one FieldError a field
├── InvalidQuery             a filter or a page number that means nothing
├── NotFound
├── NotAllowed               who asks may not do it there
├── TooMany                  of what a project may do within a time
│   ├── TooManyRuns          more than it may begin within 24 hours
│   └── TooManyMessages      more than it may send
├── Conflict                 the same Idempotency-Key with another content
│   ├── OffsetConflict       a piece of a log that does not go on where what is held ends
│   ├── EditConflict         somebody else changed it since it was read
│   └── NotReady             a run that must be read first, and is not yet
└── Unavailable              a service that we need did not answer
    ├── Overloaded           more requests wait than can be answered soon
    ├── DiskFull             no room for what was sent, or too little is left
    └── DamagedObject        a stored log is missing, or is not what was stored
"""

import uuid
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field that was refused: `field` is its path as the user wrote it, e.g. `meta.window.first`."""

    field: str
    message: str


class ThreewallsError(Exception):
    """`title` names the kind; `detail` says what happened, what was kept and what to do next."""

    title = "Something went wrong"

    def __init__(self, detail: str, errors: tuple[FieldError, ...] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors


class InvalidUpload(ThreewallsError):
    title = "This upload cannot be read"


class BrokenForm(InvalidUpload):
    title = "This form cannot be read"


class EmptyUpload(InvalidUpload):
    title = "The file is empty"


class NotALog(InvalidUpload):
    title = "This is not a text log"


class UnreadLog(ThreewallsError):
    title = "No reader knows this log"


class TooLarge(InvalidUpload):
    title = "The upload is too large"


class OverQuota(TooLarge):
    title = "The project's quota is used up"


class BrokenCompression(InvalidUpload):
    title = "The compressed file cannot be read"


class InvalidMetadata(InvalidUpload):
    title = "The metadata is not valid"


class InvalidChange(ThreewallsError):
    title = "This change cannot be made"


class InvalidQuery(ThreewallsError):
    title = "This filter cannot be understood"


class NotFound(ThreewallsError):
    title = "Not found"


class NotAllowed(ThreewallsError):
    title = "Not allowed"


class TooMany(ThreewallsError):
    """`retry_after`: seconds until it may be done again."""

    title = "Too often"

    def __init__(self, detail: str, retry_after: int) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class TooManyRuns(TooMany):
    title = "The project's quota of runs is used up"


class TooManyMessages(TooMany):
    title = "Too many messages"


class Conflict(ThreewallsError):
    title = "This key was used before"


class OffsetConflict(Conflict):
    """`offset` is the byte at which the piece must begin: what is held of the file."""

    title = "The log does not go on here"

    def __init__(self, detail: str, offset: int) -> None:
        super().__init__(detail)
        self.offset = offset


class EditConflict(Conflict):
    title = "Somebody changed it meanwhile"


class NotReady(Conflict):
    title = "This run is not read yet"


class Unavailable(ThreewallsError):
    """`retry_after`: seconds after which it is worth another attempt."""

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
    """Return an id for an unexpected error: people are told it, and the log has the details under it."""
    return uuid.uuid4().hex[:8]

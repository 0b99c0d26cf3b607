"""How a command ends that could not do what it was for: exit code, sentence, and the same for a machine."""

from dataclasses import dataclass
from typing import Any

from app.client.errors import Refused, UsageError
from app.client.exit_codes import CRASH, SERVICE, USAGE
from app.client.plain import one_line, plain
from app.client.streams import surprise
from app.errors import FieldError, ThreewallsError


@dataclass(frozen=True, slots=True)
class Failure:
    exit_code: int
    said: str
    errors: tuple[FieldError, ...] = ()

    @property
    def lines(self) -> str:
        return plain(self.said) + "".join(f"\n  {one_line(one.field)}: {plain(one.message)}" for one in self.errors)

    def as_json(self) -> dict[str, Any]:
        fields = [{"field": one.field, "message": one.message} for one in self.errors]
        return {"exit_code": self.exit_code, "error": self.said, "errors": fields}


def failure(error: Exception, url: str, *, of_upload: bool = False) -> Failure:
    """Of any error. `url`: the service's, that a refusal does not name itself.

    A refusal is a matter of the command line where it names what was stated there; a log that holds nothing is not.
    """
    match error:
        case UsageError():
            return Failure(USAGE, error.detail)
        case Refused():
            of_usage = error.status == 422 and (bool(error.errors) or not of_upload)
            return Failure(USAGE if of_usage else SERVICE, f"{url} {error.detail}", error.errors)
        case ThreewallsError():
            return Failure(SERVICE, error.detail, error.errors)
    return Failure(SERVICE if isinstance(error, OSError) else CRASH, surprise(error))

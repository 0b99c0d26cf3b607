"""A form as it was sent, and what is wrong with it, by input."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from starlette.datastructures import FormData

from app.errors import ThreewallsError

MAX_FIELDS = 12
_MOST_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class Form:
    """`problem`: what is wrong with none of its inputs. `several`: of inputs that stand there more than once."""

    values: Mapping[str, str] = field(default_factory=dict)
    several: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @classmethod
    def read(cls, sent: FormData) -> Self:
        texts = [(name, value[:_MOST_CHARACTERS]) for name, value in sent.multi_items() if isinstance(value, str)]
        several: dict[str, tuple[str, ...]] = {}
        for name, value in texts:
            several[name] = (*several.get(name, ()), value)
        return cls(dict(texts), several)

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def all(self, name: str) -> tuple[str, ...]:
        return self.several.get(name, ())

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def refused(self, error: ThreewallsError) -> Self:
        if error.errors:
            return replace(self, errors={one.field: one.message for one in error.errors})
        return replace(self, problem=error.detail)

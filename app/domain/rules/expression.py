"""Conditions of rules: three-valued expressions in CEL (Common Expression Language, https://cel.dev) over facts.

An unknown fact is absent. CEL's `&&` and `||` ignore it if the other side decides (`unknown && false` is false).
Otherwise the expression cannot be evaluated, and the result is the names of the missing facts.

Facts that are known to be unset are null: write `vpp != null && vpp > 1`. Counts are int, measurements are double, and
CEL does not mix them: write `exposed_comm_frac > 0.5`, `double(gpus) * 0.5`.
"""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

from app.domain.contract.values import shown
from app.domain.numbers import THIN

# `cel` imports its command line with a terminal toolkit, which would add 0.3 s to every start.
sys.modules.setdefault("cel.cli", ModuleType("cel.cli"))

import cel  # noqa: E402

_ENV = re.compile(r"\benv\.([A-Za-z_]\w*)")
_TEXTS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_BOUND = re.compile(r"\.(?:exists|all|exists_one|map|filter)\(\s*([A-Za-z_]\w*)\s*,")
"""Names bound by CEL's macros: `modules.exists(m, m == "moe")`."""
_BRANCH = re.compile(r"[?:]\s*(?:\"([^\"]*)\"|(\d+))(?=\s*(?:[:)]|$))")
"""A branch of `condition ? value : value` that is nothing but a text or a number."""
ENV = "env"


class RuleError(ValueError):
    """An error in a rule, with a sentence for its author."""


def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up; 0 for b = 0, because an expression must not fail."""
    return -(-a // b) if b else 0


def version_at_least(version: object, least: str) -> bool:
    """Return whether a version such as `2.7.0+cu12` is at least `2.7`."""
    return _numbers(str(version)) >= _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version.split("+", maxsplit=1)[0])[:4])


def _largest(a: float, b: float) -> float:
    return max(a, b)


def _smallest(a: float, b: float) -> float:
    return min(a, b)


FUNCTIONS: dict[str, Callable[..., object]] = {
    "max": _largest,
    "min": _smallest,
    "ceil_div": ceil_div,
    "version_at_least": version_at_least,
}


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A compiled expression. `names`: the facts it uses; environment variables as `env.NAME`."""

    source: str
    names: tuple[str, ...]
    program: cel.Program

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and other.source == self.source

    def __hash__(self) -> int:
        return hash(self.source)

    def __str__(self) -> str:
        return self.source

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the plain values between which it chooses, in order: `tp == 1 ? "a" : "b"` has a and b."""
        return tuple(dict.fromkeys(text or number for text, number in _BRANCH.findall(self.source)))


@dataclass(frozen=True, slots=True)
class Unknown:
    """The result of an expression with unknown facts: their names."""

    missing: tuple[str, ...]


class FactContext:
    """Facts prepared for many expressions: typed values by name (see `facts.typed`), without unknown ones."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = dict(values)
        plain = {name: value for name, value in self.values.items() if not name.startswith(f"{ENV}.")}
        variables = {
            name.removeprefix(f"{ENV}."): value for name, value in self.values.items() if name.startswith(f"{ENV}.")
        }
        self._context = cel.Context({**plain, ENV: variables}, FUNCTIONS)

    def ask(self, expression: Expression) -> object | Unknown:
        """Return the value, or the missing facts.

        Raises RuleError if the expression does not match the types of its facts.
        """
        try:
            value: object = expression.program.execute(self._context)
        except Exception as problem:
            missing = tuple(name for name in expression.names if name not in self.values)
            if missing and isinstance(problem, RuntimeError | LookupError):
                return Unknown(missing)
            what = str(problem).split(". ", maxsplit=1)[0]
            raise RuleError(f"`{expression.source}` cannot be evaluated: {what}.") from None
        return value


@lru_cache(maxsize=4096)
def compile_expression(source: str) -> Expression:
    """Compile an expression. Raises RuleError for invalid syntax."""
    try:
        program = cel.compile(source)
    except ValueError as problem:
        raise RuleError(f"`{source}` is not a valid expression: {' '.join(str(problem).split())}.") from None
    text = _TEXTS.sub("''", source)
    bound = set(_BOUND.findall(text))
    names = [name for name in program.variables() if name not in bound and name != ENV]
    names += [f"{ENV}.{name}" for name in _ENV.findall(text)]
    return Expression(source, tuple(dict.fromkeys(names)), program)


def false_part(expression: Expression, values: Mapping[str, object]) -> Expression:
    """Return the first part between top-level `&&` that is false; the whole expression if no part alone decides."""
    context = FactContext(values)
    parts = map(compile_expression, _conjuncts(expression.source))
    return next((part for part in parts if context.ask(part) is False), expression)


def _conjuncts(source: str) -> list[str]:
    """Split at top-level `&&`; not where a top-level `||` or `?` binds more loosely."""
    text, depth, cuts = _TEXTS.sub(lambda match: "'" * len(match[0]), source), 0, [-2]
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0 and (sign == "?" or text.startswith("||", at)):
            return [source]
        if depth == 0 and text.startswith("&&", at):
            cuts.append(at)
    return [source[start + 2 : end].strip() for start, end in zip(cuts, [*cuts[1:], len(source)], strict=True)]


# --- Insert the facts of a run into texts of a rule: `{gpus} GPUs`, `{exposed_comm_frac:.0%} of the step`.

_PLACE = re.compile(r"\{(?P<name>[A-Za-z_][\w.]*)(?::(?P<form>[^{}]*))?\}")
_MARKS = re.compile("[\ue000-\ue002]")


def marked(name: str, value: str) -> str:
    """Enclose a fact in private-use characters, so that a page can find it again."""
    return f"\ue000{name}\ue001{_MARKS.sub('', value)}\ue002"


def filled(text: str, values: Mapping[str, object], mark: Callable[[str, str], str] | None = None) -> str:
    """Return the text with its facts; an unknown fact reads `unknown`. `mark`: formats name and value."""

    def place(match: re.Match[str]) -> str:
        if match["name"] not in values:
            return "unknown"
        value = fact_text(values[match["name"]], match["form"] or "")
        return value if mark is None else mark(match["name"], value)

    return _PLACE.sub(place, text)


def is_filled(text: str, values: Mapping[str, object]) -> bool:
    """Return whether `filled` leaves no fact unknown."""
    return all(match["name"] in values for match in _PLACE.finditer(text))


def with_names(text: str) -> str:
    """Return the text of a rule without a run: with the names of its facts in backticks."""
    return _PLACE.sub(lambda match: f"`{match['name']}`", text)


def fact_text(value: object, form: str = "") -> str:
    """Format a fact. `form`: Python format of numbers; a percentage is spaced as on pages: `30 %`."""
    if isinstance(value, bool) or value is None:
        return shown(value)
    if isinstance(value, float):
        try:
            return format(value, form or ".4g").replace("%", f"{THIN}%")
        except ValueError:
            return format(value, ".4g")
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "none"
    return str(value)

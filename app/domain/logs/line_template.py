"""Describes the step lines of a trainer that no reader knows: text with placeholders for its values.

`global step {iteration}: loss = {loss} ({step_time_s} sec/step)`. A placeholder is the name of a column with its unit
(`Column names` below); `{}` skips any text. Any number of blanks matches any other, and the text may begin anywhere in
a line.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.domain.logs.iterations import IterationRows, number, word
from app.domain.logs.lines import Notes
from app.domain.logs.steps import Steps, text_around
from app.domain.run import LineExample

# --- Maps the names that other tools give to values of an iteration to our columns, with their units. Used for series
# from outside: the generic formats, imported histories, and lines that a user describes. A step time needs a unit, in
# its name (`step_time_s`) or stated apart; a name without one is refused, never guessed.

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3} | dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0)
"""Units of time in seconds."""

_BYTES = {
    "bytes": 1.0, "b": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
    "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
}  # fmt: skip

_ITERATIONS = frozenset(
    {"iteration", "iterations", "iter", "iters", "it", "step", "steps", "global_step", "globalstep", "training_step",
     "train_step", "trainer_global_step", "train_global_step", "_step", "n_iter", "num_steps", "update", "updates"}
)  # fmt: skip
_STEP_TIMES = frozenset(
    {"step_time", "iteration_time", "iter_time", "step_duration", "iteration_duration", "time_per_step",
     "time_per_iteration", "elapsed_time_per_iteration", "train_step_timing", "train_step_time", "step_timing",
     "perf_time_per_step", "perf_step_time", "timing_step", "batch_time", "time_per_batch", "perf_train_step_time",
     "dt"}
)  # fmt: skip
_RATES = frozenset(
    {"iterations_per_s", "iterations_per_sec", "iterations_per_second", "iters_per_s", "iters_per_sec",
     "iters_per_second", "it_s", "its_per_s", "steps_per_s", "steps_per_sec", "steps_per_second",
     "train_steps_per_second", "global_step_sec", "batches_per_second"}
)  # fmt: skip
_PLAIN = {
    "lm_loss": "lm_loss", "loss": "loss", "train_loss": "loss", "training_loss": "loss",
    "reduced_train_loss": "lm_loss", "lm_loss_value": "lm_loss", "loss_train": "loss", "train_lm_loss": "lm_loss",
    "grad_norm": "grad_norm", "gradient_norm": "grad_norm", "train_grad_norm": "grad_norm",
    "lr": "learning_rate", "learning_rate": "learning_rate", "train_lr": "learning_rate",
    "train_learning_rate": "learning_rate",
    "tokens_per_s_per_gpu": "tokens_per_s_per_gpu", "tokens_per_sec_per_gpu": "tokens_per_s_per_gpu",
    "tokens_per_second_per_gpu": "tokens_per_s_per_gpu", "tokens_per_second_per_device": "tokens_per_s_per_gpu",
    "tokens_s_gpu": "tokens_per_s_per_gpu", "tokens_sec_gpu": "tokens_per_s_per_gpu", "tgs": "tokens_per_s_per_gpu",
    "throughput_device_tokens_per_sec": "tokens_per_s_per_gpu", "tps_per_gpu": "tokens_per_s_per_gpu",
    "tflops_per_gpu": "tflops_per_gpu", "tflop_s_gpu": "tflops_per_gpu", "tflops_per_device": "tflops_per_gpu",
    "throughput_per_gpu_tflop_s_gpu": "tflops_per_gpu", "throughput_tflops_device": "tflops_per_gpu",
    "tflop_s_device": "tflops_per_gpu", "model_tflops_per_gpu": "tflops_per_gpu", "tflops_gpu": "tflops_per_gpu",
    "gbs": "global_batch_size", "global_batch_size": "global_batch_size",
    "samples": "consumed_samples", "consumed_samples": "consumed_samples", "tokens": "tokens",
    "skipped_iterations": "skipped_iterations", "nan_iterations": "nan_iterations",
}  # fmt: skip
_MEMORY = frozenset(
    {"peak_memory", "max_memory", "max_memory_allocated", "peak_memory_allocated", "memory_peak", "max_allocated",
     "mem_max_allocated", "peak_allocated", "perf_max_memory_allocated", "max_mem_allocated", "peak_gpu_memory"}
)  # fmt: skip
KNOWN = frozenset(_PLAIN.values())
"""Columns besides iteration, times and memory that only a table of iterations has."""
RESERVED = frozenset({"step_time_true_ms", "log_file", "log_line", "total_iterations"})
"""Columns that we compute. Series from outside must not replace them."""


@dataclass(frozen=True, slots=True)
class Column:
    """Our name of a column. Its values are `scale` times those of the source, divided by them if `is_rate`."""

    name: str
    scale: float = 1.0
    is_rate: bool = False

    def value(self, number: float) -> float:
        if self.is_rate:
            return self.scale / number if number > 0 else float("nan")
        return number * self.scale


def column_of(printed: str, unit: str = "") -> Column:
    """Return our column for a name of another tool; `unit` is stated apart.

    Raises ValueError with a sentence for a step time without a unit, and for names that say nothing.
    """
    name = "_step" if printed.strip() == "_step" else word(printed)
    if name in _ITERATIONS:
        return Column("iteration")
    if name in _RATES:
        return Column("step_time_ms", 1000.0, is_rate=True)
    plain, unit = _with_unit(name, word(unit))
    if plain in _STEP_TIMES and unit not in SECONDS:
        raise ValueError(f"{printed[:100]!r} has no unit of time: call it {plain}_ms or {plain}_s, or state its unit")
    if not name or name in RESERVED:
        raise ValueError(f"{printed[:100]!r} cannot be the name of a column")
    column = Column(_PLAIN.get(name, name))
    if plain in _STEP_TIMES:
        column = Column("step_time_ms", SECONDS[unit] * 1000)
    elif plain in _MEMORY and unit in _BYTES:
        column = Column("peak_memory_bytes", _BYTES[unit])
    elif plain.startswith("timer_") and unit in SECONDS:
        column = Column(f"{plain}_ms", SECONDS[unit] * 1000)
    return column


_UNIT_IN_NAME = re.compile(r"_(ns|us|ms|s|sec|secs|second|seconds|bytes|b|[kmgt]i?b)\Z")


def _with_unit(name: str, stated: str) -> tuple[str, str]:
    """Return a name without the unit at its end, and the unit: the stated one first."""
    match = _UNIT_IN_NAME.search(name)
    plain = name[: match.start()] if match else name
    plain = plain.removesuffix("_in") if match else plain
    return plain, stated or (match[1] if match else "")


# --- The description of a line.

TRAINER = "described lines"

MAX_TEMPLATE = 500
"""Characters."""
MAX_PLACEHOLDERS = 20
MAX_SKIPPED = 300
"""Bytes that `{}` may skip."""
MAX_LINE = 2000
"""Bytes of a line that are read on either side of the template's key."""
MOST_TRIES = 5
"""Places of a line at which a template is tried."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_NUMBER = re.compile(
    rb" ?([-+]?(?:(?:\d{1,3}(?:,\d{3}){1,6}(?!\d)|\d{1,30})(?:\.\d{0,30})?(?:[eE][-+]?\d{1,4})?|\.\d{1,30}|nan|inf))"
)


@dataclass(frozen=True, slots=True)
class LineTemplate:
    """A template as parts in order: a text, a column whose number follows, or None for text to skip."""

    parts: tuple[bytes | Column | None, ...]

    @property
    def key(self) -> bytes:
        """Return the longest word of its texts, which every line contains."""
        words = (part for text in self.parts if isinstance(text, bytes) for part in text.split())
        return max(words, key=len)

    def read(self, line: bytes) -> dict[str, float] | None:
        """Return the values of a line by column; None for another line."""
        line = b" ".join(line.split())
        first = self.parts[0] if isinstance(self.parts[0], bytes) else b""
        begin = -1
        for _ in range(MOST_TRIES):
            begin = line.find(first, begin + 1)
            if begin < 0:
                return None
            if (values := self._read_from(line, begin)) is not None:
                return values
        return None

    def _read_from(self, line: bytes, at: int) -> dict[str, float] | None:
        values: dict[str, float] = {}
        skipped = 0
        for part in self.parts:
            if part is None:
                skipped = MAX_SKIPPED
                continue
            if isinstance(part, bytes):
                place = line.find(part, at, at + skipped + len(part))
                if place < 0:
                    return None
                at = place + len(part)
            else:
                match = _NUMBER.search(line, at, at + skipped) if skipped else _NUMBER.match(line, at)
                value = number(match[1].replace(b",", b"")) if match else None
                if match is None or value is None:
                    return None
                values.setdefault(part.name, part.value(value))
                at = match.end()
            skipped = 0
        return values


def read_template(text: str) -> LineTemplate:
    """Read a template. Raises ValueError with a sentence that says what to change."""
    text = " ".join(text.split())
    if not text:
        raise ValueError(
            "is empty: copy a step line and replace its numbers, as in `step {iteration}: {step_time_s} s`"
        )
    if len(text) > MAX_TEMPLATE:
        raise ValueError(f"must have at most {MAX_TEMPLATE} characters")
    texts, names = _PLACEHOLDER.split(text)[::2], _PLACEHOLDER.findall(text)
    if len(names) > MAX_PLACEHOLDERS:
        raise ValueError(f"must have at most {MAX_PLACEHOLDERS} placeholders")
    if any("{" in part or "}" in part for part in texts):
        raise ValueError("has an unmatched brace; placeholders look like {iteration}")
    columns = [column_of(name) if name.strip() else None for name in names]
    stated = [column.name for column in columns if column is not None]
    if twice := {name for name in stated if stated.count(name) > 1}:
        raise ValueError(f"states {', '.join(sorted(twice))} twice")
    if "step_time_ms" not in stated:
        raise ValueError("needs the step time as {step_time_ms} or {step_time_s}, or {iterations_per_s}")
    if "" in texts[1:-1]:
        raise ValueError("has two placeholders without text between them; keep the text of the line there")
    parts: list[bytes | Column | None] = []
    for index, literal in enumerate(texts):
        if literal and (index or literal.strip()):
            parts.append(literal.encode())
        if index < len(columns):
            parts.append(columns[index])
    while parts and parts[-1] is None:
        parts.pop()
    template = LineTemplate(tuple(parts))
    if not any(isinstance(part, bytes) and len(max(part.split(), key=len, default=b"")) >= 2 for part in parts):
        raise ValueError("needs, besides its placeholders, a word that occurs only in step lines")
    return template


class DescribedReader:
    """Reads the lines of a template. Lines without an iteration are counted from 1."""

    def __init__(self, template: LineTemplate, notes: Notes) -> None:
        self.keys: Sequence[bytes] = (template.key,)
        self._template = template
        self._steps = Steps(TRAINER, notes)
        self._notes = notes
        self._count = 0

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        text = text_around(data, start, end, hit, before=MAX_LINE, after=MAX_LINE)
        values = self._template.read(text)
        if values is None:  # keys that follow closely have nearly the same text around them
            limit = min(end, hit + MAX_LINE // 2)
            overwritten = data.find(b"\r", hit, limit)
            return limit if overwritten < 0 else overwritten
        self._count += 1
        iteration = values.pop("iteration", float(self._count))
        self._steps.add({"iteration": iteration} | values, line)
        return min(end, hit + MAX_LINE)

    def collect(self) -> IterationRows:
        rows = self._steps.rows
        if not rows.lines:
            self._notes.problem("no described line", "No line of the log matches the stated line template.")
        return rows


# --- Suggests a template for a line that looks like a step.

_ANY_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3}){1,6}|\d{1,30})(?:\.\d{1,30})?(?:[eE][-+]?\d{1,4})?(?![\d.]{0,3}\d)"
)
_COUNTER = re.compile(r"(?:^|[^a-z])(?:step|iter|iteration|update)s?['\"]?\W{0,4}\Z", re.IGNORECASE)
_LOSS = re.compile(r"(\w*loss)['\"]?\s{0,3}[:=]?\s{0,3}\Z", re.IGNORECASE)
_TIME = re.compile(r"(?:time|elapsed|duration|took|dt|latency|timing)\W{0,8}(\w{0,8}\W{0,4})\Z", re.IGNORECASE)
_UNIT = re.compile(r"\s?(ms|us|secs?|seconds?|s)(?:\s?/\s?(?:step|iter\w{0,8}|it))?(?![\w/])", re.IGNORECASE)
_RATE = re.compile(r"\s?(?:it|iter|steps?)s?\s?/\s?s(?:ec)?\b", re.IGNORECASE)
_BRACES = re.compile(r"[{}]+")
_FOLLOWING = re.compile(r" ?[A-Za-z/%]{1,12}")
_TIMES = {"iterations_per_s"} | {f"step_time_{unit}" for unit in SECONDS}


def draft_template(examples: Iterable[LineExample]) -> str:
    """Return the first draft of a template from lines that look like steps; empty without one."""
    return next((draft for line in examples if (draft := suggest_template(line.example))), "")


def suggest_template(line: str) -> str:
    """Return a draft of a template for a line that looks like a step, with its numbers as placeholders.

    A number whose meaning the line does not show is `{}`: the user names it. Empty for a line without a counter.
    """
    line = " ".join(line.split())[:MAX_TEMPLATE]
    numbers = list(_ANY_NUMBER.finditer(line))
    names: dict[int, str] = {}
    for match in numbers:
        name = _meaning(line[: match.start()], line[match.end() :])
        is_time = name in _TIMES
        if name and name not in names.values() and not (is_time and _TIMES & {*names.values()}):
            names[match.start()] = name
    if "iteration" not in names.values():
        return ""
    first = min(names)
    last = max(names) if _TIMES & {*names.values()} else numbers[-1].start()
    at = max(line.rfind(" ", 0, max(line.rfind(" ", 0, first), 0)) + 1, 0)
    template = ""
    for match in numbers:
        if at <= match.start() <= last:
            template += _BRACES.sub("{}", line[at : match.start()]) + "{" + names.get(match.start(), "") + "}"
            at = match.end()
    following = _FOLLOWING.match(line[at:])
    return (template + (following[0] if following else ""))[:MAX_TEMPLATE]


def _meaning(before: str, after: str) -> str:
    if _COUNTER.search(before):
        return "iteration"
    if loss := _LOSS.search(before):
        return word(loss[1])
    if _RATE.match(after):
        return "iterations_per_s"
    unit = _UNIT.match(after)
    if unit:
        return f"step_time_{unit[1].lower()}"
    if time := _TIME.search(before):
        stated = word(time[1])
        return f"step_time_{stated}" if stated in SECONDS else ""
    return ""

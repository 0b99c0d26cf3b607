"""Runs the readers of all kinds of lines over a log and assembles their results into one `ParsedLog`."""

import re
from collections.abc import Sequence

import numpy as np

from app.domain.logs.arguments import contract_fields
from app.domain.logs.events import ENDS, FAILURES, EventReader
from app.domain.logs.iterations import IterationRows, RecordReader, Template, number
from app.domain.logs.line_template import DescribedReader, LineTemplate
from app.domain.logs.lines import Notes, quote, unwrap
from app.domain.logs.memory import MemoryReader
from app.domain.logs.progress_bars import HuggingFaceReader, LightningReader
from app.domain.logs.scanner import LineReader, Scanner
from app.domain.logs.series import Series, build
from app.domain.logs.settings import DumpReader, merge
from app.domain.logs.steps import choose
from app.domain.logs.timers import TimerReader
from app.domain.logs.trainers import (
    MEGATRON_BRIDGE,
    MEGATRON_LM,
    MEGATRON_SHAPE,
    BridgeStepReader,
    DeepSpeedEngineReader,
    DeepSpeedPipelineReader,
    GpuReader,
    MaxTextReader,
    NemoReader,
    PithTrainReader,
    SlimeReader,
    TorchtitanReader,
    VerlReader,
)
from app.domain.run import ParsedLog, Stated, Value

# --- Names the trainer of a log: the family with most iteration lines, refined by words that only one fork prints.

FLAGSCALE = "FlagScale"
MINDSPEED = "MindSpeed"

_WORDS = {
    b"flagscale/": FLAGSCALE,
    b"mindspeed": MINDSPEED,
    b"ModelLink/": MINDSPEED,
}
"""Parts of module names and paths in warnings and tracebacks. These trainers print Megatron-LM's own lines, so nothing
else identifies them. Without such a word the log counts as Megatron-LM's."""


KNOWN_FORMATS = (
    "Megatron-LM",
    "Megatron-Bridge",
    "Megatron-DeepSpeed",
    "NeMo",
    "Primus",
    "FlagScale",
    "MindSpeed",
    "pith-train",
    "torchtitan",
    "DeepSpeed",
    "MaxText",
    "Hugging Face Trainer",
    "Lightning",
    "veRL",
    "slime",
)
"""Display names of the trainers whose logs are read."""


class FamilyReader:
    """Collects the forks whose words appear in a log."""

    keys: Sequence[bytes] = tuple(_WORDS)

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:  # noqa: ARG002 - as LineReader has it
        self.seen.update(family for word, family in _WORDS.items() if data.startswith(word, hit - len(word)))
        return hit


def name_trainer(rows: IterationRows, *, is_bridge: bool, is_megatron: bool, words: set[str]) -> str:
    """Return the family with most iteration lines, on a tie the one with the last line; "" when unknown."""
    counts: dict[str, tuple[int, int]] = {}
    for table in rows.tables:
        if table.rows:
            count, last = counts.get(table.trainer, (0, 0))
            counts[table.trainer] = (count + len(table.rows), max(last, table.rows[-1]))
    trainer = max(counts, key=lambda name: counts[name], default=MEGATRON_LM if is_megatron else "")
    if is_bridge and trainer in ("", MEGATRON_LM):
        return MEGATRON_BRIDGE
    return min(words) if trainer == MEGATRON_LM and words else trainer


# --- Reads the line in which Megatron-LM prints its parallelism before its arguments.

_SIZES = re.compile(r"([a-z][a-z -]{0,40}?) size: {1,4}(\d{1,7})(?=,|\s|\Z)")
_FIELDS = {
    "using world": "gpus",
    "data-parallel": "dp",
    "context-parallel": "cp",
    "tensor-model-parallel": "tp",
    "pipeline-model-parallel": "pp",
}
_REACH = 600
"""Bytes after the key within which the line ends."""


class WorldSizeReader:
    keys: Sequence[bytes] = (b"using world size:",)

    def __init__(self) -> None:
        self.stated: dict[str, Stated] = {}

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        text = data[max(start, hit - len(self.keys[0])) : min(end, hit + _REACH)].decode("utf-8", "replace")
        for name, size in _SIZES.findall(text):
            field = _FIELDS.get(name.strip(" ,"))
            if field and int(size) > 0:
                self.stated[field] = Stated(
                    int(size), "log line", f"line {line}: {name.strip()} size: {size}", line=line
                )
        return end


# --- Reads the versions that libraries print.
#
# NCCL prints `NCCL version 2.27.3+cuda12.9` with NCCL_DEBUG=VERSION or higher. The banner of NVIDIA's containers has
# `PyTorch Version 2.9.0a0+145a3a7`. Versions are shown only; they are not part of any key.

_VERSION = re.compile(rb"(NCCL version|PyTorch Version) (\d[\w.]{0,30})(?:\+(cuda(\d[\d.]{0,10})|\w{1,40}))?")
_VERSION_FIELDS = {b"NCCL version": "nccl_version", b"PyTorch Version": "pytorch_version"}
_VERSION_REACH = 100
"""Bytes after the key within which the version ends."""


class VersionReader:
    """Keeps the first version of each library, because other ranks only repeat it."""

    keys: Sequence[bytes] = (b"NCCL version ", b"PyTorch Version ")

    def __init__(self) -> None:
        self.stated: dict[str, Stated] = {}

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        stop = min(end, hit + _VERSION_REACH)
        if match := _VERSION.search(data, max(start, hit - len(b"PyTorch Version ")), stop):
            detail = f"line {line}: {match[0].decode('ascii', 'replace')}"
            build = b"" if match[4] or not match[3] else b"+" + match[3]
            self._keep(_VERSION_FIELDS[match[1]], match[2] + build, detail, line)
            if match[4]:
                self._keep("cuda_version", match[4], detail, line)
        return hit

    def _keep(self, field: str, version: bytes, detail: str, line: int) -> None:
        self.stated.setdefault(field, Stated(version.decode("ascii", "replace"), "log line", detail, line=line))


# --- Reads what a trainer computes before training: parameter counts and its memory estimate.
#
# `Number of parameters in transformer block in billions: 0.08`, `Theoretical memory footprints: weight and
# optimizer=2121.85 MB, activation=2785.59 MB, total=29485.06 MB`. MB are 2^20 bytes. The memory is an estimate, not a
# measurement. Megatron-LM `megatron/training/theoretical_memory_usage.py`.

_COUNT = re.compile(rb"((?:Number|Total number) of [a-z ]{1,80} in billions): {0,4}(\d[.0-9]{0,20})")
_MEMORY = re.compile(rb" ?([a-z ]{1,40})=(\d[.0-9]{0,20}) MB")
_FACT_REACH = 300


class FactReader:
    keys: Sequence[bytes] = (b" in billions:", b"cal memory footprints:")

    def __init__(self) -> None:
        self.facts: dict[str, Value] = {}

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:  # noqa: ARG002 - as LineReader has it
        stop = min(end, hit + _FACT_REACH)
        if count := _COUNT.search(data[max(start, hit - 120) : stop]):
            self._keep(count[1].decode().lower(), count[2])
        elif data.startswith(b"footprints:", hit - 11):
            for memory in _MEMORY.finditer(data, hit, stop):
                self._keep(f"theoretical memory: {memory[1].decode().strip()} (MB)", memory[2])
        return stop

    def _keep(self, name: str, text: bytes) -> None:
        value = number(text)
        if value is not None:
            self.facts[name] = value


SHOWN_LINES = 5
"""Lines kept from the start and the end of a log, to show users whose log was not read."""

_EDGE = 16_384
"""Bytes inspected at the start and the end for those lines."""
_SHOWN_LENGTH = 300

_COUNTER = re.compile(rb"(?:\b|_)(?:steps?|iter|iterations?|epoch)\b['\"]?[\s:=\[/]*\d|\b\d+/\d+ \[\d")
_MEASURE = re.compile(
    rb"loss|\blr\b|learning_rate|grad_norm|it/s\b|s/it\b|samples?_?(?:/|per_?)s|tok(?:en)?s?(?:/|_per_)s|\btps\b|tflop"
    rb"|throughput|\d ?m?s(?:ec(?:onds)?)?\b|seconds|elapsed|_time\b|\btime\b"
)
"""Lower-case words that, next to a counter, mark a step of an unknown trainer."""
_SHOWN_STEPS = 3


class Reading:
    """The state of reading one log."""

    def __init__(self, template: LineTemplate | None = None) -> None:
        """`template`: the step lines of a trainer that no reader knows, as a user described them."""
        self._notes = Notes()
        self._described = None if template is None else DescribedReader(template, self._notes)
        self._rows = IterationRows(self._notes)
        self._iterations = RecordReader(MEGATRON_SHAPE, self._rows, self._notes)
        self._steps = BridgeStepReader(self._notes)
        self._memory = MemoryReader(self._notes)
        self._dumps = DumpReader(self._notes, self._rows.process_started)
        self._events = EventReader(self._notes, self._rows.process_started)
        self._world = WorldSizeReader()
        self._versions = VersionReader()
        self._families = FamilyReader()
        self._gpu = GpuReader()
        self._facts = FactReader()
        self._timers = TimerReader(self._rows, self._notes)
        self._others = (
            TorchtitanReader(self._notes),
            MaxTextReader(self._notes),
            VerlReader(self._notes),
            SlimeReader(self._notes),
            HuggingFaceReader(self._notes),
            DeepSpeedPipelineReader(self._notes),
            DeepSpeedEngineReader(self._notes),
            LightningReader(self._notes),
        )
        """Readers of trainers with their own line formats, in order of precedence."""
        self._scanner = Scanner(self._readers())
        self._head = b""
        self._tail = b""
        self._last = b""

    def _readers(self) -> Sequence[LineReader]:
        """Return all readers. Add those of further trainer families here."""
        return (
            self._iterations,
            NemoReader(self._rows, self._notes),
            PithTrainReader(self._rows, self._notes),
            self._steps,
            self._memory,
            self._dumps,
            self._events,
            self._world,
            self._versions,
            self._families,
            self._gpu,
            self._facts,
            self._timers,
            *self._others,
            *([] if self._described is None else [self._described]),
        )

    def read(self, block: bytes) -> None:
        """Read one block of `scanner.blocks()`."""
        if len(self._head) < _EDGE:
            self._head += block[:_EDGE]
        self._tail = (self._tail + self._last)[-_EDGE:] if len(block) < _EDGE else b""
        self._last = block
        self._scanner.scan(block)

    def lost_part(self, text: bytes) -> None:
        """Record a line that the container runtime split and whose end is missing."""
        self._notes.problem("broken line", "The container runtime split this line, and its end is missing.", 0, text)

    def damaged(self, *, skipped: int, invalid: int) -> None:
        """Record damaged text: NUL bytes before lines, and bytes near the start that are not UTF-8."""
        if skipped:
            cause = "Network file systems and crashed writers leave them behind."
            self._notes.problem("hole", f"{skipped:,} NUL bytes before lines were skipped. {cause}")
        if invalid:
            message = f"{invalid:,} places near the start of the log are not UTF-8 text and were not read."
            self._notes.problem("no text", message)

    def result(self) -> ParsedLog:
        end = (self._tail + self._last)[-_EDGE:]
        line_count = self._scanner.line_breaks
        if end and not end.endswith(b"\n"):
            line_count += 1
            self._iterations.ended_in(end.rpartition(b"\n")[2], line_count)
        self._timers.finish()
        rows, timers = self._rows, self._timers.tables
        described = None if self._described is None else self._described.collect()
        if described is not None and described.lines:
            rows, timers = described, []
        elif not rows.lines and not self._steps.steps.lines:
            rows, timers = choose(self._others, rows), []
        self._note_unread(rows, end, line_count)
        series = build(rows, timers, self._steps.steps, self._notes)
        dumps = self._dumps.dumps()
        settings, arguments = merge(dumps, self._notes)
        stated, refused = contract_fields(settings)
        for sentence in refused.values():
            self._notes.problem("value that no field accepts", sentence)
        stated = self._versions.stated | self._gpu.stated | self._world.stated | stated
        if batch := _batch_size(series):
            stated.setdefault("gbs", batch)
        is_bridge = bool(self._steps.steps.lines) or self._memory.is_bridge or any(dump.is_summary for dump in dumps)
        is_megatron = bool(len(series.line_numbers) or dumps or self._memory.reports)
        return ParsedLog(
            trainer=name_trainer(rows, is_bridge=is_bridge, is_megatron=is_megatron, words=self._families.seen),
            columns=series.columns,
            line_numbers=series.line_numbers,
            segment_starts=series.segment_starts,
            total_iterations=series.total_iterations,
            log_interval=series.log_interval or _whole(arguments.get("log_interval")),
            stated=stated,
            arguments={**self._facts.facts, **self._timers.facts, **arguments},
            memory=self._memory.reports,
            events=tuple(self._events.events),
            problems=self._notes.problems(),
            line_count=line_count,
            unrecognised_lines=self._notes.unread,
            first_lines=_shown(self._head, first=True),
            last_lines=_shown(end, first=False),
            not_understood=self._notes.examples(),
            truncated=self._notes.cut or self._stops_early(series),
        )

    def _note_unread(self, rows: IterationRows, end: bytes, line_count: int) -> None:
        """Record fields without a number and lines that may be steps of an unknown trainer, for users to report."""
        left_out = sum(table.left_out * len(table.rows) for table in self._rows.tables if isinstance(table, Template))
        if left_out:
            self._notes.problem(
                "many names", f"Iteration lines have too many field names; {left_out:,} values were left out."
            )
        for table in self._rows.tables:
            if isinstance(table, Template) and table.rows:
                line = self._rows.lines[table.rows[0]]
                for field in table.unread:
                    name = quote(field.name)
                    self._notes.not_understood(
                        f"the field {name} of an iteration line", line, field.example, len(table.rows)
                    )
        if rows.lines or self._steps.steps.lines or self._notes.unread:
            return
        last_lines = end.removesuffix(b"\n").split(b"\n")
        numbered = list(enumerate(last_lines, line_count - len(last_lines) + 1))
        if len(self._head) >= _EDGE:  # the log is longer, and its end may begin inside a line
            numbered = [*enumerate(self._head.split(b"\n"), 1), *numbered[1:]]
        states = ((line, text.rstrip(b"\r").rpartition(b"\r")[2]) for line, text in numbered)  # the last one of a bar
        steps = {line: text for line, text in states if _looks_like_a_step(text[:_SHOWN_LENGTH].lower())}
        # The last one shows how far the job got.
        for line in dict.fromkeys([*list(steps)[: _SHOWN_STEPS - 1], *list(steps)[-1:]]):
            self._notes.like_a_step(line, steps[line])

    def _stops_early(self, series: Series) -> bool:
        """Return True when iterations stop before the last planned one and no later event explains it."""
        if series.total_iterations is None or not len(series.line_numbers):
            return False
        last = series.columns["iteration"][-1]
        explained = any(
            event.kind in ENDS | FAILURES for event in self._events.events if event.line > series.line_numbers[-1]
        )
        return bool(last < series.total_iterations and not explained)


def _looks_like_a_step(text: bytes) -> bool:
    return bool(_COUNTER.search(text) and _MEASURE.search(text))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _batch_size(series: Series) -> Stated | None:
    """Return the global batch size of the iteration lines; None when it changes or is missing."""
    column = series.columns.get("global_batch_size")
    values = np.unique(column[np.isfinite(column)]) if column is not None else np.empty(0)
    if len(values) != 1 or not 1 <= values[0] <= 10**9:
        return None
    line = int(series.line_numbers[0])
    return Stated(int(values[0]), "log line", f"line {line}: global batch size: {values[0]:.0f}", line=line)


def _shown(data: bytes, *, first: bool) -> tuple[str, ...]:
    """Return the first or last non-blank lines of `data` without colours and control characters."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    chosen = lines[:SHOWN_LINES] if first else lines[-SHOWN_LINES:]
    return tuple(unwrap(line[-_EDGE:]).text.strip()[:_SHOWN_LENGTH] for line in chosen)

"""Reads the steps that tqdm's progress bars show: of Hugging Face's Trainer, of NeMo 1 and of Lightning.

Trainer: ` 90%|████ | 478/532 [2:03:07<13:48, 15.34s/it]`, followed by `{'loss': 6.12, 'learning_rate': 2.3e-07,
'epoch': 1.8}`. Many programs draw bars, so only the bar counts that has such losses. Its rate is a running mean.
NeMo 1: `Epoch 0: :  1%| | 57/4900 [10:58<15:32:28, v_num=x, reduced_train_loss=6.830, global_step=56.00,
train_step_timing in s=11.30]`. Other bars of Lightning have the mean since the start: their times are the differences
between two states of the bar.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.logs.iterations import MAX_ROWS, IterationRows, number
from app.domain.logs.lines import Notes
from app.domain.logs.steps import RUNNING_MEANS, Steps, fields_of, renamed, text_around

HUGGING_FACE = "Hugging Face Trainer"
LIGHTNING = "Lightning"
NEMO_1 = "NeMo 1"

_BAR = re.compile(
    rb"(\d{1,9})/(\d{1,9}|\?) \[(?:(\d{1,4}):)?(\d{1,2}):(\d\d)(?:<[\d:?]{1,12})?"
    rb"(?:, {0,5}([\d.]{1,10}|\?)(s/it|it/s))?"
)
_EPOCH = re.compile(rb"\bEpoch (\d{1,6}): ")
_VALUE = re.compile(rb"[ ,]([A-Za-z]\w{0,60}(?: in s)?)=([-+.0-9a-z]{1,30})(?=[,\]])")
_ITEM = re.compile(rb"'([A-Za-z][\w/.()-]{0,60})': '?([-+.0-9a-z]{1,30})'?(?=[,}])")
_MOST_FIELDS = 40
_BEFORE, _AFTER = 400, 400

_NAMES = {
    "loss": ("loss", 1.0),
    "reduced_train_loss": ("lm_loss", 1.0),
    "learning_rate": ("learning_rate", 1.0),
    "lr": ("learning_rate", 1.0),
    "grad_norm": ("grad_norm", 1.0),
    "train_step_timing in s": ("step_time_ms", 1000.0),
}

MAX_BARS = 20
"""Bars of different lengths. A job draws a few: loading, mapping, training, evaluation."""

MIN_SECONDS = 50
"""Time between two states of Lightning's bar that make a step time: its clock has whole seconds, so 2 %."""


class HuggingFaceReader:
    """Collects bars by their length. A dictionary of losses belongs to the last state before it, and to its bar."""

    keys: Sequence[bytes] = (b"s/it", b"it/s", b"'learning_rate': ")

    def __init__(self, notes: Notes) -> None:
        self._steps = Steps(HUGGING_FACE, notes)
        self._notes = notes
        self._bars: dict[int, dict[int, tuple[float, int]]] = {}
        self._losses: dict[int, dict[int, dict[str, float]]] = {}
        self._states = 0
        self._last: tuple[int, int] | None = None
        """Length and position of the last bar."""

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        if data.startswith(self.keys[2], hit - len(self.keys[2])):
            return self._read_losses(data, start, end, hit)
        text = text_around(data, start, end, hit, before=_BEFORE, after=1)
        bar = next((match for match in _BAR.finditer(text) if match[7]), None)
        if bar is None or bar[2] == b"?" or _EPOCH.search(text[: bar.start()]):
            return hit
        position, length = int(bar[1]), int(bar[2])
        rate = number(bar[6]) or 0.0
        if self._states >= MAX_ROWS or (length not in self._bars and len(self._bars) >= MAX_BARS):
            return hit
        seconds = (rate if bar[7] == b"s/it" else 1 / rate) if rate > 0 else float("nan")
        self._last = (length, position)
        self._states += 1
        # A bar is drawn again with the same position around every dictionary.
        self._bars.setdefault(length, {}).setdefault(position, (seconds, line))
        return hit

    def _read_losses(self, data: bytes, start: int, end: int, hit: int) -> int:
        text = text_around(data, start, end, hit, before=_BEFORE, after=1500)
        begin = text.rfind(b"{'loss': ")
        if begin >= 0 and self._last is not None:
            length, position = self._last
            closing = text.find(b"}", begin)
            values = fields_of(text[begin : closing + 1 if closing >= 0 else len(text)], _ITEM, _MOST_FIELDS)
            of_bar = self._losses.setdefault(length, {})
            if len(of_bar) < MAX_ROWS:
                of_bar[position] = renamed(values, _NAMES, without=("iteration", "step_time_ms", "total_iterations"))
        return hit

    def collect(self) -> IterationRows:
        if not self._losses:
            return self._steps.rows
        length = max(self._losses, key=lambda length: len(self._losses[length]))
        for position, (seconds, line) in self._bars[length].items():
            if position > 0:
                values = {
                    "iteration": float(position),
                    "total_iterations": float(length),
                    "step_time_ms": seconds * 1000,
                }
                self._steps.add(values | self._losses[length].get(position, {}), line)
        self._notes.problem(
            RUNNING_MEANS,
            "The step times are the rates of a progress bar, which are running means: single slow steps are "
            "smoothed, and the interval is narrower than that of single steps.",
        )
        return self._steps.rows


@dataclass(frozen=True, slots=True)
class _State:
    """A state of a bar. `iteration` counts over epochs; `seconds` since the start of the epoch."""

    epoch: int
    position: int
    iteration: int
    seconds: int
    line: int
    values: dict[str, float]


class LightningReader:
    """Collects the bars of training epochs. NeMo 1 prints the time of each step in its bar, others print none.

    A bar is drawn several times for one position; the last time has the values of its step.
    """

    keys: Sequence[bytes] = (b"%|", b"train_step_timing in s=")

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._nemo = Steps(NEMO_1, notes)
        self._lightning = Steps(LIGHTNING, notes)
        self._now: _State | None = None
        self._since: _State | None = None
        """The state from which Lightning's next time counts."""

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        text = text_around(data, start, end, hit, before=_BEFORE, after=_AFTER)
        epoch = _EPOCH.search(text)
        bar = _BAR.search(text, epoch.end()) if epoch else None
        if epoch is None or bar is None:
            return hit
        hours, minutes, seconds = (int(part or 0) for part in bar.groups()[2:5])
        number_of_epoch, position, before = int(epoch[1]), int(bar[1]), self._now
        offset = 0
        if before is not None:
            same_epoch = number_of_epoch == before.epoch
            offset = before.iteration - before.position if same_epoch else before.iteration
        values = renamed(fields_of(text[bar.end() :], _VALUE, _MOST_FIELDS), _NAMES, without=("iteration",))
        now = _State(number_of_epoch, position, offset + position, (hours * 60 + minutes) * 60 + seconds, line, values)
        if before is not None and (before.epoch, before.position) != (number_of_epoch, position):
            self._store(before)
        self._now = now
        return hit

    def _store(self, state: _State) -> None:
        if state.position == 0:
            return
        if "step_time_ms" in state.values:
            self._nemo.add({"iteration": float(state.iteration)} | state.values, state.line)
            return
        since = self._since
        if since is None or since.epoch != state.epoch or since.position >= state.position:
            self._since = state
        elif state.seconds - since.seconds >= MIN_SECONDS:
            time_ms = (state.seconds - since.seconds) * 1000 / (state.position - since.position)
            values = {"iteration": float(state.iteration), "step_time_ms": time_ms}
            self._lightning.add(values | state.values, state.line)
            self._since = state

    def collect(self) -> IterationRows:
        if self._now is not None:
            self._store(self._now)
        if self._nemo.rows.lines or not self._lightning.rows.lines:
            return self._nemo.rows
        self._notes.problem(
            RUNNING_MEANS,
            f"The step times are means over at least {MIN_SECONDS} seconds of a progress bar, whose clock has whole "
            "seconds. They include saving and evaluation.",
        )
        return self._lightning.rows

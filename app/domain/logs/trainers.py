"""The readers of the trainers' lines, one section a trainer family. Progress bars are in `progress_bars.py`."""

import math
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from app.domain.logs.iterations import MAX_ROWS, IterationRows, RecordReader, Shape, Table, number, word
from app.domain.logs.lines import Notes, without_colours
from app.domain.logs.steps import Names, StampedStepReader, StepLineReader, renamed
from app.domain.run import Stated

# --- Names that AMD's trainers add to Megatron-LM's iteration line: current/average pairs and memory in use.
#
# Primus: `elapsed time per iteration (ms): 16601.3/17219.3`, `compute per GPU (TFLOP/s/GPU): 496.3 (avg 496.1)`,
# `hip mem usage/free/total/usage_ratio: 253.38GB/2.60GB/255.98GB/98.98%`. The average skips iterations and restarts now
# and then, so the first number is the one to compare. GB are 2^30 bytes of the device's memory in use, not of PyTorch's
# allocations. ROCm's Megatron-LM prints `mem usages: 0.7494`, a fraction.

PRIMUS = "Primus"
ROCM = "ROCm Megatron-LM"

PRIMUS_NAMES: dict[bytes, tuple[str, float]] = {
    b"compute per GPU (TFLOP/s/GPU)": ("tflops_per_gpu", 1.0),
    b"tokens per GPU (tokens/s/GPU)": ("tokens_per_s_per_gpu", 1.0),
    b"tokens/s/GPU inst/harmonic mean": ("tokens_per_s_per_gpu", 1.0),
    b"hip mem usage/free/total/usage_ratio": ("hip_mem_used_bytes", 1.0),
    b"rocm mem usage/free/total/usage_ratio": ("rocm_mem_used_bytes", 1.0),
    b"rocm max mem usage/usage_ratio": ("rocm_max_mem_used_bytes", 1.0),
}
"""The last one belongs to the rank with the highest use, whose number precedes the name."""

_PRIMUS_LOGGER = re.compile(rb"\[\d{8} [\d:]{8}\]\[rank-\d{1,7}/\d{1,7}\]")
_OF_AMD = frozenset(PRIMUS_NAMES) - {b"tokens per GPU (tokens/s/GPU)"}


def _amd_trainer(prefix: bytes, names: Sequence[bytes]) -> str | None:
    """Return the family of a line with AMD's prefix or fields, else None."""
    if _PRIMUS_LOGGER.search(prefix) or not _OF_AMD.isdisjoint(names):
        return PRIMUS
    return ROCM if b"mem usages" in names else None


# --- The GPU, which no line states: by the name of the node, else by the folder of the configuration, else by the
# memory of the device.
#
# `[NODE-0(mi355-gpu-12)] [INFO] ...`, `--config examples/megatron/configs/MI355X/deepseek_v4_flash-BF16-pretrain.yaml`.
# A node outranks a folder, because a configuration may run on another GPU. `mi300` is left out: it may be X or A.
# 192 and 256 GiB belong to one product each; 288 GiB may be an MI350X or an MI355X, so it states nothing.

_NODE = re.compile(rb"NODE-[\d?]{1,6}\((mi(?:325|350|355)x?)(?=[-.\d)])")
_FOLDER = re.compile(rb"/configs/(MI\d{3}X)/")
_MEMORY_KEY = b"hip mem usage/free/total/"
_MEMORY = re.compile(rb"usage_ratio: [\d.]{1,9}GB/[\d.]{1,9}GB/([\d.]{1,9})GB")
_OF_MEMORY = {192: "MI300X", 256: "MI325X"}
_GPU_REACH = 40
"""Bytes around the key that contain the name."""


class GpuReader:
    """Keeps the first node, folder and memory, because every rank repeats them."""

    keys: Sequence[bytes] = (b"(mi3", b"/configs/MI", _MEMORY_KEY)

    def __init__(self) -> None:
        self._of_node: Stated | None = None
        self._of_folder: Stated | None = None
        self._of_memory: Stated | None = None

    @property
    def stated(self) -> dict[str, Stated]:
        gpu = self._of_node or self._of_folder or self._of_memory
        return {} if gpu is None else {"gpu": gpu}

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        if data.endswith(_MEMORY_KEY, start, hit):
            if self._of_memory is None and (match := _MEMORY.match(data, hit, end)):
                self._of_memory = _by_memory(match[1], line)
            return hit
        begin, stop = max(start, hit - _GPU_REACH), min(end, hit + _GPU_REACH)
        if match := _NODE.search(data, begin, stop):
            self._of_node = self._of_node or _gpu(match[1], f"node {match[1].decode()}", line)
        elif match := _FOLDER.search(data, begin, stop):
            self._of_folder = self._of_folder or _gpu(match[1], f"configuration in {match[1].decode()}", line)
        return hit


def _by_memory(total: bytes, line: int) -> Stated | None:
    try:
        gib = float(total)
    except ValueError:
        return None
    sku = _OF_MEMORY.get(math.ceil(gib)) if math.ceil(gib) - gib < 0.5 else None
    return None if sku is None else Stated(sku, "log line", f"line {line}: memory of {gib:g} GiB", line=line)


def _gpu(name: bytes, where: str, line: int) -> Stated:
    sku = name.decode().upper().removesuffix("X") + "X"
    return Stated(sku, "log line", f"line {line}: {where}", line=line)


# --- Describes the iteration line of Megatron-LM, which Megatron-Bridge and all forks print too.
#
# ` [2026-05-11 02:59:22.9123] iteration  1/  20 | consumed samples: 896 | elapsed time per iteration (ms): 782.5 | ...`

MEGATRON_LM = "Megatron-LM"

ELAPSED = b"elapsed time per iteration ("
ELAPSED_WITHOUT_BLANK = b"elapsed time per iteration("
"""All versions print the step time under this name, and no other line has it. Some forks omit the blank."""

DEEPSPEED = "Megatron-DeepSpeed"
DEEPSPEED_NAMES: dict[bytes, tuple[str, float]] = {
    b"TFLOPs": ("tflops_per_gpu", 1.0),
    b"tokens per gpu per second (tgs)": ("tokens_per_s_per_gpu", 1.0),
    b"tokens per gpu per second(tgs)": ("tokens_per_s_per_gpu", 1.0),
}
"""What it prints differently from Megatron-LM."""

MEGATRON_NAMES: dict[bytes, tuple[str, float]] = {
    ELAPSED + b"ms)": ("step_time_ms", 1.0),
    ELAPSED + b"s)": ("step_time_ms", 1000.0),
    ELAPSED_WITHOUT_BLANK + b"ms)": ("step_time_ms", 1.0),
    ELAPSED_WITHOUT_BLANK + b"s)": ("step_time_ms", 1000.0),
    b"throughput per GPU (TFLOP/s/GPU)": ("tflops_per_gpu", 1.0),
    b"energy per GPU (J/iter/GPU)": ("energy_j_per_gpu", 1.0),
    b"power per GPU (W/GPU)": ("power_w_per_gpu", 1.0),
    b"number of skipped iterations": ("skipped_iterations", 1.0),
    b"number of nan iterations": ("nan_iterations", 1.0),
    b"tokens/sec/gpu": ("tokens_per_s_per_gpu", 1.0),
    b"total grad norm": ("grad_norm", 1.0),
    **PRIMUS_NAMES,
    **DEEPSPEED_NAMES,
}


def _trainer(prefix: bytes, names: Sequence[bytes]) -> str:
    """Return the family of a line with this prefix and these fields; Megatron-LM by default."""
    if fork := _amd_trainer(prefix, names):
        return fork
    is_deepspeed = b"samples per second" in names and (b"TFLOPs" in names or b"actual seqlen" in names)
    return DEEPSPEED if is_deepspeed else MEGATRON_LM


MEGATRON_SHAPE = Shape(
    keys=(ELAPSED, ELAPSED_WITHOUT_BLANK), first_keys=(b"| consumed samples:",), names=MEGATRON_NAMES, trainer=_trainer
)


# --- Reads Megatron-Bridge's own step line; its iteration line is Megatron-LM's.
#
# `Step Time : 2.26s GPU utilization: 1156.2MODEL_TFLOP/s/GPU` comes from rank 0 while the iteration line comes from the
# last rank, so either may come first. Its seconds are rounded to 10 ms: the iteration line's time is better.

MEGATRON_BRIDGE = "Megatron-Bridge"

_BRIDGE_STEP = re.compile(
    rb"Step Time ?: ?(\d{1,12}\.?\d{0,9}) ?s {1,4}GPU utilization: ?([-+.0-9a-z]{1,20}?) ?MODEL_TFLOP/s/GPU"
)
_BRIDGE_REACH = 200
"""Bytes on either side of the key that contain the whole line."""


@dataclass(slots=True)
class BridgeSteps:
    """Holds the step lines in the order of the log."""

    lines: "array[int]" = field(default_factory=lambda: array("q"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    tflops: "array[float]" = field(default_factory=lambda: array("d"))


class BridgeStepReader:
    keys: Sequence[bytes] = (b"MODEL_TF",)

    def __init__(self, notes: Notes) -> None:
        self.steps = BridgeSteps()
        self._notes = notes

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        text = without_colours(data[max(start, hit - _BRIDGE_REACH) : min(end, hit + _BRIDGE_REACH)])
        step = _BRIDGE_STEP.search(text)
        if not step:
            if b"Step Time" in text:
                if end == len(data):
                    self._notes.cut_off(line, text)
                else:
                    self._notes.unreadable("a step line", line, text)
            return hit
        if len(self.steps.lines) < MAX_ROWS:
            self.steps.lines.append(line)
            self.steps.seconds.append(float(step[1]))
            self.steps.tflops.append(_figure(step[2]))
        return hit


def _figure(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


# --- Reads NeMo's steps.
#
# NeMo 2: `Training epoch 0, iteration 28/99 | lr: 5.6e-06 | global_step: 28 | train_step_timing in s: 0.189 | ...`. It
# counts from 0, and the number after the slash is the last iteration; both are stored as printed.
# NeMo 1: `train_step_timing in s: [9.9, 5.1, ...]`, all steps in one list at the end, without iteration numbers.

NEMO_2 = "NeMo 2"
NEMO_1 = "NeMo 1"

TIMING = b"train_step_timing in s:"

NEMO_NAMES: dict[bytes, tuple[str, float]] = {
    b"train_step_timing in s": ("step_time_ms", 1000.0),
    b"lr": ("learning_rate", 1.0),
    b"reduced_train_loss": ("lm_loss", 1.0),
    b"TFLOPS_per_GPU": ("tflops_per_gpu", 1.0),
    b"tokens_per_sec_per_gpu": ("tokens_per_s_per_gpu", 1.0),
    b"peak_memory_usage": ("peak_memory_bytes", 1.0),
    b"memory_allocated": ("memory_allocated_bytes", 1.0),
}
NEMO_SHAPE = Shape(keys=(TIMING,), first_keys=(), names=NEMO_NAMES, trainer=lambda _prefix, _names: NEMO_2)

MAX_LIST = 1 << 20
"""Bytes of a list of steps; 1,000 steps take about 6,000."""

_NEMO_ITEMS = re.compile(rb" ?\[([-+0-9., eE]{1,1048576})(\])?")


class NemoReader(RecordReader):
    def __init__(self, rows: IterationRows, notes: Notes) -> None:
        super().__init__(NEMO_SHAPE, rows, notes)

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        items = _NEMO_ITEMS.match(data, hit, min(end, hit + MAX_LIST))
        if items is None:
            return super().read(data, start, end, hit, line)
        self._read_list(items, line)
        return items.end()

    def _read_list(self, items: re.Match[bytes], line: int) -> None:
        """Store one row per entry. The last number of a truncated list is dropped because it may be truncated too."""
        texts = items[1].split(b",", MAX_ROWS)
        if not items[2]:
            texts.pop()
            self._notes.cut_off(line, items[0])
        table = Table(NEMO_1, ("iteration", "step_time_ms"), (1.0, 1000.0))
        self._rows.tables.append(table)
        for place, text in enumerate(texts):
            seconds = number(text.strip())
            if seconds is not None:
                table.add((float(place), seconds))
                self._rows.place(table, b"", 0, line)
        self._notes.problem(
            "list of step times",
            "The steps have no numbers, so they are counted from 0, as NeMo does. The first ones can be running means.",
            line,
        )


# --- Reads pith-train's steps, whose format is unrelated to Megatron's.
#
# `2026-04-01 14:27:31 | INFO | step 00000001/00000015 | step-time 43.142 sec | cross-entropy-loss 2.4934 | ... |
# tokens-per-second 48,611 | peak-gpu-memory 57.26 GB`. Tokens per second refer to the whole job.

PITH_TRAIN = "pith-train"

MAX_RECORD = 1 << 12
"""Bytes of one line; real ones have 250."""

MAX_TABLES = 50
"""Maximum number of kinds of lines."""

_PITH_REACH = 60
_PITH_HEAD = re.compile(rb"step (\d{1,12})/(\d{1,12}) \|")
_PITH_FIELD = re.compile(rb" ([a-z][a-z0-9-]{0,60}) ([-+.,0-9a-z]{1,40})(?: ([A-Za-z/]{1,10}))? *\Z")

PITH_NAMES: dict[str, tuple[str, float]] = {
    "step-time sec": ("step_time_ms", 1000.0),
    "cross-entropy-loss": ("lm_loss", 1.0),
    "gradient-norm": ("grad_norm", 1.0),
    "peak-gpu-memory GB": ("peak_memory_bytes", 2.0**30),
}
"""Printed names, with their unit if there is one. The memory is the maximum over all ranks. The load-balance loss keeps
its printed name: early versions print it with its coefficient, so it differs from Megatron-LM's."""


class PithTrainReader:
    keys: Sequence[bytes] = (b"| step-t",)

    def __init__(self, rows: IterationRows, notes: Notes) -> None:
        self._rows = rows
        self._notes = notes
        self._tables: dict[tuple[str, ...], Table] = {}

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        begin = data.rfind(b"step ", max(start, hit - _PITH_REACH), hit)
        head = _PITH_HEAD.match(data, begin, end) if begin >= 0 else None
        if head is None:
            self._notes.unreadable("a step of pith-train", line, data[max(start, hit - 100) : min(end, hit + 200)])
            return hit
        stop = min(end, begin + MAX_RECORD)
        parts = without_colours(data[head.end() : stop]).rstrip(b"\r").split(b"|")
        if stop == len(data):
            self._notes.cut_off(line, parts.pop())
        names, scales, values = ["iteration", "total_iterations"], [1.0, 1.0], [float(head[1]), float(head[2])]
        for part in parts:
            field = _PITH_FIELD.match(part)
            value = number(field[2].replace(b",", b"")) if field else None
            if field is None or value is None:
                continue
            printed, unit = field[1].decode(), (field[3] or b"").decode()
            name, scale = PITH_NAMES.get(f"{printed} {unit}".strip()) or (word(f"{printed} {unit}"), 1.0)
            if name not in names:
                names.append(name)
                scales.append(scale)
                values.append(value)
        if "step_time_ms" not in names:
            self._notes.unreadable("a step of pith-train", line, data[begin:stop])
            return stop
        self._place(tuple(names), tuple(scales), values, line)
        return stop

    def _place(self, names: tuple[str, ...], scales: tuple[float, ...], values: Sequence[float], line: int) -> None:
        table = self._tables.get(names)
        if table is None:
            if len(self._tables) >= MAX_TABLES:
                self._notes.problem("many kinds of lines", "The fields of pith-train's steps vary too much.", line)
                return
            table = self._tables[names] = Table(PITH_TRAIN, names, scales)
            self._rows.tables.append(table)
        table.add(values)
        self._rows.place(table, b"", 0, line)


# --- Trainers whose step lines have nothing in common with Megatron-LM's. They count when no other trainer prints
# iterations.


class MaxTextReader(StepLineReader):
    """Reads MaxText's steps: `completed step: 9, seconds: 5.667, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758,
    total_weights: 196608, loss: 10.374`. It counts from 0. Early versions print `TFLOP/s: ` for the same figure."""

    trainer = "MaxText"
    keys = (b"completed step: ",)
    step = re.compile(rb"\Acompleted step: (\d{1,12})(?=,)")
    field = re.compile(rb"[ ,]([A-Za-z][\w/. -]{0,40}): {0,4}([-+.0-9a-z]{1,30})(?=,|\s|\Z)")
    names: ClassVar[Names] = {
        "seconds": ("step_time_ms", 1000.0),
        "loss": ("loss", 1.0),
        "TFLOP/s/device": ("tflops_per_gpu", 1.0),
        "TFLOP/s": ("tflops_per_gpu", 1.0),
        "Tokens/s/device": ("tokens_per_s_per_gpu", 1.0),
    }
    without = ("iteration",)
    before, after, most_fields = len(keys[0]), 1000, 30

    def next_position(self, text: bytes, hit: int, _end: int) -> int:
        return hit + len(text) - len(self.keys[0])


class SlimeReader(StepLineReader):
    """Reads the step times of slime and its forks: `train_metric_utils.py:44 - perf 2: {'perf/train_wait_time': 11.33,
    'perf/actor_train_time': 1.02, 'perf/step_time': 14.18, ...}`. Steps are rollouts, counted from 0.

    A step is the time to train and to wait for the rollout. Its parts (`perf/..._time`) become timers. Versions before
    October 2025 call it `perf/total_train_time`.
    """

    trainer = "slime"
    keys = (b"'perf/step_time': ", b"'perf/total_train_time': ")
    step = re.compile(rb"\bperf (\d{1,12}): (?=\{)")
    field = re.compile(rb"'perf/(\w{1,80})': {1,2}(?:np\.\w{3,10}\()?([-+.0-9a-z]{1,30})(?=\)?[,}])")
    names: ClassVar[Names] = {"step_time": ("step_time_ms", 1000.0), "total_train_time": ("step_time_ms", 1000.0)}
    before, after, most_fields = 3000, 1500, 60

    def columns(self, _text: bytes, _iteration: float, values: Mapping[str, float]) -> dict[str, float]:
        parts = {
            name: (f"timer_{name.removesuffix('_time')}_ms", 1000.0)
            for name in values
            if name.endswith("_time") and name not in self.names
        }
        return renamed(values, {**self.names, **parts})


class VerlReader(StepLineReader):
    """Reads veRL's steps: `(TaskRunner pid=16292) step:2 - actor/grad_norm:0.069 - perf/mfu/actor:1.018 -
    perf/max_memory_allocated_gb:25.921 - timing_s/gen:74.020 - timing_s/step:96.551 - ...`.

    The parts of a step (`timing_s/...`) become timers. GB are 2^30 bytes, and `perf/throughput` is in tokens/s/GPU
    (`verl/trainer/ppo/metric_utils.py`). Newer versions print `np.float64(0.069)` for some values.
    """

    trainer = "veRL"
    keys = (b" - timing_s/step:",)
    step = re.compile(rb"\bstep:(\d{1,12})(?= - )")
    field = re.compile(rb" - ([a-z][\w/@.-]{0,80}):(?:np\.\w{3,10}\()?([-+.0-9a-z]{1,30})(?=\)? - |\)?\s*\Z)")
    names: ClassVar[Names] = {
        "timing_s/step": ("step_time_ms", 1000.0),
        "perf/throughput": ("tokens_per_s_per_gpu", 1.0),
        "perf/max_memory_allocated_gb": ("peak_memory_bytes", 2.0**30),
        "perf/max_memory_reserved_gb": ("reserved_memory_bytes", 2.0**30),
        "actor/grad_norm": ("grad_norm", 1.0),
        "actor/lr": ("learning_rate", 1.0),
    }
    before, after, most_fields = 4096, 4096, 120  # real lines have up to 5,000 bytes

    def columns(self, _text: bytes, _iteration: float, values: Mapping[str, float]) -> dict[str, float]:
        parts = {
            name: (f"timer_{name.removeprefix('timing_s/')}_ms", 1000.0)
            for name in values
            if name.startswith("timing_s/") and name not in self.names
        }
        return renamed(values, {**self.names, **parts})


class TorchtitanReader(StampedStepReader):
    """Reads torchtitan's steps, which have no step time: it is the time between the stamps of two lines.

    `[rank0]:[titan] 2026-02-24 19:46:19,145 - root - INFO - step:  5  loss:  7.07623  grad_norm: 46.5000
    memory: 66.91GiB(37.51%)  tps: 10,007  tflops: 313.36  mfu: 13.93%`. The rate `tps` is per GPU, over the same
    interval (`torchtitan/components/metrics.py`). The memory is the maximum that PyTorch reserved, not allocated.
    """

    trainer = printer = "torchtitan"
    keys = (b"  tps: ", b"mtps: ")  # the second one where a colour precedes the name
    step = re.compile(rb"\b(?=step: {1,4}(\d{1,12}) {1,4}loss:)")
    field = re.compile(rb" ([a-z][a-z_ ]{0,40}?): {0,8}([-+.,0-9a-z]{1,30}?)(?=GiB|%|\s|\Z)")
    names: ClassVar[Names] = {
        "loss": ("loss", 1.0),
        "tps": ("tokens_per_s_per_gpu", 1.0),
        "tflops": ("tflops_per_gpu", 1.0),
        "mfu": ("mfu_pct", 1.0),
        "memory": ("reserved_memory_bytes", 2.0**30),
    }
    without = ("step", "iteration", "step_time_ms")
    before, after, most_fields = 800, 400, 30


class DeepSpeedPipelineReader(StepLineReader):
    """Reads the steps of DeepSpeed's pipeline engine:
    `steps: 200 loss: 5.5508 iter time (s): 0.936 samples/sec: 136.706`."""

    trainer = "DeepSpeed"
    keys = (b"iter time (s): ",)
    step = re.compile(rb"\bsteps?: {1,6}(\d{1,12})(?: / {0,6}\d{1,12})? (?=loss: .{0,400}\Z)", re.DOTALL)
    field = re.compile(rb"([a-z][a-z _]{0,40}(?: \(s\)|/sec)?): {0,4}([-+.0-9a-z]{1,30})(?=\s|,|\Z)")
    names: ClassVar[Names] = {
        "iter time (s)": ("step_time_ms", 1000.0),
        "loss": ("loss", 1.0),
        "samples/sec": ("samples_per_s", 1.0),
    }
    before, after, most_fields = 500, 300, 20


class DeepSpeedEngineReader(StampedStepReader):
    """Reads the steps of DeepSpeed's other engine, which prints rates: `[2022-12-20 08:26:26,101] [INFO]
    [timer.py:197:stop] 0/17, RunningAvgSamplesPerSec=158.31, CurrSamplesPerSec=159.62, MemAllocated=1.75GB,
    MaxMemAllocated=2.6GB`. GB are 2^30 bytes (`deepspeed/utils/timer.py`)."""

    trainer = "DeepSpeed"
    printer = "DeepSpeed's engine"
    keys = (b"SamplesPerSec=",)
    step = re.compile(rb"(?:\bglobal_step=|\] \d{1,12}/)(\d{1,12}), ")
    field = re.compile(rb"([A-Z][A-Za-z]{2,40})=([-+.0-9a-z]{1,30}?)(?=GB|,|\s|\Z)")
    names: ClassVar[Names] = {
        "CurrSamplesPerSec": ("samples_per_s", 1.0),
        "RunningAvgSamplesPerSec": ("samples_per_s_running_avg", 1.0),
        "SamplesPerSec": ("samples_per_s_running_avg", 1.0),
        "MaxMemAllocated": ("peak_memory_bytes", 2.0**30),
        "MemAllocated": ("allocated_memory_bytes", 2.0**30),
    }
    before, after, most_fields = 500, 300, 20

"""Merges the configuration dumps of a log into one set of settings with their sources."""

import ast
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from app.domain.logs.lines import Notes, unwrap, unwrap_json, without_colours
from app.domain.run import Scalar, Source, Value
from app.domain.text import clean

# --- One setting of a trainer: its name, its value and its position.


class Setting(NamedTuple):
    """One setting. `line` counts from 1 and is 0 outside logs; `section`: of a configuration summary."""

    name: str
    value: Value
    source: Source
    line: int = 0
    section: str = ""

    @property
    def detail(self) -> str:
        """Position and value for users: `line 12: moe_token_dispatcher_type = alltoall`."""
        name = f"{self.section}.{self.name}" if self.section else self.name
        if self.source == "default":
            return f"{name} is not in the summary (line {self.line}): Megatron Core's default, {self.value}"
        return f"line {self.line}: {name} = {self.value}" if self.line else f"{name} = {self.value}"


# --- Megatron Core's defaults for Megatron-Bridge's summary, which omits values that equal them.
#
# From `megatron/core/transformer/transformer_config.py`, `megatron/core/model_parallel_config.py` and
# `megatron/core/distributed/distributed_data_parallel_config.py`. Only settings with a contract field.

DEFAULTS: dict[str, dict[str, Value]] = {
    "model": {
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
        "attention_backend": "auto",
        "context_parallel_size": 1,
        "cp_comm_type": None,
        "cpu_offloading": False,
        "cuda_graph_impl": "none",
        "cuda_graph_warmup_steps": 3,
        "delay_wgrad_compute": False,
        "expert_model_parallel_size": 1,
        "expert_tensor_parallel_size": None,
        "fine_grained_activation_offloading": False,
        "gated_linear_unit": False,
        "hierarchical_context_parallel_sizes": None,
        "moe_expert_capacity_factor": None,
        "moe_ffn_hidden_size": None,
        "moe_grouped_gemm": False,
        "moe_layer_freq": 1,
        "moe_pad_expert_input_to_capacity": False,
        "moe_permute_fusion": False,
        "moe_router_dtype": None,
        "moe_router_enable_expert_bias": False,
        "moe_router_force_load_balancing": False,
        "moe_router_fusion": False,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_router_topk": 2,
        "moe_shared_expert_intermediate_size": None,
        "moe_shared_expert_overlap": False,
        "moe_token_dispatcher_type": "allgather",
        "mtp_num_layers": None,
        "multi_latent_attention": False,
        "num_moe_experts": None,
        "num_query_groups": None,
        "overlap_moe_expert_parallel_comm": False,
        "overlap_p2p_comm": False,
        "pipeline_model_parallel_layout": None,
        "pipeline_model_parallel_size": 1,
        "recompute_granularity": None,
        "recompute_method": None,
        "recompute_modules": None,
        "recompute_num_layers": None,
        "sequence_parallel": False,
        "tensor_model_parallel_size": 1,
        "tp_comm_overlap": False,
        "use_te_rng_tracker": False,
        "virtual_pipeline_model_parallel_size": None,
    },
    "ddp": {
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
        "use_distributed_optimizer": False,
        "use_megatron_fsdp": False,
    },
    "optimizer": {"optimizer_cpu_offload": False},
}
"""Section of the summary -> setting -> default."""


# --- Reads the Python values that trainers print with `str()` or `repr()`: `None`, `1e-05`, `['attn', 'moe']`, enums.

MAX_TEXT = 2000
"""Characters kept per value."""

MAX_ITEMS = 2000
"""Items of a list; a longer one stays text. Lists with an item per layer have up to 130."""

_CONSTANTS = {"None": None, "True": True, "False": False}
_WHOLE = re.compile(r"[-+]?\d{1,18}\Z")
_FLOAT = re.compile(r"[-+]?(?:\d{1,30}\.\d{0,30}|\.\d{1,30}|\d{1,30}(?=[eE]))(?:[eE][-+]?\d{1,3})?\Z")
_ENUM = re.compile(r"<\w{1,60}\.(\w{1,60})(?:: [^<>]{0,60})?>\Z")
_WORDS = re.compile(r"\[[\w ,]+\]\Z")
_MEMBER = re.compile(r"\w{1,60}\.(\w{1,60})\Z")


def read_literal(text: str) -> Value:
    """Return the value of a Python literal; lists become tuples, enums their member's name, the rest stays text."""
    if text in _CONSTANTS:  # the most frequent values of an arguments block
        return _CONSTANTS[text]
    text = text.strip()[:MAX_TEXT]
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[:1].isdigit() or text[:1] in ("-", "+", "."):
        return _read_number(text)
    if text[:1] in ("[", "(", "{"):
        return _read_items(text)
    if text[:1] in ("'", '"'):
        return _read_quoted(text)
    enum = _ENUM.match(text)
    return enum[1] if enum else clean(text)


def _read_number(text: str) -> Value:
    if _WHOLE.match(text):
        return int(text)
    if _FLOAT.match(text):
        value = float(text)
        return value if math.isfinite(value) else text
    return clean(text)


def _read_items(text: str) -> Value:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _bare_words(text)
    if isinstance(value, list | tuple | set) and len(value) <= MAX_ITEMS:
        items = [_scalar(item) for item in value]
        if None not in items:
            return tuple(item for item in items if item is not None)
    return clean(text)


def _bare_words(text: str) -> Value:
    """Read an unquoted list: `[<CudaGraphModule.attn: 1>]`, `[CudaGraphModule.attn]`, or a shell's `[attn moe]`."""
    if _WORDS.match(text):
        return tuple(text[1:-1].replace(",", " ").split())
    members = [_ENUM.match(item.strip()) or _MEMBER.match(item.strip()) for item in text[1:-1].split(",")]
    return tuple(member[1] for member in members if member) if all(members) else clean(text)


def _read_quoted(text: str) -> Value:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError):
        value = text
    return clean(value if isinstance(value, str) else text)


def _scalar(value: object) -> Scalar | None:
    """Return `value` when a contract value can hold it, else None. Integers beyond 64 bits cannot be stored."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else None


# --- Collects configuration dumps: Megatron-LM's arguments block and Megatron-Bridge's summary.
#
# Other processes may print into both, so the text from the start line to the end line is buffered and parsed as a
# whole.

MAX_DUMP = 1 << 20
"""Bytes kept of one dump, including foreign lines. Real dumps have 30 to 150 kB."""

MAX_NAMES = 3000
"""Names kept of one dump. Real dumps have up to 900."""

MAX_DUMPS = 8
"""Dumps kept of one log; every restart prints one. The last one is always kept."""

ARGUMENTS_START = b" arguments --"
ARGUMENTS_END = b"end of arguments"
SUMMARY_START = b"Configuration Summary"
RULE = b"=" * 70

_ARGUMENT = re.compile(r"  ([A-Za-z_]\w{0,100}) (?:\.{1,48} |(?<=\w{47} ) )([^\r\n]*)", re.ASCII)
_SECTION = re.compile(r"\[(\w{1,40})\](?: Non-default values \(vs Mcore \w{1,60}\))?: {0,4}\Z")
# Two spaces; a prefix pattern may have consumed one of them
_ITEM = re.compile(r" {1,2}([A-Za-z_]\w{0,100}): ")
_DEFAULT = "  (Mcore default: "


@dataclass(frozen=True, slots=True)
class Dump:
    """One dump, possibly incomplete. `is_summary`: it lists only values that differ from Megatron Core's defaults.

    `sections`: the complete sections. An omission from an incomplete one is unknown, not a default.
    """

    line: int
    is_summary: bool
    settings: tuple[Setting, ...]
    sections: frozenset[str] = frozenset()


@dataclass(slots=True)
class _OpenDump:
    """A dump whose end has not arrived yet: its first line and the text after it."""

    line: int
    is_summary: bool
    tags: tuple[str, ...]
    text: bytearray = field(default_factory=bytearray)
    rules: int = 0


class DumpReader:
    keys: Sequence[bytes] = (ARGUMENTS_START, SUMMARY_START)

    def __init__(self, notes: Notes, on_start: Callable[[], None]) -> None:
        self._dumps: list[Dump] = []
        self._notes = notes
        self._on_start = on_start
        self._open: _OpenDump | None = None
        self._at = 0
        """Offset in the current block from which the text belongs to the open dump."""

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        self._take(data, start)
        is_summary = data.startswith(SUMMARY_START, hit - len(SUMMARY_START))
        if not is_summary and data.find(ARGUMENTS_END, max(start, hit - 60), hit) >= 0:
            self._close()
            return end
        self._close(whole=False)
        tags = unwrap(data[start : min(end, start + 2000)]).tags
        self._open = _OpenDump(line, is_summary, tags)
        self._at = end + 1
        self._on_start()
        return end

    def block(self, data: bytes) -> None:
        self._take(data, len(data))
        self._at = 0

    def dumps(self) -> tuple[Dump, ...]:
        """Return all dumps in the order of the log. Call it at the end of the log."""
        self._close(whole=False)
        return tuple(self._dumps)

    def _take(self, data: bytes, stop: int) -> None:
        """Append `data` up to `stop` to the open dump."""
        now = self._open
        if now is None or stop <= self._at:
            return
        searched = len(now.text)
        now.text += data[self._at : min(stop, self._at + MAX_DUMP + 1 - searched)]
        self._at = stop
        if now.is_summary:
            # One rule closes the title, the next the whole summary
            while now.rules < 2 and (rule := now.text.find(RULE, searched)) >= 0:
                now.rules += 1
                line_end = now.text.find(b"\n", rule)
                searched = line_end if line_end >= 0 else len(now.text)
        if now.rules == 2:
            del now.text[searched:]
            self._close()
        elif len(now.text) > MAX_DUMP:
            self._close(whole=False)

    def _close(self, *, whole: bool = True) -> None:
        now, self._open = self._open, None
        if now is None:
            return
        dump = _read_summary(now, whole=whole) if now.is_summary else _read_arguments(now)
        if not whole:
            self._notes.problem(
                "unfinished dump", "This configuration dump has no end. Its existing part was read.", now.line
            )
        if len(self._dumps) >= MAX_DUMPS:
            self._dumps.pop()
        self._dumps.append(dump)


def _plain(text: bytes) -> bytes:
    """Return the lines without colours and JSON wrapping."""
    if b'{"' in text:
        text = b"\n".join(map(unwrap_json, text.split(b"\n")))
    return without_colours(text)


def _read_arguments(source: _OpenDump) -> Dump:
    """Read `  name ..... value` lines with any prefix. Names of 48 letters and more have no dots."""
    text = _plain(bytes(source.text)).decode("utf-8", "replace")
    settings: list[Setting] = []
    line, counted = source.line + 1, 0
    for match in islice(_ARGUMENT.finditer(text), MAX_NAMES):
        start = match.start()
        line += text.count("\n", counted, start)
        counted = start
        name, value = match.groups()
        settings.append(Setting(name, read_literal(value), "arguments", line))
    return Dump(source.line, False, tuple(settings))


def _read_summary(source: _OpenDump, *, whole: bool) -> Dump:
    """Read the `[section]` and `  name: value  (Mcore default: ...)` lines of the process that printed the title."""
    section = ""
    sections: set[str] = set()
    settings: list[Setting] = []
    for offset, raw in enumerate(source.text.split(b"\n"), start=1):
        line = unwrap(bytes(raw))
        if line.tags != source.tags:
            continue
        header = _SECTION.match(line.text)
        item = _ITEM.match(line.text)
        if header:
            sections.add(section)
            section = header[1]
        elif item and section and len(settings) < MAX_NAMES:
            value = line.text[item.end() :].partition(_DEFAULT)[0]
            settings.append(Setting(item[1], read_literal(value), "arguments", source.line + offset, section))
    if whole:
        sections.add(section)
    return Dump(source.line, True, tuple(settings), frozenset(sections - {""}))


SECTIONS = ("model", "train", "dataset", "ddp", "optimizer", "comm_overlap", "mixed_precision", "rng")
"""Sections by precedence for a name that appears in several sections of a summary."""

# Names that may differ between the processes of a job or after a resume although the configuration is the same
_PASSING = frozenset({"consumed_train_samples", "consumed_valid_samples", "iteration", "load", "rank", "local_rank"})


def merge(dumps: Sequence[Dump], notes: Notes) -> tuple[dict[str, Setting], dict[str, Value]]:
    """Return settings by the trainer's names, and every name of the dumps with its value.

    A later dump wins over an earlier one (a resumed job prints one per start). Changes are noted as problems.
    """
    settings: dict[str, Setting] = {}
    for dump in dumps:
        added = _of_summary(dump) if dump.is_summary else {setting.name: setting for setting in dump.settings}
        changed = [
            name for name in added.keys() & settings.keys() - _PASSING if settings[name].value != added[name].value
        ]
        if changed:
            listed = ", ".join(sorted(changed)[:10])
            notes.problem("changed settings", f"A later dump changes {len(changed)} settings: {listed}.", dump.line)
        settings.update(added)
    arguments = {name: setting.value for name, setting in settings.items() if setting.source != "default"}
    for dump in dumps:
        for setting in dump.settings if dump.is_summary else ():
            # A later summary may omit the name: then the default applies, and the name is not an argument
            if arguments.get(setting.name, setting.value) != setting.value:
                arguments[f"{setting.section}.{setting.name}"] = setting.value
    return settings, arguments


def _of_summary(dump: Dump) -> dict[str, Setting]:
    """Return what a summary lists, and Megatron Core's defaults for what its complete sections omit."""
    settings: dict[str, Setting] = {}
    for section in SECTIONS:
        for name, value in DEFAULTS.get(section, {}).items() if section in dump.sections else ():
            settings.setdefault(name, Setting(name, value, "default", dump.line, section))
    order = {section: place for place, section in enumerate(SECTIONS)}
    for setting in sorted(dump.settings, key=lambda entry: order.get(entry.section, len(SECTIONS)), reverse=True):
        settings[setting.name] = setting
    return settings

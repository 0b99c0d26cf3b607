"""Feed mutated logs to the reader, the figures and the explanations of failures, in this process.

Logs of the demo project get the damage that writers and file systems cause: numbers out of range, lost, repeated and
torn lines, flipped bytes, blocks of NUL. Nothing may raise, everything must be storable, and every figure must stay in
its physical range. `bench.fuzz` tests the reader more deeply, guided by code coverage.
"""

import json
import math
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from random import Random

from app.demo.story import render, story
from app.domain.logs import parse_text
from app.domain.performance.summary import summarise
from app.domain.run import Metadata
from app.storage.json_text import storable
from bench.soak.campaign import Scene, main

NUMBER = re.compile(rb"(?<![\w.])[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?")
DAMAGED_NUMBERS = (
    b"inf",
    b"-inf",
    b"nan",
    b"1e308",
    b"1e400",
    b"1e-320",
    b"-1",
    b"0",
    b"9" * 30,
    b"1e18",
    b"",
    b"0x1F",
)
SECONDS_OF_A_LOG = 10.0


def run(scene: Scene) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # overflows then raise
        _read_mutated_logs(scene)


def _read_mutated_logs(scene: Scene) -> None:
    logs = list(dict.fromkeys(render(job).encode() for job in story()))
    while scene.goes_on():
        log = scene.random.choice(logs)
        for _ in range(scene.random.randint(1, 4)):
            log = scene.random.choice(MUTATIONS)(log, scene.random)
        began = time.process_time()
        try:
            for sentence in impossible_figures(log):
                scene.tally.count("errors", sentence)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            scene.tally.count("errors", f"{type(error).__name__} in {place.name}, line {place.lineno}: {error}")
        if time.process_time() - began > SECONDS_OF_A_LOG:
            scene.tally.count("errors", f"more than {SECONDS_OF_A_LOG:.0f} processor seconds for a log")
        scene.tally.events += 1


def impossible_figures(log: bytes) -> Iterator[str]:
    """Yield the figures that are out of range. Raises any exception of the reader, the figures and the explanations."""
    summary = summarise(parse_text(log), Metadata())
    json.dumps(storable(asdict(summary)), allow_nan=False)
    for name, metric in summary.metrics.items():
        most = 100.0 if name == "mfu_pct" else math.inf
        if summary.error is None and metric and not (0 < metric.value <= most and math.isfinite(metric.value)):
            yield f"a run would be ready with {name} = {metric.value:g}"


def _damage_numbers(log: bytes, random: Random) -> bytes:
    share = random.choice((0.002, 0.02, 0.2))
    return NUMBER.sub(lambda match: random.choice(DAMAGED_NUMBERS) if random.random() < share else match[0], log)


def _damage_a_field(log: bytes, random: Random) -> bytes:
    """Replace the numbers after one name on all its lines."""
    names = list(set(re.findall(rb"[A-Za-z][\w /().-]{3,40}(?=[:=.]+ *[-+]?\d)", log)))
    if not names:
        return log
    field, number = re.escape(random.choice(names)), random.choice(DAMAGED_NUMBERS)
    return re.sub(rb"(" + field + rb"[:=. ]+)[-+]?\d[\d.,eE+-]*", lambda match: match[1] + number, log)


def _lose_lines(log: bytes, random: Random) -> bytes:
    return b"".join(line for line in log.splitlines(keepends=True) if random.random() > 0.1)


def _repeat_lines(log: bytes, random: Random) -> bytes:
    lines = log.splitlines(keepends=True)
    start = random.randrange(len(lines) + 1)
    return b"".join((*lines[:start], *lines[max(0, start - random.randint(1, 40)) :]))


def _shuffle_lines(log: bytes, random: Random) -> bytes:
    lines = log.splitlines(keepends=True)
    for _ in range(min(20, len(lines))):
        first, second = random.randrange(len(lines)), random.randrange(len(lines))
        lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


def _tear(log: bytes, random: Random) -> bytes:
    """Remove a range of bytes, as if two writers shared a file."""
    start = random.randrange(len(log) + 1)
    return log[:start] + log[start + random.randint(1, 500) :]


def _flip_bytes(log: bytes, random: Random) -> bytes:
    changed = bytearray(log)
    for _ in range(random.randint(1, 50) if changed else 0):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def _punch_a_hole(log: bytes, random: Random) -> bytes:
    start, size = random.randrange(len(log) + 1), random.choice((1, 512, 4096))
    return log[:start] + bytes(size) + log[start + size :]


def _cut(log: bytes, random: Random) -> bytes:
    return log[: random.randrange(len(log) + 1)]


MUTATIONS: tuple[Callable[[bytes, Random], bytes], ...] = (
    _damage_numbers, _damage_a_field, _lose_lines, _repeat_lines, _shuffle_lines, _tear, _flip_bytes, _punch_a_hole,
    _cut,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(run, __doc__))

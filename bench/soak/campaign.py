"""Shared parts of the campaigns: limits, counts and the table of results."""

import argparse
import os
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from bench import options
from tests.embedded.processes import is_alive
from tests.services.scaled import QUICK

MARK = "SOAK_CAMPAIGN"
"""Environment variable that marks all processes of a campaign, including children."""

ENDING_SECONDS = 20
"""Seconds that processes may need to notice that their server was killed."""

_UNLIMITED = {"THREEWALLS_REQUESTS_PER_MINUTE": "0", "THREEWALLS_UPLOADS_PER_MINUTE": "0"}


@dataclass
class Tally:
    """The counts of a campaign. `lost`, `doubled`, `orphans` and `errors` must stay 0.

    `events`: kills, disconnections, damages or mutated logs. `acknowledged`: runs. `lost`: acknowledged runs that are
    later missing, incomplete or unread. `doubled`: more runs or iterations than sent. `orphans`: processes, files and
    rows without a reference. `errors`: answers and exceptions that the fault does not explain. `details` describes
    each.
    """

    events: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    orphans: int = 0
    errors: int = 0
    details: Counter[str] = field(default_factory=Counter)

    def count(self, kind: Literal["lost", "doubled", "orphans", "errors"], detail: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        self.details[f"{kind}: {detail}"] += 1

    @property
    def verdict(self) -> str:
        if self.lost or self.doubled:
            return "LOSS"
        return "failed" if self.orphans or self.errors else "held"


@dataclass
class Scene:
    """Folder and environment of a campaign and of all processes that it starts."""

    folder: Path
    environment: pytest.MonkeyPatch
    random: Random
    tally: Tally
    end: float
    most_events: int

    def goes_on(self) -> bool:
        """Return whether to continue. At least one event takes place, even if the servers started slowly."""
        events = self.tally.events
        return events == 0 or (time.monotonic() < self.end and events < self.most_events)


@dataclass(frozen=True)
class Result:
    name: str
    seconds: float
    tally: Tally


Campaign = Callable[[Scene], None]


def perform(campaign: Campaign, *, minutes: float, events: int, seed: int) -> Result:
    """Run one campaign in its own folder, and clean up after it."""
    tally, began, mark = Tally(), time.monotonic(), uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="threewalls-soak-") as name, pytest.MonkeyPatch.context() as environment:
        folder, temporary = Path(name), Path(name) / "tmp"
        temporary.mkdir()
        for variable, value in {**QUICK, **_UNLIMITED, MARK: mark, "TMPDIR": str(temporary)}.items():
            environment.setenv(variable, value)
        scene = Scene(folder / "campaign", environment, Random(seed), tally, began + 60 * minutes, events)
        scene.folder.mkdir()
        try:
            campaign(scene)
        except Exception as error:
            tally.count("errors", f"the campaign was aborted: {type(error).__name__}: {error}")
        finally:
            for orphan in (*_end_processes(mark), *temporary.iterdir()):
                tally.count("orphans", str(orphan))
    return Result(Path(campaign.__code__.co_filename).stem, time.monotonic() - began, tally)


def main(campaign: Campaign, module_doc: str | None) -> int:
    """Run one campaign from the command line."""
    return run_all([campaign], module_doc)


def run_all(campaigns: Iterable[Campaign], module_doc: str | None) -> int:
    """Run the campaigns of the command line and print their table. Return the exit code: 1 if one failed."""
    parser = options.parser(module_doc)
    parser.add_argument("--minutes", type=_minutes, default=1.0, help="duration of each campaign (1)")
    parser.add_argument("--events", type=options.count, default=100_000, help="most events of each campaign (100,000)")
    parser.add_argument("--seed", type=int, default=1, help="of all random choices (1)")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stops the processes that it started
    results = []
    for campaign in campaigns:
        results.append(perform(campaign, minutes=asked.minutes, events=asked.events, seed=asked.seed))
        print(f"{results[-1].name}: {results[-1].tally.verdict}", file=sys.stderr, flush=True)
    print(table(results))
    return int(any(result.tally.verdict != "held" for result in results))


def table(results: Iterable[Result]) -> str:
    lines = [f"{'campaign':16} seconds   events  acknowledged  lost  doubled  orphans  errors  verdict"]
    for result in results:
        tally = result.tally
        lines.append(
            f"{result.name:16} {result.seconds:7.0f}  {tally.events:7}  {tally.acknowledged:12}  {tally.lost:4}  "
            f"{tally.doubled:7}  {tally.orphans:7}  {tally.errors:6}  {tally.verdict}"
        )
        lines += [f"    {count} x {detail}" for detail, count in tally.details.most_common(10)]
    return "\n".join(lines)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= 24 * 60:
        raise argparse.ArgumentTypeError(f"must be a number of minutes, at most a day, not {text!r}")
    return minutes


def _end_processes(mark: str) -> list[str]:
    """Kill processes that outlived their campaign. Return their commands."""
    end = time.monotonic() + ENDING_SECONDS
    while (left := _processes(mark)) and time.monotonic() < end:
        time.sleep(0.2)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return list(left.values())


def _processes(mark: str) -> dict[int, str]:
    """Return the commands of the running processes of a campaign, by process id."""
    wanted = f"{MARK}={mark}".encode()
    commands = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes() and is_alive(int(folder.name)):
                commands[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
    commands.pop(os.getpid(), None)
    return commands

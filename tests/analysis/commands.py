"""The `threewalls` command, and generated logs for it to read."""

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from app.cli import main
from app.demo.job import DemoJob, Failure, Recording, Workload, ci_step_times, never_started, record
from app.demo.story import CI_CENTRE_MS, CI_MAX_ALLOCATED, CI_WORKLOAD, render

PLACE = {"gpu": "H100", "cluster": "west", "container": "train:2026.09", "gpus_per_node": "8"}
"""What the generated logs do not say; with it nothing is provisional."""


@dataclass(frozen=True)
class Answer:
    code: int
    output: str
    errors: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    @property
    def document(self) -> Any:
        return json.loads(self.output)


def threewalls(*arguments: object) -> Answer:
    """Run the command in this process: starting a process takes fifty times as long as reading a test log."""
    output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in "oe")
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as usage:  # argparse
            code = int(usage.code or 0)
    texts = [stream.detach().getvalue().decode() for stream in (output, errors)]
    assert "Traceback" not in texts[1], texts[1]
    return Answer(code, *texts)


def threewalls_process(*arguments: object, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> Answer:
    words = [sys.executable, "-m", "app.cli", *(str(argument) for argument in arguments)]
    done = subprocess.run(words, capture_output=True, input=stdin, timeout=300, check=False, env=env)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


def setting(fields: Mapping[str, object]) -> list[str]:
    return [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]


def generated_log(
    seed: int,
    *,
    slower: float = 1.0,
    workload: Workload = CI_WORKLOAD,
    memory: float = 1.0,
    failure: Failure | None = None,
    iterations: int = 50,
) -> str:
    """A CI job of the demo, `slower` times as slow, with `memory` times its memory; a broken import without any."""
    random = np.random.default_rng(seed)
    if failure in ("deepep missing", "hybridep missing"):
        recording: Recording = never_started(failure)
    else:
        times = ci_step_times(random, CI_CENTRE_MS, iterations) * slower
        recording = replace(record(random, times, CI_MAX_ALLOCATED * memory), failure=failure)
    started = datetime(2026, 9, 1, tzinfo=UTC)
    return render(DemoJob("test", "Megatron-LM", workload, recording, "", started, "", purpose="ci", branch="main"))


def write_logs(folder: Path, seeds: Sequence[int], prefix: str = "base", **facts: Any) -> list[Path]:
    paths = []
    for seed in seeds:
        path = folder / f"{prefix}-{seed}.log"
        path.write_text(generated_log(seed, **facts))
        paths.append(path)
    return paths

"""Feed mutated logs to the reader, guided by code coverage.

    make setup; .venv/bin/python -m bench.fuzz bench/.cache/fuzz -max_total_time=600

Install atheris first, which is not a dependency of the project: `uv pip install atheris`. Arguments go to libFuzzer;
the folder keeps inputs that reached new code. Neither the reader nor the explanation of its result may raise. Both must
be storable, and the result must not depend on the chunks in which the bytes arrive.
"""

import json
import sys
from dataclasses import asdict, fields

import atheris

with atheris.instrument_imports(include=["app.domain"]):
    from app.domain.logs import parse_log, parse_text
    from app.domain.logs.read import Reading
    from app.domain.performance.summary import summarise
    from app.domain.run import Metadata, ParsedLog
    from app.storage.json_text import storable

SEEDS = (
    b" [2026-05-11 02:59:22.912300] iteration 1/ 20 | consumed samples: 896 | elapsed time per iteration (ms): 78258.5/"
    b"2 | compute per GPU (TFLOP/s/GPU): 4.3 (avg 4.1) | hip mem usage/free: 2.5GB/1GB | lm loss: 1.2E+01 |\n",
    b"Training epoch 0, iteration 1/99 | lr: 1.9e-07 | train_step_timing in s: 2.008 | consumed_samples: 8\n",
    b"train_step_timing in s: [9.9, 7.12]\n",
    b"2026 | INFO | step 00000001/00000015 | step-time 43.142 sec | tokens-per-second 48,611 |\n",
    b"(min, max) time across ranks (ms):\n    optimizer ........: (1.00, 2.00)\ntime (ms) | fwd: 1.0\n",
    b"times across ranks (ms):\n  optimizer:\n     rank  0: 1.00\nmax time across ranks (ms):\n    a ....: 1.0\n",
    b"--- arguments ---\n  num_experts ...... 64\n  moe_layer_freq ..... [1, 0]\n--- end of arguments ---\n",
    b"Configuration Summary (Non-Default Values)\n" + b"=" * 70 + b"\n[model]:\n  num_moe_experts: 128\n" + b"=" * 70,
    b"Step Time : 2.26s GPU utilization: 1156.2MODEL_TFLOP/s/GPU\n",
    b"[Rank 3] (after 2 iterations) memory (MB) | allocated: 10.5 | max allocated: 20.5\n",
    b"[rank4]: torch.OutOfMemoryError: CUDA out of memory.\n  successfully loaded checkpoint from c at iteration 45\n",
    b'{"log":"part","stream":"stdout","time":"1"}\n{"log":" end\\n","stream":"stdout","time":"1"}\n',
    b"2026-04-14T17:50:00.281177123Z stdout P part\n2026-04-14T17:50:00.281177123Z stdout F end\n",
    b"using world size: 8, data-parallel size: 1\nTheoretical memory footprints: weight and optimizer=1.5 MB\n",
)
WORDS = tuple(dict.fromkeys(key for reader in Reading()._readers() for key in reader.keys))


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Mutate with libFuzzer, or sometimes insert a seed or a key, because random mutations rarely form one."""
    kind, at = seed % 4, seed // 4 % (len(data) + 1)
    if kind == 0:
        piece = SEEDS[seed // 7 % len(SEEDS)]
    elif kind == 1:
        piece = WORDS[seed // 7 % len(WORDS)]
    else:
        return bytes(atheris.Mutate(data, max_size))
    return (data[:at] + piece + data[at:])[:max_size]


def check(data: bytes) -> None:
    log = parse_text(data)
    sizes = {len(column) for column in log.columns.values()} | {log.n}
    assert len(sizes) == 1, sizes
    assert log.line_count == data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))
    json.dumps({name: repr(getattr(log, name)) for name in plain(log)}, allow_nan=False).encode()
    json.dumps(storable(asdict(summarise(log, Metadata()))), allow_nan=False)
    step = 1 + len(data) // 7
    again = parse_log([data[at : at + step] for at in range(0, len(data), step)])
    assert all(getattr(log, name) == getattr(again, name) for name in plain(log))


def plain(log: ParsedLog) -> list[str]:
    """Return all fields except arrays."""
    return [field.name for field in fields(log) if field.name not in ("columns", "line_numbers")]


def main() -> None:
    if {"-h", "--help"} & set(sys.argv):  # libFuzzer ignores flags with two hyphens and runs
        print(__doc__)
        return
    atheris.Setup([*sys.argv, "-max_len=4096", "-timeout=10", "-rss_limit_mb=2048"], check, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

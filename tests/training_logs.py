"""Logs to upload: the lines that Megatron-LM prints, with any step time."""

LINE = (
    " [2026-08-22 10:{minute:02}:{second:02}] iteration {iteration:8}/{total:8} | consumed samples: {samples:12} |"
    " elapsed time per iteration (ms): {step_time_ms:.1f} | throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |"
    " learning rate: 1.000000E-04 | global batch size:  1024 | lm loss: {loss:.6E} | loss scale: 1.0 |"
    " grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def training_log(iterations: int = 50, step_time_ms: float = 412.0, noise_bytes: int = 0) -> bytes:
    """`iterations` lines with a little deterministic jitter; `noise_bytes` of other lines are put in between."""
    noise = b"INFO:megatron: a line that says nothing about speed\n"
    lines = []
    for iteration in range(1, iterations + 1):
        line = LINE.format(
            minute=iteration // 60 % 60,
            second=iteration % 60,
            iteration=iteration,
            total=iterations,
            samples=1024 * iteration,
            step_time_ms=step_time_ms + iteration * 7919 % 13 / 10,
            tflops=193.1 * 412 / step_time_ms,
            loss=11 - iteration / 100,
        )
        lines.append(line.encode() + noise * (noise_bytes // iterations // len(noise)))
    return b"".join(lines)

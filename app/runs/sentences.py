"""The sentence that a run's page begins with: what came out, how sure it is, what it may be used for."""

from app.domain.run import SteadyState
from app.storage.run_records import RunDetail
from app.web.numbers import counted, figure, percent

_ENDINGS = {
    "out_of_memory": "The job ran out of memory",
    "failed": "The job ended in an error",
    "not_finite": "The loss or the gradient became NaN or infinite",
    "stopped": "The job was stopped by a time limit or a signal",
    "truncated": "The log ends before the last planned iteration",
}
_WAITING = {
    "received": "The log is stored and waits for a worker.",
    "processing": "A worker is reading the log.",
}


def answer(run: RunDetail) -> str:
    """One to three short sentences in plain words."""
    if run.status in _WAITING:
        return _WAITING[run.status]
    if run.status == "unread":
        return run.error or "No reader knows this log."
    if run.status == "failed":
        if run.receiving:
            return "No iteration has come in yet."
        return "No figure could be read from this run" + (f": {run.failures[0].title}." if run.failures else ".")
    sentences = [_speed(run), "" if run.receiving else _ending(run), _meaning(run)]
    return " ".join(sentence for sentence in sentences if sentence)


def _speed(run: RunDetail) -> str:
    metric, steady = run.metrics.get("step_time_ms"), run.steady_state
    if metric is None or steady is None:
        return "The iterations were read, but they are too few for a steady step time."
    shown = figure(metric, "step_time_ms")
    width = f" ± {shown.half}" if shown.half else ""
    where = f"over iterations {steady.first_iteration:,} to {steady.last_iteration:,}"
    return f"{shown.text}{width} per step {where}, {_steadiness(steady)}."


def _steadiness(steady: SteadyState) -> str:
    window = "the declared window" if steady.method == "declared" else "the detected steady window"
    if not steady.is_steady:
        return f"{window}, which is not steady: {'; '.join(steady.reasons) or 'too few iterations'}"
    if steady.short:
        return f"{window} of only {counted(steady.n, 'iteration')}: directional, a longer run must confirm it"
    if steady.spike_share > 0:
        return f"{window}; {percent(steady.spike_share * 100)} of its iterations are spikes"
    return window


def _ending(run: RunDetail) -> str:
    ending = _ENDINGS.get(str(run.health.get("outcome")))
    return f"{ending}; the figures are of the iterations before." if ending else ""


def _meaning(run: RunDetail) -> str:
    if run.semantic_class == "benchmark_only":
        return "Benchmark only: forced routing or made-up data, so it is never compared with real training."
    return ""


def report(run: RunDetail) -> str:
    """What was not understood of a run's logs: one line a kind, with the first example of each."""
    head = f"Threewalls definitions {run.definition_version}, trainer {run.trainer or 'unknown'}"
    lines = [f"{example.count} x {example.kind}: {example.example}" for example in run.not_understood]
    return "\n".join([head, *lines])

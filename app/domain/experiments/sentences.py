"""What an experiment's result is, in the sentence that is read first. How sure it is: the verdict's own words."""

from app.domain.detection import Verdict
from app.domain.detection.certainty import within
from app.domain.experiments.values import ExperimentResult
from app.domain.numbers import THIN, counted

_WINNERS = {
    "candidate": "The change is faster",
    "baseline": "The change loses",
}


def result_sentence(result: ExperimentResult, runs_each: int) -> str:
    """With the gain in throughput and its interval, and on how many runs it rests."""
    verdict = result.verdict
    if verdict is None:
        return _nothing_yet(result, runs_each)
    rests_on = f"{counted(len(result.candidate), 'run')} against {len(result.baseline)}"
    if verdict.step_time is None or result.gain is None:
        return f"Nothing can be said of the step time ({rests_on}). {verdict.reason}"
    gain = result.gain
    measured = f"{gain.pct:+.1f}{THIN}% throughput ({gain.low_pct:+.1f} to {gain.high_pct:+.1f}{THIN}%, {rests_on})"
    if not result.finished:
        return f"So far {measured}. That decides nothing before {runs_each} runs a side are there."
    early = (
        " Decided before all planned runs were there, by the stricter test of an early look." if result.early else ""
    )
    if result.winner:
        return f"{_WINNERS[result.winner]}: {measured}.{_guards(verdict)}{early}"
    if verdict.decision == "no_change":
        return f"No difference: {measured}. The two are shown to be {within(verdict.step_time)}."
    return f"Undecided: {measured}.{_guards(verdict)} {_MORE}".rstrip()


_EARLY = " Decided before all planned runs were there, by the stricter test of an early look."
_MORE = "More runs a side would see a smaller effect."


def _nothing_yet(result: ExperimentResult, runs_each: int) -> str:
    missing = [side for side in ("baseline", "candidate") if not result.counted(side)]
    return f"No run of the {' and none of the '.join(missing)} counts yet; {runs_each} a side are planned."


def _guards(verdict: Verdict) -> str:
    """Memory and loss, where they are the reason."""
    found = []
    if verdict.memory is not None and verdict.memory.decision == "regression":
        found.append(f"it needs {verdict.memory.delta_pct:+.1f}{THIN}% memory")
    if verdict.loss is not None and verdict.loss.decision == "worse":
        found.append("its loss is clearly worse")
    return f" But {' and '.join(found)}." if found else ""

"""The worked example of `docs/verdicts.md`: its step times in, its results out."""

import math
import re
from pathlib import Path

import pytest

from app.domain.verdict.decide import judge
from app.domain.verdict.step_time import Prior, RunEstimate

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "verdicts.md"
EXAMPLE = DOCUMENT.read_text().partition("## A worked example")[2].partition("\n## ")[0]
PRIOR = Prior(variance=0.007326**2, degrees_of_freedom=10.03, configurations=7)


def run(name: str, ms: float) -> RunEstimate:
    return RunEstimate(run=name, log_step_time=math.log(ms), se=0.0022, window_length=50)


def baseline() -> list[RunEstimate]:
    times = re.search(r"```text\n(.*?)```", EXAMPLE, re.DOTALL)
    assert times is not None
    return [run(f"b{number}", float(ms)) for number, ms in enumerate(times[1].split())]


@pytest.mark.parametrize(
    ("launches", "looks", "printed"),
    [
        ([22270.70], 1, {"shift": "6.012 %", "standard_error": "0.5992 %", "run_to_run_sd": "0.5774 %"}),
        ([22270.70, 22200.00], 2, {"shift": "5.853 %", "standard_error": "0.4304 %", "run_to_run_sd": "0.5667 %"}),
    ],
)
def test_the_numbers_of_the_example_come_out(launches: list[float], looks: int, printed: dict[str, str]) -> None:
    verdict = judge([run(f"c{ms}", ms) for ms in launches], baseline(), PRIOR, looks=looks)
    time = verdict.step_time
    assert time is not None
    assert (verdict.decision, time.degrees_of_freedom, len(verdict.baseline_used)) == ("regression", 12, 13)
    assert math.exp(math.log(time.candidate_ms) - time.shift) == pytest.approx(20971.27, abs=0.05)
    for name, text in printed.items():
        assert text in EXAMPLE
        decimals = len(text.removesuffix(" %").partition(".")[2])
        assert 100 * getattr(time, name) == pytest.approx(float(text.removesuffix(" %")), abs=1.5 * 10**-decimals)
    if looks == 1:
        shown = (f"{time.delta_pct:.1f} %", f"{time.ci_low_pct:.1f} %", f"{time.ci_high_pct:.1f} %")
        assert shown == ("6.2 %", "4.3 %", "8.2 %")
        assert all(f"= {text}" in EXAMPLE for text in shown)

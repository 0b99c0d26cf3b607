"""The A/B in numbers worked out by hand; looking early gains nothing; what does not count changes nothing."""

import math

import numpy as np
import pytest

from app.domain.experiments.outcome import Member, outcome
from app.domain.experiments.plan import size
from app.domain.run import Activity, Stated
from app.domain.verdict.step_time import Comparison, Prior
from tests.domain.experiments.members import ENROLMENT, SURE, member, rules, sides, with_figures


def test_the_gain_and_its_interval() -> None:
    """Two against two, 5 % less step time in ln: 1 / e^-0.05 - 1 = 5.13 % more throughput.

    df 12, moderated variance (20 * 0.4 %^2 + 0) / 21, SE 0.39036 % * sqrt(2/2), t(0.995, 12) = 3.0545: half 1.1924 %.
    """
    found = outcome(sides((0.0, 0.0), (-0.05, -0.05)), ENROLMENT, rules())
    assert found.gain is not None
    half = 3.0545 * math.sqrt(20 / 21) * 0.004
    assert found.gain.pct == pytest.approx(100 * math.expm1(0.05), abs=1e-6)
    assert found.gain.low_pct == pytest.approx(100 * math.expm1(0.05 - half), abs=0.002)
    assert found.gain.high_pct == pytest.approx(100 * math.expm1(0.05 + half), abs=0.002)
    assert (found.winner, found.finished, found.early, found.looks) == ("candidate", True, False, 3)
    assert (found.attributed_to, found.from_value, found.to_value) == ("dispatcher", "alltoall", "deepep")
    assert found.evidence_level == "validated"
    assert found.sentence.startswith("The change is faster: +5.1")


@pytest.mark.parametrize(
    ("candidate", "winner", "word"),
    [
        ((-0.05, -0.05), "candidate", "faster"),
        ((0.05, 0.05), "baseline", "slower"),
        ((0.0, 0.0), "", "No difference"),
        ((-0.0133, -0.0133), "", "Undecided"),
    ],
)
def test_who_wins(candidate: tuple[float, ...], winner: str, word: str) -> None:
    found = outcome(sides((0.0, 0.001), candidate), ENROLMENT, rules())
    assert (found.winner, found.finished) == (winner, True)
    assert word in found.sentence


def test_an_early_look_asks_for_more_certainty() -> None:
    """Two of four a side: seven looks are planned, so p is 1 - 0.002 / 7 there: t(0.99971, 12) = 4.63, not 3.55.

    Its limit is 4.63 * 0.39 % = 1.81 %, that of the last look 1.39 %.
    """
    between = sides((0.0, 0.0), (-0.016, -0.016))
    assert outcome(between, ENROLMENT, rules(2)).winner == "candidate"
    early = outcome(between, ENROLMENT, rules(4))
    assert (early.winner, early.finished) == ("", False)
    assert "No decision before 4 runs per side" in early.sentence
    beyond = outcome(sides((0.0, 0.0), (-0.02, -0.02)), ENROLMENT, rules(4))
    assert (beyond.winner, beyond.finished, beyond.early) == ("candidate", True, True)
    assert "stricter test" in beyond.sentence


def test_changing_the_number_of_runs_afterwards_asks_for_more_certainty() -> None:
    between = sides((0.0, 0.0), (-0.0142, -0.0142))
    assert outcome(between, ENROLMENT, rules()).winner == "candidate"
    assert outcome(between, ENROLMENT, rules(extensions=3)).winner == ""


def test_memory_and_loss_are_guards() -> None:
    def made(memory: float, loss: float) -> list[Member]:
        figures = {"baseline": (60e9, 2.0), "candidate": (memory, loss)}
        return [with_figures(one, *figures[one.side]) for one in sides((0.0, 0.0), (-0.05, -0.05))]

    more_memory = outcome(made(70e9, 2.0), ENROLMENT, rules())
    assert more_memory.winner == "baseline"
    assert "memory" in more_memory.sentence
    worse = outcome(made(60e9, 2.2), ENROLMENT, rules())
    assert worse.winner == ""
    assert "loss is clearly worse" in worse.sentence


@pytest.mark.parametrize(
    ("change", "level", "because"),
    [
        ({}, "validated", ""),
        ({"level": "screen"}, "matched_ab", "not every run is validated"),
        ({"level": "smoke"}, "smoke", "too few steady iterations"),
        ({"short": True}, "screen", "short runs"),
        ({"commit": "another"}, "screen", "different commits"),
    ],
)
def test_the_evidence_is_no_better_than_its_runs(change: dict[str, object], level: str, because: str) -> None:
    made = [*sides((0.0, 0.0), ()), *(member(f"c{place}", "candidate", -0.05, **change) for place in range(2))]  # type: ignore[arg-type]
    found = outcome(made, ENROLMENT, rules())
    assert found.evidence_level == level
    assert because in found.evidence_because


def test_no_run_counts_on_two_sides_and_the_order_of_what_does_not_count_is_nothing() -> None:
    fell_back = Activity(Stated("deepep", "arguments"), Stated("alltoall", "log line", "line 9"), agrees=False)
    stranger = member("x", "candidate", -0.9, activity={"dispatcher": fell_back})
    made = sides((0.0, 0.001), (-0.05, -0.049))
    first = outcome([*made, stranger], ENROLMENT, rules())
    second = outcome([stranger, *made], ENROLMENT, rules())
    assert first.baseline == second.baseline == ("b0", "b1")
    assert first.candidate == second.candidate == ("c0", "c1")
    assert not set(first.baseline) & set(first.candidate)
    assert "`dispatcher` = deepep was requested, but alltoall was active (line 9)" in first.left_out[-1].why
    assert first.gain == second.gain == outcome(made, ENROLMENT, rules()).gain
    assert outcome(made, ENROLMENT, rules()) == outcome(list(made), ENROLMENT, rules())


def test_the_planned_number_has_the_planned_power() -> None:
    """Of 4,000 experiments with the smallest effect that is promised, eight in ten find it."""
    prior = Prior(variance=0.01**2, degrees_of_freedom=40, configurations=9)
    sizing = size([], prior, runs_each=5)
    effect = -math.log1p(-sizing.smallest_pct / 100)
    draws = np.random.default_rng(5).normal(0, 0.01 * math.sqrt(2 / 5), 4000) - effect
    found = sum(Comparison(shift, prior.variance, prior, 0.0, 0.0).decide(5, 5) == "improvement" for shift in draws)
    assert 0.76 < found / len(draws) < 0.86


def test_looking_after_every_run_does_not_make_winners() -> None:
    """Without any effect, of 4,000 experiments of five runs a side looked at after each run: fewer than twice 0.2 %
    (a faster candidate) and twice 0.5 % (a slower one)."""
    rng = np.random.default_rng(11)
    prior = Prior(variance=0.02**2, degrees_of_freedom=40, configurations=9)
    wins = losses = 0
    for a, b in zip(rng.normal(0, 0.02, (4_000, 5)), rng.normal(0, 0.02, (4_000, 5)), strict=True):
        decided = [
            Comparison(b[:k].mean() - a[:k].mean(), prior.variance, prior, 0.0, 0.0).decide(k, k, 1 if k == 5 else 9)
            for k in range(1, 6)
        ]
        first = next((one for one in decided if one in ("improvement", "regression")), "")
        wins, losses = wins + (first == "improvement"), losses + (first == "regression")
    assert wins / 4_000 < 0.004
    assert losses / 4_000 < 0.01


def test_the_prior_of_the_plan_is_the_one_of_the_result() -> None:
    found = outcome(sides((0.0,), (-0.05,)), ENROLMENT, rules(1))
    assert found.verdict is not None
    assert found.verdict.prior == SURE

"""Where sources contradict each other: own A/Bs above what is published, that above the founding documents."""

import pytest

from app.domain.rules.evidence import OwnResult
from app.domain.rules.load import built_in_rules
from app.domain.rules.stated import Contradiction, contradictions, overruling, source_level

SOURCES = built_in_rules().sources
GAIN = OwnResult("x", 3, 18.2, 12.0, 21.0)
LOSS = OwnResult("x", 2, -6.0, -8.0, -4.0)
UNSETTLED = OwnResult("x", 2, 1.0, -1.0, 3.0)


def dispute(older: str, newer: str, *, measurable: bool = True) -> Contradiction:
    return Contradiction(("x",), "old", (older,), "new", (newer,), "kept", measurable)


@pytest.mark.parametrize(
    ("older", "newer", "own", "side", "said"),
    [
        ("S4", "U-disp", (), "newer", "published evidence outranks a founding document"),
        ("U-off", "M-arg", (), "newer", "what is enforced in code outranks published evidence"),
        ("C-co", "U-eo", (), "older", "The older statement applies: what is enforced in code"),
        (
            "U-eo",
            "X-deepep",
            (),
            "both",
            "Neither outranks the other: both are published evidence. The newer one is dated 2026-07-14",
        ),
        ("S4", "U-disp", (GAIN,), "here", "Our own A/B gained 18.2 % (n = 3), which outranks both"),
        ("S4", "U-disp", (LOSS,), "here", "Our own A/B lost 6.0 %"),
        ("S4", "U-disp", (UNSETTLED,), "newer", "published evidence"),
        ("S4", "M-tc", (GAIN,), "newer", "enforced in code"),
    ],
)
def test_the_stronger_statement_counts(
    older: str, newer: str, own: tuple[OwnResult, ...], side: str, said: str
) -> None:
    found = overruling(dispute(older, newer), SOURCES, own)

    assert found.side == side
    assert said in found.because


def test_an_ab_says_nothing_about_what_it_does_not_measure() -> None:
    assert overruling(dispute("S4", "U-disp", measurable=False), SOURCES, (GAIN,)).side == "newer"


def test_a_readme_and_recipes_enforce_nothing() -> None:
    assert [source_level(key) for key in ("M-arg", "C-co", "M-readme", "C-rec", "U-wf", "S0")] == [1, 1, 4, 4, 4, 5]


def test_every_contradiction_has_a_ruling_and_some_can_be_measured() -> None:
    assert all(overruling(one, SOURCES).because for one in contradictions())
    assert sum(one.measurable for one in contradictions()) == 9

"""A few events of the campaigns in `bench/soak`: nothing acknowledged is lost or duplicated, nothing is left over.

Each is deterministic except for the machine's speed. `make test` runs one on the embedded service, one in the scaled
mode, and the readers. `make soak` runs one of each for minutes or hours.
"""

import os
from types import ModuleType

import pytest

from bench.soak import damaged_objects, database_away, disk_full, embedded_kill, mixed_load, reader_fuzz, scaled_kill
from bench.soak.__main__ import CAMPAIGNS
from bench.soak.campaign import Tally, perform, table
from tests.cases import sized

EVENTS = {
    embedded_kill: 1,
    scaled_kill: 1,
    disk_full: 1,
    database_away: 1,
    damaged_objects: 1,
    reader_fuzz: 150,
    mixed_load: 10,
}


IN_EVERY_RUN = (embedded_kill, database_away, reader_fuzz)
"""Each of the others takes 7 to 14 processor seconds. Tests of one fault at a time hold what they are about, too:
`services/test_scaled_mode`, `runs/test_damaged_logs`, `runs/test_bad_uploads`, `hardening/test_overload`."""


@pytest.mark.parametrize(
    "campaign", sized(IN_EVERY_RUN, tuple(EVENTS)), ids=lambda campaign: campaign.__name__.rpartition(".")[2]
)
def test_a_sample_of_each_campaign_passes(campaign: ModuleType) -> None:
    if campaign is disk_full and os.geteuid() != 0:
        pytest.skip("a small disk is mounted by root only")
    result = perform(campaign.run, minutes=5, events=EVENTS[campaign], seed=14)
    assert result.tally.verdict == "held", table([result])
    assert result.tally.events >= EVENTS[campaign]
    assert result.tally.acknowledged or campaign is reader_fuzz


def test_every_campaign_has_a_sample() -> None:
    assert set(CAMPAIGNS) == set(EVENTS)


def test_a_loss_does_not_count_as_success() -> None:
    verdicts = {kind: Tally() for kind in ("lost", "doubled", "orphans", "errors")}
    for kind, tally in verdicts.items():
        tally.count(kind, "as an example")
    assert [tally.verdict for tally in verdicts.values()] == ["LOSS", "LOSS", "failed", "failed"]
    assert Tally(events=3, acknowledged=3).verdict == "held"

"""The suspects of a regression as cards: the change, the evidence from all members, and an action."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from app.domain.contract.values import shown
from app.domain.numbers import levels_text, plural
from app.domain.run import Stated
from app.domain.text import range_address
from app.domain.verdict.evidence import (
    LABELS,
    NO_EVIDENCE,
    RankedSuspect,
    SharedSuspect,
    SuspectLabel,
    alternating_runs,
    node_text,
    shared_suspects,
    value_text,
)
from app.domain.verdict.upgrade import shared_commit_label
from app.domain.verdict.words import side_text

MOST_SHOWN = 3
"""Cards in sight; the others are folded."""


@dataclass(frozen=True, slots=True)
class SuspectingJob:
    """A job with its suspects. `run_id`: its first slow run. `before`: number and commit of the run before, if any.

    `nodes`: those that the first slow run states, in Slurm's notation; empty if none.
    """

    suspects: Sequence[RankedSuspect]
    run_id: int
    commit: str
    before: tuple[int, str] | None
    nodes: str = ""


@dataclass(frozen=True, slots=True)
class UpgradeReportOf:
    """The upgrade report that opened a regression: the upgraded field, and the query of its address."""

    field: str
    query: str


@dataclass(frozen=True, slots=True)
class SuspectCard:
    """`label`: how likely it is. `jobs`: how many name it.

    `action`: label and address, or None. `beside`: the other suspect that the same jobs support equally.
    """

    field: str
    axis: str
    before: str
    after: str
    reason: str
    label: SuspectLabel
    evidence: tuple[str, ...]
    jobs: int
    action: tuple[str, str] | None
    beside: str = ""

    @property
    def level(self) -> int:
        """Return the number of bars that stand for its label."""
        return LABELS.index(self.label)


def suspect_cards(
    jobs: Sequence[SuspectingJob],
    compare_url: str,
    *,
    may_plan: bool,
    upgrade: UpgradeReportOf | None = None,
) -> tuple[SuspectCard, ...]:
    """Return one card per change, best supported first.

    `may_plan`: the user may plan experiments. `upgrade`: the report that opened the regression, if one did.
    """
    shared = shared_suspects([job.suspects for job in jobs])
    node = _node_card(jobs)
    if node:
        # The card of the node says that the code of these jobs does not matter.
        others = (item for item in shared if not (item.ranked.alternates and item.ranked.suspect.axis == "code"))
        shared = tuple(replace(item, ranked=replace(item.ranked, alternates=None)) for item in others)
    if not any(item.ranked.suspect.axis == "code" for item in shared):
        upgrade = None  # its report distinguishes only code and the upgraded field
    return (*node, *(_card(item, jobs, compare_url, may_plan, upgrade) for item in shared))


def _node_card(jobs: Sequence[SuspectingJob]) -> tuple[SuspectCard, ...]:
    """Return the card of the node, if a job alternates between two levels whatever its code; code cannot do this."""
    levels = alternating_runs((job.run_id, job.suspects) for job in jobs)
    if not levels:
        return ()
    run_id, both = next(iter(levels.items()))
    nodes = next(job.nodes for job in jobs if job.run_id == run_id)
    ran_on = f"#{run_id} ran on {nodes}." if nodes else f"#{run_id} does not state its node."
    rerun = f"Rerun #{run_id} on {'another' if nodes else 'a named'} node"
    return (
        SuspectCard(
            "", "place", "", "", node_text(run_id), "possible",
            (f"The job alternates between {levels_text(both)}, whatever its code.", ran_on),
            len(levels), (rerun, f"/runs/{run_id}?tab=why#rerun"),
        ),
    )  # fmt: skip


def _card(
    shared: SharedSuspect,
    jobs: Sequence[SuspectingJob],
    compare_url: str,
    may_plan: bool,
    upgrade: UpgradeReportOf | None,
) -> SuspectCard:
    ranked = shared.ranked
    suspect, difference = ranked.suspect, ranked.suspect.difference
    before, after = (_side(suspect.field, side) for side in (difference.a, difference.b)) if difference else ("", "")
    evidence = ranked.evidence or (NO_EVIDENCE,)
    if len(shared.by_job) < len(jobs):
        evidence = (*ranked.evidence, f"In {len(shared.by_job)} of {plural(len(jobs), 'job')}.")
    best = next(job for job, item in shared.by_job.items() if item.suspect == suspect)
    return SuspectCard(
        suspect.field, suspect.axis, before, after, suspect.reason, ranked.label, evidence,
        len(shared.by_job), _action(ranked, jobs[best], compare_url, may_plan, upgrade), ranked.beside,
    )  # fmt: skip


def _side(field: str, stated: Stated | None) -> str:
    text = side_text(field, stated)
    # Without the registry, which says little, and the digest, which the pages of the runs show.
    return text.partition("@")[0].rpartition("/")[2] if field == "container" else text


def _action(
    ranked: RankedSuspect, job: SuspectingJob, compare_url: str, may_plan: bool, upgrade: UpgradeReportOf | None
) -> tuple[str, str] | None:
    """Return the action that tests the suspect: an A/B that reverts a knob, one commit on both sides of an upgrade.

    Of a code change, the commits.
    """
    difference = ranked.suspect.difference
    if difference and difference.role == "config" and difference.is_certain and not ranked.past and may_plan:
        query = urlencode({"field": difference.field, "value": shown(difference.a.value) if difference.a else ""})
        return "Plan an A/B to confirm", f"/runs/{job.run_id}/experiments/new?{query}"
    if upgrade is not None and ranked.suspect.field == upgrade.field:
        return shared_commit_label(upgrade.field), f"/upgrade?{upgrade.query}#shared-commit"
    address = ""
    if ranked.suspect.axis == "code" and job.before is not None:
        slow = value_text(difference.b) if difference and ranked.ends_earlier else job.commit
        address = range_address(compare_url, job.before[1], slow)
    return ("List the commits", address) if address else None

"""One candidate of a stack becomes a verdict: its baseline, else what comes nearest, with all that it rests on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlmodel import Session

from app.domain.detection import Prior
from app.domain.matching import Assessment, LeftOut, RunFacts, RunRecord, compare_contracts, nearest_misses
from app.domain.matching.assessment import conclude, measure_contrast, nearest_contrast
from app.domain.matching.baseline import BaselineChoice, left_out, nearest_run
from app.domain.matching.levels import current_level
from app.domain.matching.selection import (
    Selection,
    offered_to_experiment,
    select,
    unfit_because,
    with_reruns,
)
from app.domain.run import Metric
from app.domain.verdict_document import OtherBranch, VerdictDocument, verdict_document
from app.regressions import elsewhere
from app.regressions.stack import Candidate, Stack
from app.storage.family import Family
from app.storage.pass_reading import PassReading

MOST_LEFT_OUT = 20
"""Runs that are no baseline, listed with the reason; a history of thousands would bury the answer."""


class Assessor:
    """Judges the candidates of one stack, in any order: a verdict depends on what came before the run, and on no other
    verdict.
    """

    def __init__(self, session: Session, stack: Stack) -> None:
        self._session, self._stack = session, stack
        self._reading = PassReading(session)
        self._families: dict[tuple[str, str], Family] = {}
        self._elsewhere: dict[str, Mapping[str, Metric | None]] = {}

    def document(self, candidate: Candidate) -> VerdictDocument:
        names = tuple(run.facts.run for run in candidate.runs)
        prior = self._prior(candidate)
        before = self._stack.before(candidate)
        earlier = [run.facts for run in before]
        selection = self._selection(candidate.newest.facts, earlier, prior)
        candidates = self._reading.records([*names, *(one.run for one in selection.runs[-1:])])[: len(names)]
        known = self._reading.with_losses([*candidates, *selection.runs])
        reruns, baseline = known[: len(names)], tuple(known[len(names) :])
        chosen = self._reading.record(baseline[-1].run) if baseline else None
        listed, more = self._left_out(selection, earlier)
        choice = BaselineChoice(
            selection.kind, baseline, listed, compare_contracts(chosen, candidates[-1]) if chosen else None
        )
        assessment = conclude(candidates[-1], reruns, choice, prior=prior, looks=len(names))
        if choice.comparability is None:
            assessment = self._without_baseline(assessment, candidate, candidates, prior)
        compared = {*names, *(run.run for run in baseline)}
        figures = self._elsewhere | {
            run.facts.run: run.metrics for run in (*before, *candidate.runs) if run.facts.run in compared
        }
        document = verdict_document(assessment, names, figures, candidates[-1].definition_version)
        other_branch = None if selection.runs else self._other_branch(candidate.newest.facts, earlier)
        quarantine = candidate.newest.quarantine
        return replace(document, more_left_out=more, quarantined=quarantine, other_branch=other_branch)

    def _prior(self, candidate: Candidate) -> Prior:
        newest = candidate.newest
        key = newest.config_key, newest.semantic_class
        if key not in self._families:
            places = [one.place[0] for one in self._stack.to_judge if one.config_key == newest.config_key]
            self._families[key] = Family(self._session, newest, places[0], places[-1])
        return self._families[key].prior(candidate.place[0])

    def _selection(self, facts: RunFacts, earlier: Sequence[RunFacts], prior: Prior) -> Selection[RunFacts]:
        selection = select(facts, earlier, self._stack.rules, prior)
        if selection.runs or facts.purpose != "experiment":
            return selection
        run = self._reading.record(facts.run)
        offered = offered_to_experiment(run, earlier)
        newest = {one.config_key: one.run for one in offered}
        order = [one.run for one in offered if newest[one.config_key] == one.run]
        nearest = nearest_run(run, self._reading.records(order))
        if nearest is None:
            return selection
        runs = tuple(with_reruns(next(one for one in offered if one.run == nearest.run), offered))
        return Selection("nearest", runs, selection.refused, selection.passed_over)

    def _left_out(self, selection: Selection[RunFacts], earlier: Sequence[RunFacts]) -> tuple[tuple[LeftOut, ...], int]:
        used = {one.run for one in selection.runs}
        names = [one.run for one in earlier if one.run not in used]
        shown = names[-MOST_LEFT_OUT:]
        wanted = {one.config_key: one.run for one in earlier if one.run in {*shown, *used}}
        others = {one.config_key for one in selection.passed_over if one.run in shown} | {
            one.config_key for one in selection.runs[-1:]
        }
        newest = {key: self._reading.record(name) for key, name in wanted.items() if key in others}
        return left_out(selection, shown, newest), len(names) - len(shown)

    def _other_branch(self, facts: RunFacts, earlier: Sequence[RunFacts]) -> OtherBranch | None:
        """Return what a baseline branch leaves out where it leaves nothing, such as `main` in a project of `master`."""
        branch = self._stack.rules.branch
        if branch is None:
            return None
        usable = select(facts, earlier, replace(self._stack.rules, branch=None)).runs
        branches = tuple(sorted({one.branch for one in usable}))
        return OtherBranch(branch, branches, len(usable)) if usable else None

    def _without_baseline(
        self, assessment: Assessment, candidate: Candidate, candidates: Sequence[RunRecord], prior: Prior
    ) -> Assessment:
        newest, rules = candidates[-1], self._stack.rules
        found = elsewhere.newest_of_each(self._session, self._reading, self._stack.project_id, candidate, rules)
        misses = nearest_misses(newest, found.runs, counts=found.counts)
        usable = [one for one in found.runs if not unfit_because(one, newest, rules)]
        contrast = nearest_contrast(newest, usable)
        if contrast is None:
            return replace(assessment, misses=misses)
        runs = elsewhere.runs_like(self._session, self._stack.project_id, contrast[0], candidate)
        fit = [one.facts for one in runs if not unfit_because(one.facts, newest, rules)]
        self._elsewhere = {one.facts.run: one.metrics for one in runs}
        measured = measure_contrast(candidates, current_level(fit, prior), contrast[1], prior)
        return replace(assessment, misses=misses, contrast=measured)

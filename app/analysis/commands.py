"""`threewalls analyze` and `threewalls compare`: read and judge runs from local files."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

from app.analysis.documents import (
    analysis_document,
    analysis_text,
    as_json,
    comparison_document,
    comparison_text,
    make_comparison,
)
from app.analysis.options import FINE, UNREAD, UNREADABLE
from app.analysis.reading import LogAnalysis, ReadLog, analyse, names_of, read_statements, records
from app.domain.text import coded_names
from app.domain.verdict.assess import Assessment, assess
from app.domain.verdict.baseline import BaselineRules, LeftOut
from app.domain.verdict.comparability import compare_contracts
from app.domain.verdict.record import RunRecord
from app.errors import InvalidUpload, UnreadLog, UsageError


def analyze(options: argparse.Namespace, read_log: ReadLog) -> int:
    """Print a run. Return 3 if no figure can be computed, 6 if no reader supports the log."""
    described = [f"read_as={options.read_as}"] if options.read_as else []
    metadata = read_statements([options.meta], [*options.set, *described], lenient=options.lenient)
    name = (
        options.logs[0].name if len(options.logs) == 1 else f"{options.logs[0].name} and {len(options.logs) - 1} more"
    )
    run = analyse(name, options.logs, metadata, read_log)
    print(as_json(analysis_document(run)) if options.json else analysis_text(run), flush=True)
    return {"ready": FINE, "failed": UNREADABLE, "unread": UNREAD}[run.summary.status]


# --- `threewalls compare`


def compare(options: argparse.Namespace, read_log: ReadLog) -> int:
    """Judge a run and its reruns against the named earlier runs, and print the comparison.

    Raises InvalidUpload if the candidate has no figures, UnreadLog if no reader supports it, UsageError on misuse.
    """
    _check_named_once(options)
    stated = {
        side: read_statements(
            [options.meta, getattr(options, f"{side}_meta")],
            [*options.set, *getattr(options, f"{side}_set")],
            lenient=options.lenient,
        )
        for side in ("baseline", "candidate")
    }
    # A run that is named as baseline counts as a CI run.
    stated["baseline"] = replace(stated["baseline"], purpose="ci")
    names = names_of([*options.baseline, *options.candidate])
    earlier = [analyse(names[path], [path], stated["baseline"], read_log) for path in options.baseline]
    candidates = [analyse(names[path], [path], stated["candidate"], read_log) for path in options.candidate]
    _check_readable(candidates)
    runs = records([*earlier, *candidates])
    old, new = runs[: len(earlier)], runs[len(earlier) :]
    _check_reruns(new)
    assessment = assess(new, old, rules=BaselineRules(is_named=True), looks=options.looks)
    comparison = make_comparison(assessment, candidates, earlier, tuple(_of_other_stacks(new[-1], old, assessment)))
    print(as_json(comparison_document(comparison)) if options.json else comparison_text(comparison), flush=True)
    return comparison.exit_code


def _check_named_once(options: argparse.Namespace) -> None:
    names = [str(path) for path in (*options.baseline, *options.candidate)]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} is given twice. Pass each run once.")


def _check_readable(candidates: Sequence[LogAnalysis]) -> None:
    for run in candidates:
        if run.summary.status == "unread":
            raise UnreadLog(f"{run.name}: {run.summary.error}")
        if run.summary.error is not None:
            raise InvalidUpload(f"{run.name}: {run.summary.error}")


def _of_other_stacks(run: RunRecord, earlier: Sequence[RunRecord], assessment: Assessment) -> Iterator[LeftOut]:
    """Yield why named runs of other stacks cannot be the baseline. Without a baseline, the nearest misses do."""
    for baseline in earlier:
        if baseline.stack_key == run.stack_key:
            continue
        if why := baseline.never_a_baseline_because:
            yield LeftOut(baseline.run, why)
        elif assessment.choice.runs:
            fields = coded_names(field.field for field in compare_contracts(baseline, run).stack)
            yield LeftOut(baseline.run, f"another stack: {fields}")


def _check_reruns(candidates: Sequence[RunRecord]) -> None:
    first = candidates[0]
    for other in candidates[1:]:
        comparability = compare_contracts(first, other)
        fields = [difference.field for difference in (*comparability.stack, *comparability.knobs)]
        fields += ["commit"] if first.commit != other.commit else []
        if fields:
            raise UsageError(
                f"{first.run} and {other.run} are not reruns of one job: they differ in {', '.join(fields)}. "
                "Compare each of them separately."
            )

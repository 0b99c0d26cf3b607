"""All that `compare` knows when it prints."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.analysis.reading import Analysis
from app.domain.matching import Assessment, LeftOut
from app.domain.report.exit_codes import exit_code
from app.domain.verdict_document import VerdictDocument, verdict_document


@dataclass(frozen=True, slots=True)
class Comparison:
    """`candidates`: reruns of the run to judge. `earlier`: what was named as baseline, oldest first.

    `document` is what a service would store, with the names of files in place of runs.
    """

    document: VerdictDocument
    candidates: tuple[Analysis, ...]
    earlier: tuple[Analysis, ...]

    @property
    def exit_code(self) -> int:
        return exit_code(self.document.decision, raises_regression=self.document.raises_regression)


def make_comparison(
    assessment: Assessment,
    candidates: Sequence[Analysis],
    earlier: Sequence[Analysis],
    of_other_stacks: Sequence[LeftOut],
) -> Comparison:
    """`of_other_stacks`: runs named as baseline that matching passed over, each with the reason."""
    metrics = {run.name: run.summary.metrics for run in (*candidates, *earlier)}
    names = tuple(run.name for run in candidates)
    document = verdict_document(assessment, names, metrics, candidates[-1].summary.definition_version)
    document = replace(document, left_out=(*document.left_out, *of_other_stacks))
    return Comparison(document, tuple(candidates), tuple(earlier))

"""The JSON of `compare`. Described in `docs/cli.md`."""

from app.analysis.comparison import Comparison
from app.domain.report.values import verdict_json

SCHEMA = "threewalls.comparison/1"


def comparison_document(comparison: Comparison) -> dict[str, object]:
    warnings = {run.name: run.summary.warnings for run in (*comparison.earlier, *comparison.candidates)}
    return {"schema": SCHEMA, **verdict_json(comparison.document), "warnings": warnings}

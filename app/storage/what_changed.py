"""What changed for a run since its baseline, with links from the templates of its project."""

from collections.abc import Mapping
from typing import Any

from sqlmodel import Session

from app.domain.report.what_changed import WhatChanged, what_changed
from app.domain.verdict.document import VerdictDocument
from app.storage.tables import ProjectRow, RunRow


def what_changed_of(session: Session, run: RunRow, document: VerdictDocument) -> WhatChanged:
    """Compare with the newest run of the baseline, or of the contrast if there is no baseline."""
    others = document.baseline or (document.contrast.runs if document.contrast else ())
    other = session.get(RunRow, int(others[-1])) if others else None
    project = session.get_one(ProjectRow, run.project_id)
    return what_changed(
        document.compared,
        commit_url=project.commit_url,
        compare_url=project.compare_url,
        environment=(_environment(other), _environment(run)),
    )


def _environment(run: RunRow | None) -> Mapping[str, Any]:
    """Return the environment variables that the upload stated."""
    stated = None if run is None else run.result.metadata_stated.get("env")
    return stated if isinstance(stated, dict) else {}

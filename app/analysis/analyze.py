"""`threewalls analyze`: one run, read from local files."""

import argparse

from app.analysis.analyze_text import text_of
from app.analysis.documents import analysis_document, as_json
from app.analysis.exit_codes import FINE, UNREAD, UNREADABLE
from app.analysis.reading import ReadLog, analyse
from app.analysis.statements import read_statements


def analyze(options: argparse.Namespace, read_log: ReadLog) -> int:
    """Print the run. Return 3 when no figure can be computed from it, 6 when no reader knows its log."""
    metadata = read_statements([options.meta], options.set, lenient=options.lenient)
    name = (
        options.logs[0].name if len(options.logs) == 1 else f"{options.logs[0].name} and {len(options.logs) - 1} more"
    )
    run = analyse(name, options.logs, metadata, read_log)
    print(as_json(analysis_document(run)) if options.json else text_of(run), flush=True)
    return {"ready": FINE, "failed": UNREADABLE, "unread": UNREAD}[run.summary.status]

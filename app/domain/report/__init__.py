"""The report of a verdict: one text for the comment on a change, the command line and the API.

what_changed(comparability, ...) -> WhatChanged      differences by axis, the commit range, packages and environment
verdict_text(document, ...) -> VerdictText           a verdict as lines and rows
verdict_json(document) -> dict                       the same as values
markdown(report) -> str                              the comment, with untrusted text escaped
"""

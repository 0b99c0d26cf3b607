"""Joins the files of one run: logs of several ranks, logs of all ranks, retries and resumed slices.

What belongs where is decided from what the files say (time stamps, iteration numbers, loaded checkpoints), never from
the order in which they came. Prose: `docs/metrics.md`.
"""

from app.domain.merge.join import merge_logs

__all__ = ["merge_logs"]

"""What a job's environment says of itself: which commit, on which branch, for which change. A function of a mapping."""

from app.client.ci.job import CiJob
from app.client.ci.systems import ci_job

__all__ = ["CiJob", "ci_job"]

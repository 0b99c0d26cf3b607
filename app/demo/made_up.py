"""What the demo's parts make up in the same way: random numbers that are the same each time, and commits."""

import hashlib
from datetime import UTC, datetime, timedelta

import numpy as np

SEED = 20260518


def random_for(key: str) -> np.random.Generator:
    return np.random.default_rng([SEED, *key.encode()])


def commit_of(when: datetime) -> str:
    """A made-up commit, the same for all jobs of one day."""
    return hashlib.sha256(f"{SEED} {when.date()}".encode()).hexdigest()[:40]


def committed_at(when: datetime) -> datetime:
    """When the commit of a day was made: in the evening before."""
    return datetime(when.year, when.month, when.day, tzinfo=UTC) - timedelta(hours=3)

"""Versions of what the stored figures mean, so that older ones can be told from newer ones and computed again.

Raise the one whose rule changes, and say in `docs/metrics.md` what changed.
"""

DEFINITIONS: dict[str, int] = {
    "steady_state": 1,
    "intervals": 1,
    "flops": 2,
    "peaks": 1,
    "keys": 3,
    "failures": 1,
    "timers": 1,
}
"""Rule -> version. `flops`: 2 since the formula's figure stands in for a printed one that is rounded from it. `keys`: 2
since captured CUDA graphs and HybridEP's fallback count as what ran, 3 since neither a selection of environment
variables nor a cut dump states what it leaves out."""

DEFINITION_VERSION = sum(DEFINITIONS.values())
"""All of them in one number, which grows with every change."""

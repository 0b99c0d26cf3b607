"""Runs as the service reports them, for tests of messages to a forge."""

import re

from app.client.forge import PostedReport

SLOWER = "regression · 9.4 % slower: 437.4 ms, was 399.9 ms."


def judged(
    run_id: int = 41, headline: str = SLOWER, exit_code: int | None = 1, key: str = "1a2b3c4d5e6f"
) -> PostedReport:
    url = f"https://threewalls.example.org/runs/{run_id}"
    lines = (
        f"**↘ {headline}**  ",
        "baseline: 12 runs, same configuration",
        "",
        "<details><summary>1 suspect</summary>",
        "",
        "* container",
        "",
        "</details>",
        "",
        f"[nightly \\| `x` (run {run_id})]({url})",
    )
    badge = re.split(" · |: ", headline, maxsplit=1)[0]
    return PostedReport(run_id, "moe-lab", key, url, headline, exit_code, badge, "\n".join(lines) + "\n")


def fine(run_id: int = 40, key: str = "9f8e7d6c5b4a") -> PostedReport:
    return judged(run_id, "no change: step time within noise", 0, key)


def undecided(run_id: int = 39, key: str = "77aa77aa77aa") -> PostedReport:
    return judged(run_id, "no baseline: this is the first run of its stack", 4, key)

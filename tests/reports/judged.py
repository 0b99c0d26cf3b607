"""Runs with a verdict, as the judge would have stored it: rows of the builders, judged by the domain."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlmodel import Session

from app.domain.run import Metric
from app.domain.verdict.assess import assess
from app.domain.verdict.baseline import BaselineRules
from app.domain.verdict.document import verdict_document
from app.domain.verdict.record import RunRecord
from app.storage.tables import RunRow
from app.storage.verdicts import put_verdict
from tests.builders import make_run
from tests.domain.verdict.matching_runs import make_record


@dataclass
class Lab:
    """One project in which runs are created one after the other."""

    session: Session
    project: str = "moe-lab"
    records: list[RunRecord] = field(default_factory=list)

    def run(self, fields: Mapping[str, Any] | None = None, *, slower: float = 0.0, name: str = "", **facts: Any) -> int:
        """A run `slower` (in ln) than 400 ms, not judged yet. `facts` as of a record: commit, purpose, outcome."""
        number = len(self.records)
        columns = {
            "name": name or f"nightly {number}",
            "purpose": facts.get("purpose", "ci"),
            "commit": facts.setdefault("commit", f"{number:08x}aaaa"),
            "outcome": facts.get("outcome", "completed"),
        }
        time_ms = 400.0 * math.exp(slower) + number / 1000
        run_id = make_run(self.session, project=self.project, step_time_ms=time_ms, **columns)
        record = make_record(str(run_id), fields, slower=slower, project=self.project, **facts)
        row = self.session.get_one(RunRow, run_id)
        row.stack_key, row.config_key = record.stack_key, record.config_key
        row.result.contract = {
            name: {"value": item.value, "source": item.source, "detail": item.detail}
            for name, item in record.contract.items()
        }
        self.records.append(record)
        return run_id

    def judge(self, *run_ids: int, rules: BaselineRules | None = None, because: str = "It is new.") -> None:
        """The runs are reruns of one candidate; all others are earlier."""
        names = [str(run_id) for run_id in run_ids]
        new = [record for record in self.records if record.run in names]
        old = [record for record in self.records if record.run not in names]
        document = verdict_document(assess(new, old, rules=rules), tuple(names), self._metrics(), 1)
        for run_id in run_ids:
            put_verdict(self.session, run_id, document, because)
        self.session.flush()

    def _metrics(self) -> dict[str, dict[str, Metric | None]]:
        times = {record.run: math.exp(record.estimate.log_step_time) for record in self.records}
        return {run: {"step_time_ms": Metric(time, time, time, 50)} for run, time in times.items()}


def nightly(lab: Lab, n: int = 12, fields: Mapping[str, Any] | None = None, **facts: Any) -> list[int]:
    """`n` runs of one configuration that vary by 0.3 %."""
    return [lab.run(fields, slower=0.003 * ((k * 7) % 5 - 2) / 2, **facts) for k in range(n)]

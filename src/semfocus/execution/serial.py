"""Cohorts one after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from semfocus.execution.executor import Executor, RunOutcome, outcomes_of, register_executor
from semfocus.store import RunStore
from semfocus.training.progress import Callback
from semfocus.training.session import Job, train_cohort
from semfocus.training.signals import Interrupted, listening


@register_executor
class SerialExecutor(Executor):
    """Trains each cohort to its end before the next."""

    name = "serial"

    def run(self, cohorts: Sequence[Sequence[Job]], store: RunStore, on_progress: Callback) -> list[RunOutcome]:
        failed: list[str] = []
        with listening() as interruption:
            for cohort in cohorts:
                failed += train_cohort(cohort, self.runtime, on_progress, interruption)
                if interruption.signal:
                    raise Interrupted(interruption.signal)
        return outcomes_of(cohorts, failed)

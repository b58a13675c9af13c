"""Cohorts as SLURM jobs, through submitit: `--executor slurm`; `--executor slurm-local` runs them on this machine.

    train(configs, "/shared/runs", executor="slurm:partition=gpu,gpus=1,time=240")

The directory of runs must be on a disk that all machines share: jobs write into it, under its locks, and talk to the
driver through files in `cluster/slurm/<attempt>`. Jobs are submitted in arrays. SLURM requeues those that meet their
time limit or are preempted, and they go on from the checkpoint that they save then. They live without a driver: one
that is started again finds them and goes on watching.

submitit keeps what it submits as a pickle in that folder, written and read by the same user.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from semfocus.errors import MissingExtra, UsageError
from semfocus.execution.cluster.dispatcher import Dispatcher
from semfocus.execution.cluster.options import parse_options
from semfocus.execution.cluster.packing import Settings
from semfocus.execution.cluster.shared_disk import lock_problem
from semfocus.execution.cluster.slurm_jobs import SlurmOptions, SlurmTransport
from semfocus.execution.cohorts import form_cohorts
from semfocus.execution.executor import Executor, Machines, RunOutcome, outcomes_of, register_executor
from semfocus.store import RunStore
from semfocus.training.progress import Callback
from semfocus.training.runtime import Runtime
from semfocus.training.session import Job


@register_executor
class SlurmExecutor(Executor):
    """Trains cohorts as jobs of SLURM."""

    name = "slurm"
    cluster = "slurm"

    def __init__(self, runtime: Runtime, options: str = "") -> None:
        super().__init__(runtime)
        self.options = parse_options(SlurmOptions, self.name, options)
        try:
            import submitit  # noqa: F401
        except ImportError:
            raise MissingExtra("submitit", "cluster", f"the executor {self.name}") from None
        if self.cluster == "slurm" and not shutil.which("sbatch"):
            raise UsageError(
                "there is no SLURM on this machine (no sbatch); run the command on a login node, or try it with "
                "--executor slurm-local"
            )
        self.device = self._device()
        self.cpus = runtime.threads or self.options.cpus

    def form_cohorts(self, jobs: Sequence[Job]) -> list[list[Job]]:
        # Half a cohort takes half the time on a CPU. On a GPU it may not, and SLURM does not say how many there are.
        workers = self.slots() if self.device == "cpu" else self.options.workers
        return form_cohorts(jobs, self.runtime, self.device, workers)

    def slots(self) -> int:
        return self.options.workers or self.options.queued

    def devices(self) -> str:
        return f"SLURM: at most {self.slots()} jobs at a time, {self.cpus} CPUs and {self.options.gpus} GPUs each"

    def machines(self) -> Machines:
        return Machines(self.devices(), self.slots(), self.device)

    def run(self, cohorts: Sequence[Sequence[Job]], store: RunStore, on_progress: Callback) -> list[RunOutcome]:
        problem = lock_problem(store.root)
        if problem:
            raise UsageError(problem)
        options = self.options
        settings = Settings(
            hand_back=False, retries=options.retries, lease=options.lease, beat=min(5.0, options.lease / 5),
            threads=self.cpus, device=self.device,
        )  # fmt: skip
        transport = SlurmTransport(store.root, self.name, options, self.slots(), self.cpus, self.cluster == "local")
        return outcomes_of(cohorts, Dispatcher(cohorts, store, self.runtime, transport, settings, on_progress).run())

    def _device(self) -> str:
        asked = self.runtime.device.partition(":")[0]
        if asked == "cuda" and not self.options.gpus:
            raise UsageError(f"device = cuda: jobs have no GPU unless asked for; give --executor {self.name}:gpus=1")
        return ("cuda" if self.options.gpus else "cpu") if asked == "auto" else asked


@register_executor
class LocalSlurmExecutor(SlurmExecutor):
    """The same jobs as processes of this machine, without SLURM: to try it."""

    name = "slurm-local"
    cluster = "local"

    def slots(self) -> int:
        return self.options.workers or self.runtime.num_jobs()

    def devices(self) -> str:
        return f"this machine: {self.slots()} jobs at a time"

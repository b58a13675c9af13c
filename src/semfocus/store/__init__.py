"""WHERE results live: run directories that survive kills, power cuts and full disks, and trust nobody.

    run = RunStore("runs").create_or_open(run_id, config)
    with run.lock() as writer:
        writer.append_metrics({"step": 40, "train_loss": 0.3})
        writer.save_checkpoint(40, tensors, meta)

`atomic` writes, `strict` reads, `logs` and `checkpoints` are what a run consists of, `locks` keeps a second writer
out, `directory` is a run as readers see it, `writer` as its one writer does, `runs` finds, makes and removes them,
`measurements` keeps what was measured afterwards.
"""

from semfocus.store.checkpoints import Checkpoint, DamagedCheckpoint
from semfocus.store.cohort import Save, load_common, save_checkpoints, write_statuses
from semfocus.store.directory import RunDirectory, is_run_id
from semfocus.store.locks import Holder
from semfocus.store.measurements import (
    DamagedMeasurement,
    read_arrays,
    read_measurement,
    write_arrays,
    write_measurement,
)
from semfocus.store.runs import FIGURES, Entry, RunStore
from semfocus.store.writer import RunWriter

__all__ = [
    "FIGURES",
    "Checkpoint",
    "DamagedCheckpoint",
    "DamagedMeasurement",
    "Entry",
    "Holder",
    "RunDirectory",
    "RunStore",
    "RunWriter",
    "Save",
    "is_run_id",
    "load_common",
    "read_arrays",
    "read_measurement",
    "save_checkpoints",
    "write_arrays",
    "write_measurement",
    "write_statuses",
]

"""Run directories: storage of results that survives kills, power cuts and full disks, and trusts no file it reads.

    run = RunStore("runs").create_or_open(run_id, config)
    with run.lock() as writer:
        writer.append_metrics({"step": 40, "train_loss": 0.3})
        writer.save_checkpoint(40, tensors, meta)

`runs` finds, creates and removes runs; `directory` reads one; `writer` writes to one or to a whole cohort; `locks`
keeps a second writer out. `logs`, `checkpoints` and `measurements` are the parts of a run, `formats` the versions of
its documents. `atomic` writes files; `safe_json` and `tensors` read untrusted ones.
"""

from semfocus.store.checkpoints import Checkpoint, DamagedCheckpoint
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
from semfocus.store.writer import DamagedRuns, RunWriter, Save, load_common, save_checkpoints, write_statuses

__all__ = [
    "FIGURES",
    "Checkpoint",
    "DamagedCheckpoint",
    "DamagedMeasurement",
    "DamagedRuns",
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

"""A SLURM of one node, as processes of a test: munged, slurmctld and slurmd, in a folder of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobRequeue=1
KillWait=5
SchedulerParameters=sched_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why no SLURM can be started here; empty where one can."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [program for program in PROGRAMS if not shutil.which(program, path=path)]
    if missing:
        return f"SLURM is not installed ({', '.join(missing)}): apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmctld and munged of a test need root"


class Slurm:
    """A running one; `conf` is what SLURM_CONF must name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.conf = folder, folder / "slurm.conf"
        self.processes: list[subprocess.Popen[bytes]] = []
        for name in ("state", "spool"):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        host, ports = socket.gethostname().partition(".")[0], [_free_port() for _ in range(2)]
        self.conf.write_text(CONFIG.format(host=host, ports=ports, folder=folder))
        files = {"key-file": key, "socket": folder / "munge.sock", "pid-file": folder / "munged.pid",
                 "log-file": folder / "munged.log", "seed-file": folder / "seed"}  # fmt: skip
        self._start("munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items()))
        _wait_for((folder / "munge.sock").exists)
        self._start("slurmctld", "-D", "-c", "-f", str(self.conf))
        self._start("slurmd", "-D", "-f", str(self.conf), "-N", host)
        _wait_for(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%T"))

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "SLURM_CONF": str(self.conf)})
        return done.stdout

    def close(self) -> None:
        self.ask("scancel", "--me")
        time.sleep(1)
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, program: str, *arguments: str) -> None:
        path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        with open(self.folder / f"{program}.out", "wb") as output:
            env = {**os.environ, "SLURM_CONF": str(self.conf)}
            self.processes.append(subprocess.Popen([path, *arguments], stdout=output, stderr=output, env=env))


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _wait_for(condition: object) -> None:
    end = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end:
            raise RuntimeError("SLURM did not start")
        time.sleep(0.1)

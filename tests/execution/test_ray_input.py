"""What a Ray cluster cannot do is said at once, with what to do; and nothing listens beyond this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semfocus.archive.contents import read_files
from semfocus.archive.parcel import unwrap, wrap
from semfocus.config import TaskConfig
from semfocus.errors import CorruptData, MissingExtra, UsageError
from semfocus.execution import ray_executor
from semfocus.execution.cluster import ray_access, ray_connection
from semfocus.execution.cluster.data_files import local_path, sha256_of
from semfocus.execution.cluster.messages import Message, NobodyListens, Work, new_attempt, versions
from semfocus.execution.cluster.worker import Attempt
from semfocus.execution.cohorts import open_runs, plan_jobs
from semfocus.execution.executor import make_executor
from semfocus.execution.ray_executor import count_slots
from semfocus.store import RunStore
from tests.training.helpers import runtime, tiny, trained

ROOT = Path(__file__).parents[2]
# A driver in a process of its own: what it listens on, and what happens when its head dies.
LOCAL = """
import os, sys
from pathlib import Path
from semfocus.execution.executor import make_executor
from semfocus.training import Runtime

def listening():
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A":
                found.add((parts[1].split(":")[0], parts[9]))
    return found

def sockets_of(pids):
    inodes = set()
    for pid in pids:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(handle) if handle.is_symlink() else ""
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    return inodes

def family(pid):
    pids = [pid]
    for one in pids:
        for task in Path(f"/proc/{one}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    return pids

made = make_executor("ray:workers=1", Runtime(device="cpu", threads=1))
import ray
ray.get(ray.remote(lambda: 1).remote())
own = sockets_of(family(os.getpid()))
addresses = {address for address, inode in listening() if inode in own}
print("LISTENS", len(addresses), sorted(addresses))
print("ADDRESS", ray.get_runtime_context().gcs_address)
print("DASHBOARD", ray._private.worker._global_node.webui_url)
made.close()
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def work(configs: list[Any], **changes: Any) -> Work:
    fields: dict[str, Any] = {
        "attempt": new_attempt(), "ids": [config.run_id(config.task.build()) for config in configs],
        "configs": [config.model_dump(mode="json") for config in configs], "root": "/nowhere", "board": "/nowhere",
        "runtime": vars(runtime()), "threads": 1, "versions": versions(), "plugins": [], "path": [], "hand_back": False,
    }  # fmt: skip
    return Work(**fields | changes)


def last_word(work: Work) -> Message:
    return Attempt(work, None, lambda name: b"", lambda messages: True).run()[-1]


def test_a_local_cluster_listens_on_this_machine_alone_and_has_no_dashboard() -> None:
    """Row 62."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'semfocus[cluster]'")
    done = subprocess.run([sys.executable, "-c", LOCAL], capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line[:1].isupper())
    count, _, addresses = told["LISTENS"].partition(" ")
    assert int(count) > 0
    assert {*json.loads(addresses.replace("'", '"'))} <= LOOPBACK
    assert told["ADDRESS"].startswith("127.0.0.1:")
    assert told["DASHBOARD"] in ("None", "")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        MissingExtra, match=r"the executor ray needs the package ray: pip install 'semfocus\[cluster\]'"
    ):
        make_executor("ray", runtime())


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("10.0.0.1", "address = '10.0.0.1' must look like HOST:PORT"),
        ("no-such-host.invalid:6379", "no Ray cluster answers at no-such-host.invalid:6379"),
        ("ray://127.0.0.1:10001", "the Ray client is not supported"),
    ],
)
def test_a_wrong_address_is_said_within_seconds(address: str, message: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(UsageError, match=message):
        make_executor(f"ray:{address}", runtime())


def test_a_port_where_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with pytest.raises(UsageError, match=rf"no Ray cluster answers .* start one with `ray start --head --port={port}`"):
        make_executor("ray", runtime())


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """A cluster beyond the loopback interface, and whether it lets us in by each of Ray's modes."""
    pytest.importorskip("ray")
    answers = {"disabled": False, "token": True}
    monkeypatch.setattr(ray_connection.socket, "getaddrinfo", lambda *a, **k: [(0, 0, 0, "", ("192.0.2.7", 6379))])
    monkeypatch.setattr(ray_connection.socket, "create_connection", lambda *a, **k: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(ray_connection, "_answers", lambda address, mode: answers[mode])
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    return answers


def test_a_cluster_that_is_open_to_anybody_is_not_joined(far_away: dict[str, bool]) -> None:
    """Row 62: beyond the loopback interface, a token is required; that one could be given is not enough."""
    far_away["disabled"] = True
    with pytest.raises(UsageError, match=r"asks for no token: whoever reaches it runs code on it.*get-auth-token"):
        ray_connection.checked_address("head.cluster:6379")


def test_the_token_of_this_machine_is_used_where_one_is_asked_for(far_away: dict[str, bool]) -> None:
    assert ray_connection.checked_address("head.cluster:6379") == ("head.cluster:6379", "token", False)
    assert "RAY_AUTH_MODE" not in os.environ, "to look at a cluster changes nothing here"


@pytest.mark.parametrize("mode", ["disabled", ""])
def test_a_missing_token_comes_with_where_to_get_it(
    far_away: dict[str, bool], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    far_away["token"] = bool(mode)
    with pytest.raises(UsageError, match=r"asks for a token, .* copy ~/\.ray/auth_token from the machine of its head"):
        ray_connection.checked_address("head.cluster:6379")


HEAD = """
import sys
from ray.cluster_utils import Cluster
args = {"num_cpus": 0, "node_ip_address": "127.0.0.1", "include_dashboard": False, "object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args=args)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["disabled", "token"])
def test_whether_a_cluster_asks_for_a_token_is_asked_of_the_cluster(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    token = "ab" * 32
    env = {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": token, ray_access.LOOPBACK_SWITCH: "0"}
    head = subprocess.Popen(
        [sys.executable, "-c", HEAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=os.environ | env,
    )  # fmt: skip
    with head:
        assert head.stdout is not None
        address = head.stdout.readline().strip()
        assert ray_connection._answers(address, "disabled") == (mode == "disabled")
        if mode == "token":
            monkeypatch.setenv("RAY_AUTH_TOKEN", token)
            assert ray_connection._answers(address, "token")
            monkeypatch.setenv("RAY_AUTH_TOKEN", "cd" * 32)
            assert not ray_connection._answers(address, "token")
            monkeypatch.delenv("RAY_AUTH_TOKEN")
            monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/no/such/file")
            assert not ray_connection._answers(address, "token")
        head.communicate()


def test_what_is_no_ray_cluster_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        monkeypatch.setattr(ray_connection, "ANSWER_SECONDS", 2.0)
        with pytest.raises(UsageError, match="does not answer as a Ray cluster does"):
            make_executor(f"ray:127.0.0.1:{sock.getsockname()[1]}", runtime())


def test_auto_without_a_cluster_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    services = pytest.importorskip("ray._private.services")
    monkeypatch.setattr(services, "find_bootstrap_address", lambda folder: None)
    with pytest.raises(UsageError, match="'auto': no Ray cluster runs on this machine"):
        make_executor("ray:auto", runtime())


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("Version mismatch: The cluster was started with:\n Ray: 2.40", "same versions of Ray and Python"),
        ("ModuleNotFoundError: No module named 'semfocus'", "install semfocus, the same version, on every machine"),
        ("Unauthenticated: Invalid token", "put the cluster's token into"),
        ("anything else", "look at `ray status` there"),
    ],
)
def test_what_ray_says_comes_with_what_to_do(said: str, fix: str) -> None:
    assert fix in str(ray_connection.explained(RuntimeError(said), "10.0.0.1:6379"))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("shared=maybe", "shared = 'maybe' is not one of auto, yes, no"),
        ("addres=x", "did you mean 'address'"),
        ("retries=0", "retries = 0 must be above 0"),
        ("shared=no,x", "'x' must look like name=value"),
    ],
)
def test_a_wrong_option_is_named(option: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_executor(f"ray:{option}", runtime())


def test_a_gpu_that_the_cluster_does_not_have_is_not_waited_for() -> None:
    node = {"Alive": True, "Resources": {"CPU": 8.0}, "NodeManagerHostname": "one"}
    executor = object.__new__(ray_executor.RayExecutor)
    executor.runtime = runtime(device="cuda")
    executor.ray = SimpleNamespace(nodes=lambda: [node])
    with pytest.raises(
        UsageError, match=r"'cuda' is not there: the cluster has 1 machine: 8 CPUs, no GPU\. Add a machine"
    ):
        executor._device()
    executor.runtime = runtime(device="auto")
    assert executor._device() == "cpu"
    node["Resources"] = {"CPU": 8.0, "GPU": 2.0, "accelerator_type:H200": 1.0}
    assert executor._device() == "cuda"
    assert executor.devices() == "1 machine: 8 CPUs, 2 GPUs (H200)"


def test_a_task_needs_room_on_one_machine() -> None:
    nodes = [{"Resources": {"CPU": 3.0, "GPU": 1.0}}, {"Resources": {"CPU": 5.0}}]
    assert count_slots(nodes, 1, 0) == 8
    assert count_slots(nodes, 2, 0) == 3
    assert count_slots(nodes, 1, 0.25) == 3
    assert count_slots(nodes, 1, 0, most=4) == 4


def test_a_worker_of_another_version_refuses() -> None:
    last = last_word(work([tiny()], versions=versions() | {"semfocus": "0.0.1"}))
    assert last.body["kind"] == "UsageError"
    assert f"on {os.uname().nodename}: semfocus is" in last.body["text"]
    assert "0.0.1 at the driver; install the same on every machine" in last.body["text"]


def test_a_worker_without_the_plugin_says_so() -> None:
    last = last_word(work([tiny()], plugins=["no_such_plugin"]))
    assert f"on {os.uname().nodename}: plugin 'no_such_plugin' cannot be found" in last.body["text"]


def test_a_worker_that_does_not_see_the_drivers_disk_refuses() -> None:
    last = last_word(work([tiny()], probe=("/nowhere/probe", "token")))
    assert "/nowhere is not the directory that the driver writes to" in last.body["text"]
    assert "--executor ray:shared=no" in last.body["text"]


def test_a_worker_where_configurations_mean_something_else_refuses() -> None:
    last = last_word(work([tiny(1)], ids=["feedfeedfeedfeed"]))
    assert "make other runs here: plugins or data files are not the same" in last.body["text"]


def test_what_could_not_be_told_is_told_later_and_beats_are_not_kept(tmp_path: Path) -> None:
    """The driver may be out of reach for a while; runs that were brought meanwhile must not be lost."""
    told: list[Message] = []
    config = tiny(1, epochs=30)
    calls: list[list[str]] = []
    given = work([config], hand_back=True, beat=0.05, root=str(tmp_path), runtime=vars(runtime(checkpoint_seconds=0)))
    run = trained([config], tmp_path / "alone")[0]

    def tell(messages: list[Message]) -> bool:
        calls.append([message.kind for message in messages])
        if len(calls) % 2:
            raise OSError("unreachable")
        told.extend(messages)
        return True

    store = RunStore(tmp_path / "runs")
    jobs = plan_jobs([config], store)
    open_runs(jobs, store)
    parcel = wrap({run.id: read_files(jobs[0].run)}, {run.id: "interrupted"})
    told += Attempt(given, parcel, lambda name: b"", tell).run()
    brought = [files for message in told if message.parcel for _, files in unwrap(message.parcel)]
    assert [message.kind for message in told].count("began") == 1
    steps = [max(int(name.split("/")[1]) for name in files if name.startswith("checkpoints/")) for files in brought]
    assert steps[:-1] == sorted({*steps[:-1]}), "each once, in their order; the last is the end of the run"
    assert brought[-1]["metrics.jsonl"] == (run.path / "metrics.jsonl").read_bytes()
    assert told[-1].body == {"failed": [], "held": []}
    assert max(kinds.count("progress") + kinds.count("beat") for kinds in calls) == 1


def test_a_worker_to_whom_nobody_listens_saves_and_brings_everything_with_its_last_words(tmp_path: Path) -> None:
    config = tiny(1, epochs=100_000)
    given = work([config], hand_back=True, beat=0.05, root=str(tmp_path), runtime=vars(runtime(checkpoint_seconds=0)))
    store = RunStore(tmp_path / "runs")
    jobs = plan_jobs([config], store)
    open_runs(jobs, store)
    run_id, lost = jobs[0].id, list[Message]()

    def tell(messages: list[Message]) -> bool:
        lost.extend(message for message in messages if message.parcel)
        if lost:
            attempt.handed[run_id] = (10**9, "done")  # also what it takes for brought comes once more
            raise NobodyListens("the mailbox is gone")
        return True

    parcel = wrap({run_id: read_files(jobs[0].run)}, {run_id: "interrupted"})
    attempt = Attempt(given, parcel, lambda name: b"", tell)
    last = attempt.run()
    assert last[-1].kind == "stopped"
    brought = [dict(unwrap(message.parcel))[run_id] for message in last if message.parcel]
    assert {*brought[-1]} - {*dict(unwrap(lost[0].parcel))[run_id]}, "the checkpoint that it saved as it stopped"


def test_a_worker_names_runs_that_somebody_else_holds(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    jobs = plan_jobs([tiny(1), tiny(2)], store)
    open_runs(jobs, store)
    with jobs[0].run.lock():
        last = last_word(work([tiny(1), tiny(2)], root=str(tmp_path), board=str(tmp_path / "none")))
    assert last.body == {"failed": [], "held": [jobs[0].id]}


def test_data_files_are_brought_once_and_checked(tmp_path: Path) -> None:
    data = tmp_path / "driver" / "own.csv"
    data.parent.mkdir()
    data.write_text("text,label\na,0\n")
    digest, brought = sha256_of(data), []

    def bring() -> bytes:
        brought.append(1)
        return b"text,label\na,0\n"

    assert local_path(str(data), digest, bring, tmp_path) == str(data), "here already"
    first = local_path("own.csv", digest, bring, tmp_path)
    assert Path(first).name == "own.csv"
    assert local_path("own.csv", digest, bring, tmp_path) == first
    assert brought == [1]
    with pytest.raises(CorruptData, match=r"own\.csv changed while it was on its way"):
        local_path("own.csv", "0" * 64, bring, tmp_path)
    assert TaskConfig(name=first, train_rows=None, heldout_rows=None).name == first

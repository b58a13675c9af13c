"""To a Ray cluster, or a reason why not: started on this machine, or joined at an address.

    connection = connect("10.0.0.1:6379", workers=0, cpus=1)
    connection.ray.nodes()
    connection.close()

A cluster that is started here binds to the loopback interface. One that is joined beyond it must ask for a token: it
is tried without one first. Which interface and which token Ray goes by is set for each connection anew, and as before
after it (`ray_access`): a process may go from one cluster to the next.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from semfocus.errors import MissingExtra, UsageError
from semfocus.execution.cluster.ray_access import AUTH_MODE, Access, own_token

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0
IDLE_MS = 60_000
STORE_BYTES = 2**28  # of Ray's shared memory on this machine: cohorts and checkpoints are small


@dataclass(frozen=True)
class Connection:
    """Ray, and what became of connecting."""

    ray: Any
    is_local: bool  # started by us, on this machine alone
    access: Access | None = None  # None: connected before, by somebody else

    @property
    def is_ours(self) -> bool:
        return self.access is not None

    def close(self) -> None:
        """End what was begun here."""
        if self.access is not None:
            try:
                if self.ray.is_initialized():
                    self.ray.shutdown()
            finally:
                self.access.give_back()


def connect(address: str, workers: int, cpus: int) -> Connection:
    """To the address, to what RAY_ADDRESS says, or to a cluster of this machine that is started now."""
    address = address or os.environ.get("RAY_ADDRESS", "")
    starts = address in ("", "local")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "cluster", "the executor ray") from None
    if ray.is_initialized():
        return Connection(ray, is_local=False)
    _silence()
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if starts:
        # Ray would write one into the home directory, where others of this machine may read it.
        access = Access(os.environ.get(AUTH_MODE, "token"), loopback=True, token=own_token())
        count: dict[str, Any] = {"num_cpus": workers * cpus} if workers else {}
        # Ray would end a worker after a second without work; the next one would have to import torch again.
        config = {"idle_worker_killing_time_threshold_ms": IDLE_MS}
        options: dict[str, Any] = {
            "address": "local", "include_dashboard": False, "object_store_memory": STORE_BYTES,
            "_system_config": config, **count,
        }  # fmt: skip
    else:
        address, mode, loopback = checked_address(address)
        access = Access(mode, loopback)
        options = {"address": address}
    try:
        ray.init(**options, **quiet)
    except Exception as error:
        access.give_back()
        if starts:
            raise
        raise explained(error, address) from error
    return Connection(ray, is_local=starts, access=access)


def _silence() -> None:
    """Ray prints a paragraph for each lost worker, on standard output, where `--json` goes; we say it ourselves."""
    worker = sys.modules.get("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *data, **options: None  # type: ignore[union-attr]


def checked_address(address: str) -> tuple[str, str, bool]:
    """HOST:PORT (also for `auto`), by which mode the cluster lets us in, and whether it is on the loopback interface.

    Say within seconds that nothing is there; refuse a cluster that is open to anybody.
    """
    if address == "auto":
        address = _address_of_this_machine()
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        raise UsageError(f"address = {address!r} must look like HOST:PORT, as `ray start --head` prints it")
    if address.startswith("ray://"):
        raise UsageError(
            f"address = {address!r}: the Ray client is not supported; give HOST:PORT on a machine of the cluster, or "
            "submit the command: ray job submit -- semfocus run ..."
        )
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][4][0]
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head --port={port}` "
            f"on {host}, or give the address that it printed"
        ) from None
    is_loopback = ipaddress.ip_address(found).is_loopback
    return address, _checked_mode(address, is_loopback), is_loopback


def _address_of_this_machine() -> str:
    from ray._private.services import find_bootstrap_address

    address = find_bootstrap_address(None)
    if not address:
        raise UsageError(
            "address = 'auto': no Ray cluster runs on this machine; give its HOST:PORT, or no address at all to have a "
            "local one started"
        )
    return address


def _checked_mode(address: str, is_loopback: bool) -> str:
    """Refuse a cluster on a network that lets in whoever has no token; use ours where one is asked for."""
    if _answers(address, "disabled"):
        if not is_loopback:
            raise UsageError(
                f"the Ray cluster at {address} asks for no token: whoever reaches it runs code on it, as you. Start it "
                "again after `ray get-auth-token --generate`, with RAY_AUTH_MODE=token and the same ~/.ray/auth_token "
                "on every machine (docs/cluster.md)"
            )
        return "disabled"
    mode = os.environ.get(AUTH_MODE, "token")
    if mode == "disabled" or not _answers(address, mode):
        raise UsageError(
            f"the Ray cluster at {address} asks for a token, and this machine has none or another "
            f"({AUTH_MODE}={mode}): copy ~/.ray/auth_token from the machine of its head, or set RAY_AUTH_TOKEN to what "
            f"`ray get-auth-token` prints there; {AUTH_MODE} must be token, or not be set"
        )
    return mode


ASK = """
import sys
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    ensure_token_if_auth_enabled(create_token_if_missing=False)
    GcsClient(address=sys.argv[1], cluster_id=None).get_all_node_info(timeout=10)
except AuthenticationError:
    sys.exit(77)
"""
REFUSED = 77


def _answers(address: str, mode: str) -> bool:
    """Whether the cluster lets us in by this mode; another process asks, as Ray knows one mode a process."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK, address], capture_output=True, text=True, timeout=ANSWER_SECONDS,
            env=os.environ | {AUTH_MODE: mode},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        reason = f"no answer within {ANSWER_SECONDS:g} s"
    else:
        if done.returncode in (0, REFUSED):
            return done.returncode == 0
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1][:300]
    raise UsageError(
        f"what listens at {address} does not answer as a Ray cluster does ({reason}); give the address that `ray start "
        "--head` printed, and install the same version of Ray here and there"
    )


def explained(error: Exception, address: str = "") -> UsageError:
    """What Ray says, with what to do."""
    text = str(error)
    where = f" at {address}" if address else ""
    if "Version mismatch" in text:
        fix = "install the same versions of Ray and Python here and there"
    elif "semfocus" in text and "No module named" in text:
        fix = "install semfocus, the same version, on every machine of the cluster"
    elif "token" in text.lower() or "unauthenticated" in text.lower():
        fix = "put the cluster's token into ~/.ray/auth_token, or RAY_AUTH_TOKEN, on every machine"
    elif "node is not" in text or "Can't find a" in text or "local raylet" in text.lower():
        fix = "run the command on a machine of the cluster: `ray start --address=...` makes this one of them"
    else:
        fix = "look at `ray status` there"
    return UsageError(f"the Ray cluster{where} cannot be used: {first_line(error)}; {fix}")


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or [''])[0][:300]}"

"""To a Ray cluster, or a reason why not: started on this machine, or joined at an address.

    connection = connect("10.0.0.1:6379", workers=0, cpus=1)
    connection.ray.nodes()

A cluster that is started here binds to the loopback interface. One that is joined beyond it must ask for a token.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from dataclasses import dataclass
from typing import Any

from semfocus.errors import MissingExtra, UsageError

LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # off: Ray binds to the loopback interface, on any system
CONNECT_SECONDS = 5.0
IDLE_MS = 60_000
STORE_BYTES = 2**28  # of Ray's shared memory on this machine: cohorts and checkpoints are small


@dataclass(frozen=True)
class Connection:
    """Ray, and what became of connecting."""

    ray: Any
    is_ours: bool  # to be closed again
    is_local: bool  # started by us, on this machine alone


def connect(address: str, workers: int, cpus: int) -> Connection:
    """To the address, to what RAY_ADDRESS says, or to a cluster of this machine that is started now."""
    address = address or os.environ.get("RAY_ADDRESS", "")
    starts = address in ("", "local")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if starts:
        _bind_to_loopback()
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "cluster", "the executor ray") from None
    if ray.is_initialized():
        return Connection(ray, is_ours=False, is_local=False)
    _silence()
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if starts:
        count: dict[str, Any] = {"num_cpus": workers * cpus} if workers else {}
        # Ray would end a worker after a second without work; the next one would have to import torch again.
        config = {"idle_worker_killing_time_threshold_ms": IDLE_MS}
        ray.init(
            address="local", include_dashboard=False, object_store_memory=STORE_BYTES, _system_config=config,
            **count, **quiet,
        )  # fmt: skip
        return Connection(ray, is_ours=True, is_local=True)
    check_address(address)
    try:
        ray.init(address=address, **quiet)
    except Exception as error:
        raise explained(error, address) from error
    return Connection(ray, is_ours=True, is_local=False)


def _silence() -> None:
    """Ray prints a paragraph for each lost worker, on standard output, where `--json` goes; we say it ourselves."""
    worker = sys.modules.get("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *data, **options: None  # type: ignore[union-attr]


def _bind_to_loopback() -> None:
    """Ray listens on every interface on Linux, unless told before it is imported."""
    constants = sys.modules.get("ray._private.ray_constants")
    if constants is not None:
        constants.ENABLE_RAY_CLUSTER = False  # type: ignore[attr-defined]
    os.environ.setdefault(LOOPBACK_SWITCH, "0")


def check_address(address: str) -> None:
    """Say within seconds that nothing is there; refuse a cluster that is open to anybody."""
    if address == "auto":
        return
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
    if ipaddress.ip_address(found).is_loopback:
        _bind_to_loopback()
    elif os.environ.get("RAY_AUTH_MODE") == "disabled":
        raise UsageError(
            f"the cluster at {address} would be joined without a token (RAY_AUTH_MODE=disabled): whoever reaches it "
            "runs code on it. Unset RAY_AUTH_MODE on every machine, and share one token (docs/cluster.md)"
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
        fix = "put the cluster's token into ~/.ray/auth_token, or RAY_AUTH_TOKEN, on this machine"
    elif "node is not" in text or "Can't find a" in text or "local raylet" in text.lower():
        fix = "run the command on a machine of the cluster: `ray start --address=...` makes this one of them"
    else:
        fix = "look at `ray status` there"
    return UsageError(f"the Ray cluster{where} cannot be used: {first_line(error)}; {fix}")


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or [''])[0][:300]}"

"""Shared by all tests: one torch thread, a cache in a temporary folder, no network, one device.

`--plugin my_module` imports a user's module before tests are collected; the conformance suite then covers it too.
The tests of attention build their tensors on SEMFOCUS_TEST_DEVICE (default: cpu; `make test-gpu` sets it).
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from semfocus.errors import UsageError
from semfocus.plugins import load_plugin

torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # set by a shell for background jobs; tests need the signal
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: on a busy machine any example may take longer than the default of 200 ms. The same examples every time:
# a random example must not fail an unrelated change. `make test-all` searches at random.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", patient)
settings.register_profile("same", patient, derandomize=True)
settings.load_profile("same")

DEVICE = torch.device(os.environ.get("SEMFOCUS_TEST_DEVICE", "cpu"))

if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported, which torch.compile does

if DEVICE.type == "cuda":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it torch refuses to be deterministic there
    if not torch.cuda.is_available():
        raise pytest.UsageError(f"SEMFOCUS_TEST_DEVICE={DEVICE}, but torch {torch.__version__} finds no such device")
    with warnings.catch_warnings():
        # The first product of the backward thread may warn that it has no context yet, which no test causes.
        warnings.simplefilter("ignore")
        (torch.ones(2, 2, device=DEVICE, requires_grad=True) @ torch.ones(2, 2, device=DEVICE)).sum().backward()
        # Importing torch's compiler warns of a deprecation in torch 2.11, in whichever test comes first.
        torch.compiler.reset()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--plugin",
        action="append",
        default=[],
        metavar="MODULE",
        help="import MODULE (a name or a file) first: the conformance suite then tests what it registers (repeatable)",
    )


def pytest_configure(config: pytest.Config) -> None:
    for name in config.getoption("--plugin"):
        try:
            load_plugin(name)
        except UsageError as error:
            raise pytest.UsageError(f"--plugin {name}: {error}") from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """SEMFOCUS_TEST_SHARD=3/12 runs every twelfth test from the third on: several processes share the work."""
    shard = os.environ.get("SEMFOCUS_TEST_SHARD")
    if shard:
        number, count = (int(part) for part in shard.split("/"))
        chosen = [item for place, item in enumerate(items) if place % count == number - 1]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEMFOCUS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def data_dir() -> Path:
    return Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the tests of attention build their tensors."""
    return DEVICE

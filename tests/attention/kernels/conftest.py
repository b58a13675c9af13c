"""Kernels run as compiled on a GPU under test, and by Triton's interpreter on a CPU.

The interpreter must be chosen before Triton is first imported, which torch.compile does: hence here, while tests are
still being collected.
"""

from __future__ import annotations

import os
import sys

import pytest

from tests.conftest import DEVICE

if DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    if "triton" in sys.modules:
        raise pytest.UsageError("Triton was imported before it was told to interpret; set TRITON_INTERPRET=1")
    os.environ["TRITON_INTERPRET"] = "1"

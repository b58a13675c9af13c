"""Train the cases and keep what comes of them: `python tests/golden/record.py` writes runs.json and page.json.

Whatever of the package is touched is touched here: `train`, `compare`, `load`, `Runtime`, `parse_config`, and the
files `metrics.jsonl` and `report.html`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import semfocus
from semfocus.config_files import parse_config
from tests.golden.cases import CASES, COMPARISON

HERE = Path(__file__).parent
RUNS, PAGE = HERE / "runs.json", HERE / "page.json"
CLOCKS = {"seconds_per_run", "seconds_per_epoch"}  # in the comparison's table
NOT_DRAWN = {"config"}  # in the page's data: settings to download
Json = dict[str, Any]


def fingerprint() -> dict[str, str]:
    """What must be the same for results to be equal to the bit."""
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cpu": _cpu(),
    }


def record_runs(store: Path) -> Json:
    """By the case's name: the run's id, how it ended, its metrics and the hash of its parameters."""
    configs = [parse_config(settings) for settings in CASES.values()]
    runtime = semfocus.Runtime(device="cpu", threads=1, compile="off", jobs=1)
    outcomes = semfocus.train(configs, store, runtime)
    return {
        name: {
            "id": outcome.run.id,
            "state": outcome.state,
            "metrics": _rows(store / outcome.run.id / "metrics.jsonl"),
            "parameters": _hash(outcome.run.id, store),
        }
        for name, outcome in zip(CASES, outcomes, strict=True)
    }


def record_page(store: Path) -> Json:
    """The table of one comparison, and the numbers that its page draws."""
    found = semfocus.compare(**COMPARISON, device="cpu", threads=1, out=store)
    page = (store / "report.html").read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    if data is None:
        raise ValueError("the page has no script element with its data")
    return {"table": _without(found.to_dict(), CLOCKS), "drawn": _without(json.loads(data[1]), NOT_DRAWN)}


def _rows(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _hash(run: str, store: Path) -> str:
    """Of all final parameters in order, as float32."""
    digest = hashlib.sha256()
    for value in semfocus.load(run, out=store).parameters():
        digest.update(value.detach().to(torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(part, names) for name, part in value.items() if name not in names}
    return [_without(part, names) for part in value] if isinstance(value, list) else value


def _cpu() -> str:
    """Name, family and model: a name such as "AMD EPYC" alone stands for several processors."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or platform.machine()
    first = path.read_text(encoding="utf-8").partition("\n\n")[0]
    fields = dict(re.findall(r"^([^\t:]+)\s*: (.*)$", first, flags=re.MULTILINE))
    return ", ".join(fields.get(name, "?") for name in ("model name", "cpu family", "model"))


def _write(path: Path, name: str, value: Json) -> None:
    text = json.dumps({"fingerprint": fingerprint(), name: value}, indent=1, sort_keys=False)
    # One line a list of numbers: a change shows as the lines that changed, and the file stays short.
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Record everything anew."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        os.environ["SEMFOCUS_CACHE"] = str(Path(place) / "cache")
        _write(RUNS, "runs", record_runs(Path(place) / "runs"))
        _write(PAGE, "page", record_page(Path(place) / "comparison"))


if __name__ == "__main__":
    main()

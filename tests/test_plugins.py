"""A task, mechanism, normaliser, objective and executor from a module outside of the package, and bad plugins.

The module is the code of docs/guides/extend.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from semfocus.errors import UsageError
from semfocus.execution import train
from semfocus.execution.executor import Executor, make_executor, register_executor, registry
from semfocus.plugins import load_plugin
from semfocus.tasks import get_task
from semfocus.training import Runtime
from semfocus.training.cohort import spec_of
from semfocus.training.data import stack
from semfocus.training.objective import Classification
from tests.command import semfocus
from tests.training.helpers import runtime, tiny

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guides" / "extend.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
TINY = [
    "--seeds", "1", "--epochs", "2", "--threads", "1", "--compile", "off",
    *(f"--set={change}" for change in (
        "model.blocks=1", "model.d_model=8", "model.d_mlp=8", "task.train_rows=100", "task.heldout_rows=40",
        "attention.normaliser=squares",
    )),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the guide's module in it."""
    folder = tmp_path_factory.mktemp("plugins")
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    (folder / "my_focus.py").write_text("\n\n".join(blocks))
    return folder


def test_what_a_plugin_registers_is_compared_in_worker_processes_and_shown_on_the_page(folder: Path) -> None:
    arguments = ["compare", "majority", "--attention", "full,cosine:3", "--jobs", "2", *TINY]
    done = semfocus(*arguments, "--plugin", "my_focus", "--executor", "processes", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    comparison = json.loads(done.stdout)
    assert [arm["mechanism"] for arm in comparison["mechanisms"]] == ["full", "cosine:3"]
    assert comparison["threshold"] == 0.9, "what learned means is the objective's to say"
    configs = [json.loads(path.read_text())["config"] for path in (folder / "runs").glob("*/config.json")]
    assert {config["objective"] for config in configs} == {"margin"}
    assert {config["attention"]["normaliser"] for config in configs} == {"squares"}
    assert "cosine:3" in (folder / "runs" / "report.html").read_text()
    again = semfocus("--plugin=my_focus", *arguments, "--executor", "shortest_first", folder=folder)
    assert again.returncode == 0, again.stderr
    assert "epochs to 90 %" in again.stdout


def test_a_plugin_given_by_the_environment_serves_a_study_file_and_its_executor_trains(folder: Path) -> None:
    (folder / "own.toml").write_text('tasks = ["majority"]\nmechanisms = ["full", "cosine:2"]\nseeds = 1\n')
    arguments = ["run", "own.toml", "--scale", "smoke", "--executor", "shortest_first", "--out", "studied"]
    done = semfocus(*arguments, "--threads", "1", folder=folder, SEMFOCUS_PLUGINS="my_focus")
    assert done.returncode == 0, done.stderr
    assert "majority: 1 seed," in done.stdout
    assert "cosine:2" in done.stdout


OWN_METRIC = """
from dataclasses import dataclass
from semfocus import register_objective, register_task
from semfocus.tasks.even_pairs import EvenPairs
from semfocus.training.objective import LOSS, Classification, Learned, Metric

@register_objective
class Low(Classification):
    name = "low"
    metrics = (LOSS, Metric("spread", "spread of the logits", higher_is_better=True))
    learned = Learned(LOSS, 0.69)

    def measurements(self, logits, targets):
        return {"spread": logits.amax(-1) - logits.amin(-1)}

@register_task
@dataclass(frozen=True, kw_only=True)
class LowPairs(EvenPairs):
    name = "low_pairs"
    objective = "low"
"""


def test_a_metric_of_one_s_own_is_recorded_drawn_and_shown_and_the_loss_may_mean_learned(tmp_path: Path) -> None:
    (tmp_path / "lossy.py").write_text(OWN_METRIC)
    arguments = ["compare", "low_pairs", "--attention", "full,topk:3", "--jobs", "1", *TINY[:-1]]
    done = semfocus(*arguments, "--plugin", "lossy.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "epochs to training loss 0.69" in done.stdout
    assert "spread of the logits" in (tmp_path / "runs" / "curves-low_pairs.svg").read_text()
    page = (tmp_path / "runs" / "report.html").read_text()
    shown = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    (group,) = shown["groups"]
    assert group["learned"] == {"metric": "train_loss", "threshold": 0.69, "level": "training loss 0.69"}
    assert {*group["arms"][0]["curves"]} == {"train_loss", "train_spread", "heldout_loss", "heldout_spread"}


def test_an_installed_package_needs_no_option_because_its_entry_point_names_the_module(
    folder: Path, tmp_path: Path
) -> None:
    facts = tmp_path / "my_focus-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: my-focus\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[semfocus.plugins]\nmine = my_focus\n")
    paths = os.pathsep.join([str(tmp_path), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    listed = subprocess.run(  # an installed package is on the path when Python starts
        [sys.executable, "-m", "semfocus.cli", "tasks"],
        capture_output=True, text=True, timeout=300, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert "majority" in listed.stdout, listed.stderr
    assert "majority" not in semfocus("tasks", folder=tmp_path).stdout


def test_the_conformance_suite_can_be_pointed_at_a_plugin(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/conformance", "--plugin", "my_focus",
         "-k", "cosine and (equal or gradient or oracle)", "-m", "not slow"],
        capture_output=True, text=True, timeout=600, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert re.search(r"\d+ passed", done.stdout), done.stdout[-500:]


BAD = {
    "missing_module": (None, "plugin 'missing_module' cannot be found"),
    "raises": ("1 / 0", "plugin 'raises' raises ZeroDivisionError on import: division by zero"),
    "lacks": ("import no_such_library", "plugin 'lacks' raises ModuleNotFoundError on import: No module named"),
    "twice": (
        "from dataclasses import dataclass\nfrom semfocus import TopK, register_mechanism\n"
        "@register_mechanism\n@dataclass(frozen=True)\nclass Mine(TopK):\n    name = 'topk'\n",
        "a mechanism called 'topk' is registered already; choose another name",
    ),
    "metricless": (
        "from semfocus import register_objective\n"
        "from semfocus.training.objective import LOSS, Classification\n"
        "@register_objective\nclass Mine(Classification):\n    name = 'mine'\n    metrics = (LOSS,)\n",
        "it is learned by the metric 'accuracy', which is missing",
    ),
}


def test_a_class_that_another_module_defines_reaches_worker_processes_through_the_plugin_that_registers_it(
    folder: Path, tmp_path: Path
) -> None:
    library = (folder / "my_focus.py").read_text().replace("@register_", "# @register_")
    (tmp_path / "library.py").write_text(library)
    (tmp_path / "entry.py").write_text(
        "from semfocus import register_mechanism, register_normaliser, register_objective, register_task\n"
        "from library import Cosine, Majority, Margin, Squares\n"
        "register_mechanism(Cosine)\nregister_normaliser(Squares)\nregister_objective(Margin)\nregister_task(Majority)\n"
    )
    arguments = ["compare", "majority", "--attention", "full,cosine:3", "--jobs", "2", *TINY, "--plugin", "entry.py"]
    done = semfocus(*arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    listed = semfocus("runs", str(tmp_path / "runs"), folder=folder)
    assert "unrecognised" in listed.stdout, "a run of a plugin that is not loaded is not damaged"
    assert "--plugin" in listed.stdout


def test_a_file_whose_name_another_module_has_and_a_plugin_that_exits_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "json.py").write_text("raise SystemError\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    with pytest.raises(UsageError, match="another module is called 'json'"):
        load_plugin(str(tmp_path / "json.py"))
    with pytest.raises(UsageError, match="raises SystemExit on import"):
        load_plugin(str(tmp_path / "leaves.py"))


@pytest.mark.parametrize("name", BAD)
def test_a_bad_plugin_is_named_with_what_to_do(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    code, message = BAD[name]
    if code is not None:
        (tmp_path / f"{name}.py").write_text(code)
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        load_plugin(name)
    assert name in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_command_line_refuses_a_bad_plugin_before_anything_is_made(tmp_path: Path) -> None:
    for arguments, message in (
        (["compare", "parity", "--plugin", "nowhere"], "plugin 'nowhere' cannot be found"),
        (["compare", "parity", "--plugin", "nowhere.py"], "plugin 'nowhere.py' is not a file"),
        (["compare", "parity", "--plugin"], "--plugin needs the name of a module"),
        (["compare", "parity", "--executor", "cloud"], "unknown executor 'cloud'"),
    ):
        done = semfocus(*arguments, folder=tmp_path)
        assert done.returncode == 2, (arguments, done.stderr)
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_executor_that_cannot_start_is_named_with_what_to_do() -> None:
    class Broken(Executor):
        name = "broken"

        def __init__(self, runtime: Runtime) -> None:
            raise RuntimeError("no such cluster")

        def run(self, cohorts, store, on_progress):  # pragma: no cover
            return []

    with registry.temporarily(Broken), pytest.raises(UsageError, match="executor 'broken' cannot start") as caught:
        make_executor("broken", Runtime(), 1)
    assert "RuntimeError: no such cluster" in str(caught.value)
    assert "serial" in str(caught.value)


def test_an_executor_that_returns_no_outcomes_or_is_none_is_named(tmp_path: Path) -> None:
    class Silent(Executor):
        name = "silent"

        def run(self, cohorts, store, on_progress):
            return None

    with registry.temporarily(Silent), pytest.raises(UsageError, match=r"'silent' must return outcomes_of\(cohorts\)"):
        train([tiny(1, epochs=1)], tmp_path, runtime(), executor="silent")
    with pytest.raises(UsageError, match="derive it from Executor"):
        register_executor(str)


def test_targets_that_are_numbers_reach_the_objective_as_they_are(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    class Halves(Classification):
        name = "halves"

        def targets(self, batch):
            return batch.labels * 0.5 + 0.25

        def loss(self, logits, targets):
            seen.append(targets)
            return (logits[..., 0] - targets).square()

        def measurements(self, logits, targets):
            return {"accuracy": (logits[..., 0] > 0.5) == (targets > 0.5)}

    task = get_task("even_pairs", length=8)
    batch = stack([task.sample(6, seed=1)], spec_of(tiny(), task), torch.device("cpu"), Halves())
    Halves().measure(torch.zeros(1, 6, 2), batch.every().targets)
    assert {*seen[0].flatten().tolist()} <= {0.25, 0.75}
    assert seen[0].dtype == torch.float32


def test_the_path_in_the_guide_is_one_way_and_every_stop_exists() -> None:
    stops = re.findall(r"^\| \d+ \| `([^`]+)`", ARCHITECTURE.read_text(), flags=re.MULTILINE)
    assert 10 <= len(stops) <= 20
    assert len(set(stops)) == len(stops), "a stop is visited twice"
    assert [stop for stop in stops if not (ROOT / "src" / "semfocus" / stop).is_file()] == []
    drawn = (ROOT / "docs" / "images" / "architecture.svg").read_text()
    assert [stop for stop in stops if stop not in drawn] == [], "draw it again: python docs/images/architecture.py"

"""The house rules on who may import whom, and on what importing costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "semfocus"

# What each part may import of the others. Parts that do not exist yet need no entry; an unlisted part fails the test.
ALLOWED: dict[str, set[str]] = {
    "lazy": set(),
    "errors": set(),
    "randomness": set(),
    "counter_rng": set(),
    "registry": {"errors"},
    "plugins": {"errors", "registry"},
    "store": {"errors"},
    "measurements": {"errors", "store"},
    "theory": {"errors", "randomness"},
    "tasks": {"errors", "lazy", "registry", "randomness", "store", "__init__"},
    "attention": {"errors", "lazy", "registry", "counter_rng"},
    "integrations": {"errors", "lazy", "attention"},
    "config": {"errors", "tasks", "attention"},
    "config_files": {"errors", "config"},
    "decoders": {"errors", "config", "tasks"},
    "recipes": {"errors", "config", "tasks", "decoders"},
    "spec": {"errors", "config", "attention", "randomness"},
    "encodings": {"errors", "spec", "counter_rng"},
    "model": {"errors", "spec", "encodings", "attention", "counter_rng"},
    "fused": {"attention", "spec", "model"},
    "training": {
        "errors", "lazy", "registry", "config", "spec", "model", "fused", "store", "tasks", "counter_rng", "randomness",
    },
    "execution": {
        "errors", "lazy", "registry", "plugins", "config", "tasks", "store", "training", "archive", "__init__",
    },
    "analysis": {
        "errors", "lazy", "randomness", "config", "store", "tasks", "attention", "recipes", "measurements", "training",
        "theory",
    },
    "archive": {"errors", "config", "store", "analysis"},
    "landscape": {
        "errors", "lazy", "randomness", "attention", "theory", "config", "spec", "encodings", "model", "tasks",
        "training", "store", "measurements",
    },
    "report": {
        "errors", "store", "analysis", "measurements", "theory", "landscape", "tasks", "training", "config", "recipes",
        "__init__",
    },
    "diagnostics": {
        "errors", "lazy", "randomness", "attention", "theory", "config", "spec", "model", "tasks", "training", "store",
        "measurements", "analysis", "report",
    },
    "experiments": {
        "errors", "registry", "execution", "attention", "config", "config_files", "recipes", "decoders", "tasks",
        "training", "store", "measurements", "analysis", "report", "archive", "theory", "diagnostics",
    },
    "cli": {
        "integrations", "errors", "execution", "tasks", "config_files", "training", "store", "analysis", "report",
        "experiments", "plugins", "theory", "landscape", "diagnostics", "measurements", "archive", "__init__",
    },
    # All but lazy for type checkers.
    "__init__": {
        "lazy", "attention", "tasks", "experiments", "config", "diagnostics", "execution", "plugins", "training",
    },
}  # fmt: skip
# Of some rooms, others may use one light module alone: the leaf of atomic writes, and what an objective declares.
LEAF_ONLY = {
    ("tasks", "store"): "semfocus.store.atomic",
    ("analysis", "training"): "semfocus.training.objective",
    ("report", "training"): "semfocus.training.objective",
}
# Inside a room: figures know neither the page nor the terminal, and the page does not know the terminal.
ROOMS = {
    "report/figures": {"report/page", "report/terminal"},
    "report/page": {"report/terminal"},
    "attention/kernels/short": {"attention/kernels/long"},
    "experiments/experiment.py": {"experiments/run.py", "experiments/study.py"},
}


def _modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _part(module: str) -> str:
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            found |= {_target(node.module or "", alias.name) for alias in node.names}
    return {name for name in found if name.split(".")[0] == "semfocus"}


def _target(module: str, name: str) -> str:
    """`from semfocus import counters` imports semfocus.counter_rng; other names come from the package itself."""
    is_part = module == "semfocus" and ((SOURCE / name).is_dir() or (SOURCE / f"{name}.py").exists())
    return f"semfocus.{name}" if is_part else module


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_imports_against_the_direction_of_the_house(path: Path) -> None:
    relative = path.relative_to(SOURCE).with_suffix("")
    own = relative.parts[0]
    for module in _imports(path):
        part = _part(module)
        assert part == own or part in ALLOWED[own], f"{relative} imports {module}"
        if (own, part) in LEAF_ONLY:
            assert module == LEAF_ONLY[own, part], f"{relative} imports {module}, more than the leaf"


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_have_a_direction_inside_too(room: str) -> None:
    paths = [path for path in _modules() if str(path.relative_to(SOURCE)).startswith(room)]
    assert paths
    banned = tuple(f"semfocus.{other.removesuffix('.py').replace('/', '.')}" for other in ROOMS[room])
    for path in paths:
        assert not [module for module in _imports(path) if module.startswith(banned)], path


def test_only_the_leaf_of_the_store_opens_files_for_writing() -> None:
    for path in _modules():
        if path.name == "atomic.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr not in {"write_text", "write_bytes"} or _is_atomic(node), f"{path}:{node.lineno}"
            if isinstance(node, ast.Call) and _called(node) == "open":
                modes = [
                    a.value for a in [*node.args, *(k.value for k in node.keywords)] if isinstance(a, ast.Constant)
                ]
                assert not any(isinstance(m, str) and set(m) & set("wax+") and len(m) <= 3 for m in modes), (
                    f"{path}:{node.lineno} opens for writing"
                )


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_atomic(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "atomic"


@pytest.mark.parametrize(
    ("arguments", "banned"),
    [
        (["--help"], ["torch", "numpy", "scipy", "matplotlib", "rich", "pydantic"]),
        (["tasks"], ["torch", "scipy", "matplotlib", "duckdb", "transformers", "tokenizers"]),
        (["studies"], ["torch", "scipy", "matplotlib", "duckdb", "transformers", "tokenizers"]),
    ],
)
def test_a_light_command_does_not_import_heavy_packages(arguments: list[str], banned: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['semfocus', *{arguments!r}]\n"
        "from semfocus.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"heavy = [name for name in {banned!r} if name in sys.modules]\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_every_public_name_can_be_imported() -> None:
    import semfocus

    for name in semfocus.__all__:
        assert getattr(semfocus, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = semfocus.no_such_name


@pytest.mark.parametrize("path", sorted(SOURCE.parents[1].glob("benchmarks/*.py")), ids=lambda path: path.name)
def test_every_name_that_a_benchmark_imports_exists(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "semfocus":
            module = import_module(node.module or "")
            for alias in node.names:
                is_module = hasattr(module, "__path__") and find_spec(f"{node.module}.{alias.name}") is not None
                assert hasattr(module, alias.name) or is_module, f"{node.module}.{alias.name}"

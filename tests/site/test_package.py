"""Wheel and source archive hold what a user needs, say their version once, and are described as an index demands."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import semfocus

pytest.importorskip("build", reason="build is not installed: pip install 'semfocus[dev]'")
pytest.importorskip("hatchling", reason="hatchling is not installed: pip install 'semfocus[dev]'")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    here = ROOT / "src"
    tracked = {
        path.relative_to(here).as_posix() for path in (here / "semfocus").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }  # fmt: skip
    assert names == tracked
    assert wheel.name.startswith(f"semfocus-{semfocus.__version__}-py3")


def test_the_source_archive_has_what_its_tests_and_its_site_need(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"Makefile", "mkdocs.yml", "constraints.txt", "docs/index.md", "tests/conftest.py", "LICENSE"} <= names
    assert [name for name in names if name.startswith((".ci", "results/paper", "site/", "runs/"))] == []


def test_the_description_renders_where_packages_are_listed(dist: Path) -> None:
    pytest.importorskip("twine", reason="twine is not installed: pip install 'semfocus[dev]'")
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_citation_and_changelog_name_the_version() -> None:
    assert f"\nversion: {semfocus.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{semfocus.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


HEADINGS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def test_the_changelog_has_the_usual_form() -> None:
    """What is new in 0.2.0 stood under 0.1.0, and some of it under Changed."""
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (unreleased|\d{4}-\d\d-\d\d)$", text, flags=re.MULTILINE)
    assert len(versions) == text.count("\n## ")
    parts = text.split("\n## ")[1:]
    for part in parts:
        headings = re.findall(r"^### (.*)$", part, flags=re.MULTILINE)
        assert headings == [name for name in HEADINGS if name in headings], headings
    assert parts[-1].startswith("[0.1.0]")
    for name in (
        "semfocus.compare",
        "--plugin",
        "lsh:5",
        "q_positions",
        "--tune lr",
        "--executor",
        "semfocus runs` shows",
    ):
        assert name not in parts[-1], f"{name} is of 0.2.0"
    added = parts[0].partition("### Added")[2].partition("\n### ")[0]
    assert all(name in added for name in ("lsh:5", "model.positions", "--tune lr", "--plugin"))


def test_workflows_call_the_makefile_and_nothing_that_it_lacks() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        called = set(re.findall(r"\bmake ([a-z-]+)", workflow.read_text()))
        assert called, f"{workflow.name} calls no target"
        assert called <= targets

"""How runs were made: versions, commit, devices and seeds, and the commands that train them again."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast, get_args

import semfocus
from semfocus import recipes
from semfocus.analysis.groups import Group
from semfocus.config import RunConfig
from semfocus.errors import SemfocusError
from semfocus.store import RunDirectory

# Fields of a run's status about the machine and the software, with their titles.
FACTS = {
    "semfocus": "semfocus",
    "commit": "commit",
    "torch": "PyTorch",
    "python": "Python",
    "device": "device",
    "device_name": "device name",
    "threads": "CPU threads",
    "compiled": "compiled",
}
_EARLY_STOP = {"training.patience", "training.patience_on", "training.evaluate_test"}  # what --early-stop sets
CHECKED = "metrics against checksums"
_MOST_SEEDS = 256  # up to which a command is sought


def facts_of(runs: Iterable[RunDirectory]) -> dict[str, list[tuple[str, int]]]:
    """Each of FACTS with its values and their numbers of runs, the most frequent first."""
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        try:
            status, verification = run.status() or {}, run.verification()
        except SemfocusError:
            continue  # a damaged status is among the faults of the results
        counts.setdefault(CHECKED, Counter())[verification] += 1
        for name, title in FACTS.items():
            if isinstance(status.get(name), (str, int, float)):
                counts.setdefault(title, Counter())[str(status[name])] += 1
    return {title: counts[title].most_common() for title in (*FACTS.values(), CHECKED) if title in counts}


def commit() -> str | None:
    """The commit of the source tree, marked when files differ from it; None for an installed package."""
    root = Path(semfocus.__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD").strip()
        changed = _git(root, "status", "--porcelain", "--untracked-files=no").strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}, with changes" if changed else head


def commands(group: Group) -> list[str]:
    """The commands that train exactly these runs again: one for all arms that have the same seeds.

    Where the seeds of an arm are no study's, one command for all seeds there are; none where that does not do either.
    """
    arms: dict[frozenset[int], list[str]] = {}
    for mechanism in group.mechanisms:
        arms.setdefault(frozenset(record.seed for record in group.runs(mechanism)), []).append(mechanism)
    each = [_shortest(group.only(mechanisms)) for mechanisms in arms.values()]
    found = [text for text in each if text is not None]
    if len(found) < len(each):
        whole = _shortest(group)
        found = [] if whole is None else [whole]
    return found


def _shortest(group: Group) -> str | None:
    commands = [
        text for text in (_command(group, base) for base in ("quick", *get_args(recipes.Recipe))) if text is not None
    ]
    return min(commands, key=len, default=None)


def _command(group: Group, base: str) -> str | None:
    first = group.records[0].config
    seeds = _seed_count({record.seed for record in group.records})
    task = first["task"]
    try:
        wanted = RunConfig.model_validate({name: first[name] for name in RunConfig.model_fields if name in first})
        asked = task["name"], wanted.attention.mechanism, wanted.seed
        if base == "quick":
            start = recipes.quick(*asked, options=task["options"])
            implied = recipes.quick(*asked).task.options
        else:
            start, implied = recipes.configure(*asked, cast("recipes.Recipe", base), task["options"]), {}
    except (SemfocusError, ValueError, TypeError, KeyError):
        return None
    if seeds is None or task["name"].startswith("-") or start.task.options != wanted.task.options:
        return None
    words = ["semfocus", "compare", task["name"], "--attention", ",".join(group.mechanisms), "--seeds", str(seeds)]
    words += {"quick": ["--quick"], "clean": []}.get(base, ["--recipe", base])
    for name, value in wanted.task.options.items():
        words += [] if name in implied and implied[name] == value else ["--option", f"{name}={_plain(value)}"]
    changes = dict(_changes(start, wanted))
    if changes.pop("training.tuned", ""):
        changes.pop("training.lr", None)
        words += ["--tune", "lr"]
    if changes.keys() >= _EARLY_STOP:
        words += ["--early-stop", str(changes["training.patience"])]
        changes = {name: value for name, value in changes.items() if name not in _EARLY_STOP}
    for name, value in changes.items():
        words += {"training.epochs": ["--epochs", str(value)]}.get(name, ["--set", f"{name}={json.dumps(value)}"])
    return shlex.join(words)


def _changes(start: RunConfig, wanted: RunConfig) -> Iterator[tuple[str, Any]]:
    """(dotted field, wanted value) of the fields that a recipe sets otherwise."""
    for part in ("task", "attention", "model", "training"):
        before, after = getattr(start, part), getattr(wanted, part)
        for field in type(after).model_fields:
            value = getattr(after, field)
            if getattr(before, field) != value and (part, field) != ("task", "options"):
                yield f"{part}.{field}", value
    if start.precision != wanted.precision:
        yield "precision", wanted.precision


def _seed_count(seeds: set[int]) -> int | None:
    """The number of seeds, if they are the first of the recipes' seeds; else None."""
    count = len(seeds)
    return count if count <= _MOST_SEEDS and seeds == set(recipes.seeds(count)) else None


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def config_for_training(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a run's config.json that `semfocus train` takes."""
    return {name: config[name] for name in RunConfig.model_fields if name in config}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout

"""Data files on machines that lack them: brought once a machine, and known by their content.

sums = {str(path): sha256(path)}                          by the driver
path = local_path(name, sum, bring)                       by a worker: `bring()` is called when it is not there
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from semfocus.config import RunConfig
from semfocus.errors import CorruptData
from semfocus.store import atomic
from semfocus.tasks.cache import directory


def files_of(configs: Iterable[RunConfig]) -> dict[str, str]:
    """The data files that these runs read, and their SHA-256 sums."""
    names = dict.fromkeys(config.task.name for config in configs)
    return {name: sha256_of(Path(name)) for name in names if Path(name).is_file()}


def sha256_of(path: Path) -> str:
    stat = path.stat()
    return _sum(str(path.absolute()), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _sum(path: str, size: int, changed: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def local_path(name: str, digest: str, bring: Callable[[], bytes], scratch: Path) -> str:
    """Where this machine has the file: under its own name, or in the cache; `scratch` serves where caching is off."""
    if Path(name).is_file() and sha256_of(Path(name)) == digest:
        return name
    folder = directory()
    # The name stays, because its end says what the file is.
    place = (scratch if folder is None else folder.parent) / "data" / digest / Path(name).name
    if not (place.is_file() and sha256_of(place) == digest):
        data = bring()
        if hashlib.sha256(data).hexdigest() != digest:
            raise CorruptData(f"{name} changed while it was on its way to this machine; leave data files alone")
        atomic.write_bytes(place, data)
    return str(place)


def with_local_data(configs: list[RunConfig], paths: dict[str, str]) -> list[RunConfig]:
    """The same runs, reading their data where this machine has them."""
    return [
        config.model_copy(update={"task": config.task.model_copy(update={"name": paths[config.task.name]})})
        if config.task.name in paths
        else config
        for config in configs
    ]

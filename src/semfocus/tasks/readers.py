"""Readers of two columns of a CSV, TSV, JSON lines or Parquet file, row by row.

Text files are UTF-8, with or without a byte-order mark, with unix or Windows line ends. No line may be longer than
`MAX_LINE_BYTES`: reading a file without line ends must not fill the memory.
"""

from __future__ import annotations

import csv
import glob
import itertools
import json
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from semfocus.errors import BadRow, DataError, MissingExtra
from semfocus.tasks.rows import Origin

MAX_LINE_BYTES = 16 * 2**20
MAX_ROWS = 10**8  # of a Parquet file
MAX_UNPACKED_BYTES = 2**31  # of its two columns
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 4096, 2**26  # fetched from it
_MEMORY = "4GB"  # that the database may take


class Pair(NamedTuple):
    """Two cells of one row, and the number of its line or row."""

    number: int
    text: Any
    label: Any


class Source(ABC):
    """A file with known columns and readable rows."""

    unit = "line"
    header_hint = ""  # what else may be wrong where no column has the name that is looked for

    def __init__(self, path: Path) -> None:
        self.path = path
        self.origin = Origin(str(path), self.unit)
        self.columns = self._read_columns()

    @abstractmethod
    def _read_columns(self) -> list[str]: ...

    @abstractmethod
    def pairs(self, text: str, label: str) -> Iterator[Pair | BadRow]:
        """Yield the cells of these two columns, row by row; of a row that has none, what is wrong with it."""

    def empty(self) -> DataError:
        """The error for an empty file."""
        return DataError(f"{self.origin.name} is empty; it needs at least two labelled rows")


def open_source(path: Path, kind: type[Source] | None = None) -> Source:
    """The reader for this file, chosen by its suffix where none is named."""
    kind = kind or _KINDS.get(path.suffix.lower())
    if kind is None:
        raise DataError(f"{path} must end in one of {', '.join(_KINDS)}")
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path} is not there; check the path (the current directory is {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not stat.S_ISREG(mode):
        raise DataError(f"{path} is not a regular file; give the path of one")
    return kind(path)


class Delimited(Source):
    """Separated values: a header, then rows; fields with separators, quotes or line ends are quoted.

    The separator is a comma; where that leaves the header in one piece, a semicolon or a tab, as some spreadsheets
    write it.
    """

    delimiters: tuple[str, ...] = (",", ";", "\t")
    delimiter: str

    @property
    def header_hint(self) -> str:  # type: ignore[override]
        other = next((mark for mark in ";|" if any(mark in name for name in self.columns)), None)
        hint = "" if other is None else f" (they seem to be separated by {other!r}: separate them by ',')"
        return f"; the file must begin with a line of column names{hint}"

    def _read_columns(self) -> list[str]:
        for delimiter in (*self.delimiters, self.delimiters[0]):  # the first again: where none parts the header
            self.delimiter = delimiter
            header = next((record for _, record in self._records()), [])
            if len(header) > 1:
                break
        if not header:
            raise self.empty()
        return header

    def pairs(self, text: str, label: str) -> Iterator[Pair | BadRow]:
        width, i, j = len(self.columns), self.columns.index(text), self.columns.index(label)
        for number, record in itertools.islice(self._records(), 1, None):
            if len(record) != width:
                fields = f"{len(record)} field{'' if len(record) == 1 else 's'}"
                quotes = f"put quotes around a field that contains {self.delimiter!r}"
                what = "add what is missing" if len(record) < width else quotes
                yield self.origin.error(number, f"{fields} where the header has {width}; {what}")
            else:
                yield Pair(number, record[i], record[j])

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        # The csv module limits a field to 128 KiB, for the whole process: the limit is raised, never lowered.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
        reader = csv.reader(read_lines(self.path), delimiter=self.delimiter, strict=True)
        while True:
            first = reader.line_num + 1
            try:
                record = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise self.origin.error(
                    first, f"not readable as {self.path.suffix} ({error}); check the quotes from here on"
                ) from None
            if record:  # a blank line is no row
                yield first, record


class Tabbed(Delimited):
    """Tab-separated values."""

    delimiters = ("\t",)


class JsonLines(Source):
    """One JSON object on each line; the keys of the first are the columns."""

    def _read_columns(self) -> list[str]:
        bad = []
        for _, record in self._records():
            if not isinstance(record, BadRow):
                return list(record)
            bad.append(record)
        if bad:
            self.origin.refuse(bad)
        raise self.empty()

    def pairs(self, text: str, label: str) -> Iterator[Pair | BadRow]:
        for number, record in self._records():
            if isinstance(record, BadRow):
                yield record
                continue
            missing = [key for key in (text, label) if key not in record]
            if missing:
                keys = ", ".join(map(str, record)) or "none"
                yield self.origin.error(number, f"{missing[0]!r} is missing (keys: {keys}); add it or remove the row")
            else:
                yield Pair(number, record[text], record[label])

    def _records(self) -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
        for number, line in enumerate(read_lines(self.path), start=1):
            if line.strip():
                yield number, self._record(number, line)

    def _record(self, number: int, line: str) -> dict[str, Any] | BadRow:
        try:
            record = json.loads(line)
        except RecursionError:
            return self.origin.error(number, "brackets are nested too deeply; flatten the object")
        except ValueError as error:
            return self.origin.error(number, f"not JSON ({error}); a .jsonl file holds one object a line")
        if not isinstance(record, dict):
            return self.origin.error(
                number, f'a JSON {type(record).__name__}, not an object such as {{"text": ..., "label": ...}}'
            )
        return record


class StoredLines(JsonLines):
    """Rows that were given from memory: messages call them and number them as the user has them, from 0."""

    unit = "row"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.origin = Origin(path.stem, self.unit, "compare")

    def pairs(self, text: str, label: str) -> Iterator[Pair | BadRow]:
        for pair in super().pairs(text, label):
            yield pair if isinstance(pair, BadRow) else pair._replace(number=pair.number - 1)


class Parquet(Source):
    """A Parquet file, read by DuckDB; rows are numbered from 1."""

    unit = "row"

    def _read_columns(self) -> list[str]:
        if self.path.stat().st_size == 0:
            raise self.empty()
        with self._query("*", limit=" LIMIT 0") as cursor:
            return [column[0] for column in cursor.description]

    def pairs(self, text: str, label: str) -> Iterator[Pair]:
        at_once = self._rows_at_once(text, label)
        with self._query(f"{_quoted(text)}, {_quoted(label)}") as cursor:
            numbers = itertools.count(1)
            while cells := cursor.fetchmany(at_once):
                for text_cell, label_cell in cells:
                    yield Pair(next(numbers), text_cell, label_cell)

    def _rows_at_once(self, text: str, label: str) -> int:
        """How many rows to fetch at a time; DataError where the columns unpack to more than may be read.

        A few kilobytes can hold gigabytes: a long text once, and a million references to it.
        """
        with self._query(f"typeof({_quoted(text)}), typeof({_quoted(label)})", limit=" LIMIT 1") as cursor:
            kinds = cursor.fetchone() or ("", "")
        sizes = [_size_of(name, kind) for name, kind in zip((text, label), kinds, strict=True)]
        with self._query(
            f"count(*), {', '.join(f'coalesce(max({size}), 0), coalesce(sum({size}), 0)' for size in sizes)}"
        ) as cursor:
            rows, *numbers = (int(number) for number in cursor.fetchone())
        if rows > MAX_ROWS:
            raise DataError(f"{self.path} has {rows} rows; at most {MAX_ROWS} are read")
        for column, most, total in zip((text, label), numbers[::2], numbers[1::2], strict=True):
            if most > MAX_LINE_BYTES or total > MAX_UNPACKED_BYTES:
                raise DataError(
                    f"{self.path}: the column {column!r} unpacks to {total} bytes, {most} in one cell; at most "
                    f"{MAX_UNPACKED_BYTES} and {MAX_LINE_BYTES} are read"
                )
        return max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // max(1, *numbers[::2])))

    @contextmanager
    def _query(self, what: str, limit: str = "") -> Iterator[Any]:
        try:
            import duckdb
        except ImportError:
            raise MissingExtra("duckdb", "analysis", "reading Parquet") from None
        # DuckDB must not download extensions, and a folder called `label=1` must not add a column.
        offline: dict[str, Any] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        offline["memory_limit"] = _MEMORY
        sql = f"SELECT {what} FROM read_parquet(?, hive_partitioning = false){limit}"
        try:
            with duckdb.connect(config=offline) as connection:
                yield connection.execute(sql, [glob.escape(str(self.path.resolve()))])
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{self.path} is not readable as Parquet: {reason}") from None


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, with their line ends."""
    origin, offset = Origin(str(path), "line"), 0
    try:
        with path.open("rb") as file:
            for number in itertools.count(1):
                line = file.readline(MAX_LINE_BYTES + len("\r\n") + 1)
                if not line:
                    return
                if len(line.rstrip(b"\r\n")) > MAX_LINE_BYTES:
                    raise origin.error(
                        number, f"longer than {MAX_LINE_BYTES} bytes (16 MiB), the most a line may have; split the row"
                    )
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    raise origin.error(
                        number,
                        f"byte 0x{line[error.start]:02x} at offset {offset + error.start} of the file is not UTF-8; "
                        f"save the file as UTF-8",
                    ) from None
                offset += len(line)
                yield text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}") if number == 1 else text
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _quoted(column: str) -> str:
    doubled = column.replace('"', '""')
    return f'"{doubled}"'


def _size_of(column: str, kind: str) -> str:
    """The bytes that a cell takes, in SQL, without unpacking it; a list counts eight for each of its items."""
    name = _quoted(column)
    if kind.endswith("[]"):
        inner = f"list_sum(list_transform({name}, item -> strlen(item)))" if kind == "VARCHAR[]" else "0"
        return f"8 * len({name}) + coalesce({inner}, 0)"
    return {"VARCHAR": f"strlen({name})", "BLOB": f"octet_length({name})"}.get(kind, "8")


_KINDS: dict[str, type[Source]] = {
    ".csv": Delimited,
    ".tsv": Tabbed,
    ".jsonl": JsonLines,
    ".parquet": Parquet,
}

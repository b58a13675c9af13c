"""A task over a user's own file: `get_task("reviews.csv")`.

    text,label
    what a film,1              tokens are words, because most rows contain white space
    never again,0

Everything that is fitted to the data (vocabulary, merges, width) is fitted to the train rows alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from semfocus.errors import BadRow, DataError, UsageError, check_int, unknown
from semfocus.tasks.readers import Source, StoredLines, open_source
from semfocus.tasks.rows import Content, Item, checked_label
from semfocus.tasks.table import Keep, TableOptions, TableTask, tabulate
from semfocus.tasks.tokenisers import NAMES, SMALLEST_BPE, Pretrained, fit_tokeniser, is_path

OTHER_SPELLINGS = {"tokeniser": "tokenizer"}

# Without an option, a column is chosen by one of these names; the first has precedence.
TEXT_NAMES = (
    *("text", "texts", "sentence", "sentences", "sequence", "tokens", "content", "document"),
    *("review", "message", "input", "inputs", "x"),
)
LABEL_NAMES = (
    *("label", "labels", "class", "classes", "target", "targets", "category", "output", "outputs"),
    *("sentiment", "y"),
)


@dataclass(frozen=True, kw_only=True)
class FileOptions(TableOptions):
    """The options of `get_task("data.csv", ...)`."""

    text_column: str | None = None
    label_column: str | None = None
    # auto: tokens for token lists; whitespace if half the texts contain it; else char. Or the path of a tokenizer.json.
    tokenizer: str = "auto"
    vocab_size: int = 10_000  # the unknown symbol is not counted
    max_length: int = 256
    keep: Keep = "start"  # which end of a longer row to keep

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("text_column", "label_column"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise UsageError(f"{name} = {value!r} must be the name of a column")
        if self.tokenizer not in NAMES and not is_path(self.tokenizer):
            raise unknown("tokenizer", self.tokenizer, NAMES, "; or the path of a tokenizer.json")
        if self.keep not in ("start", "end"):
            raise UsageError(f"keep = {self.keep!r} is not one of start, end")
        smallest = SMALLEST_BPE if self.tokenizer == "bpe" else 1
        object.__setattr__(self, "vocab_size", check_int("vocab_size", self.vocab_size, at_least=smallest))
        object.__setattr__(self, "max_length", check_int("max_length", self.max_length, at_least=1))


@dataclass(frozen=True, kw_only=True)
class FileTask(TableTask):
    """The rows of a CSV, TSV, JSON lines or Parquet file."""

    name = "file"
    summary = "the rows of a CSV, TSV, JSON lines or Parquet file"

    format: str
    path: Path = field(compare=False, repr=False)

    @classmethod
    def load(cls, path: Path, **options: Any) -> FileTask:
        """Read a file; the options are those of `FileOptions`."""
        settings = checked_options(path, options)
        return cls._read(open_source(path), settings)

    @classmethod
    def load_stored(cls, path: Path, **options: Any) -> FileTask:
        """Read rows that were given from memory, and speak of them as their user does."""
        settings = checked_options(path.stem, options)
        return cls._read(open_source(path, StoredLines), settings)

    @classmethod
    def _read(cls, source: Source, settings: FileOptions) -> FileTask:
        path = source.path
        text_column, label_column = find_columns(source, settings)
        items = read_items(source, text_column, label_column)
        settings = dataclasses.replace(
            settings,
            text_column=text_column,
            label_column=label_column,
            tokenizer=_choose_tokenizer(source, settings.tokenizer, text_column, items),
        )
        splits = [settings.split_of(item.content) for item in items]
        train = [item.content for item, split in zip(items, splits, strict=True) if split == "train"]
        tokeniser = fit_tokeniser(settings.tokenizer, train, settings.vocab_size)
        encoded = [np.array(tokeniser.encode(item.content), dtype=np.int32) for item in items]
        longest = max((len(ids) for ids, split in zip(encoded, splits, strict=True) if split == "train"), default=0)
        table, report = tabulate(
            source.origin,
            items,
            encoded,
            splits,
            shares=settings,
            tokeniser=tokeniser,
            width=min(longest, settings.max_length),
            keep=settings.keep,
        )
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(
            title=path.name,
            digest=digest,
            format=path.suffix.lower(),
            path=path,
            settings=settings,
            table=table,
            tokeniser=tokeniser,
            report=report,
        )

    def fingerprint(self) -> dict[str, Any]:
        fields: dict[str, Any] = {**super().fingerprint(), "format": self.format}
        if isinstance(self.tokeniser, Pretrained):  # known by its content, wherever it lies
            fields["options"] = {**fields["options"], "tokenizer": f"sha256 {self.tokeniser.digest}"}
        return fields


def checked_options(path: Path | str, options: Mapping[str, Any]) -> FileOptions:
    """The options of a task over a file, or over rows of texts in memory."""
    known = [option.name for option in dataclasses.fields(FileOptions)]
    renamed = {OTHER_SPELLINGS.get(name, name): value for name, value in options.items()}
    if len(renamed) < len(options):
        raise UsageError("tokeniser and tokenizer are two spellings of one option; give one of them")
    for option in renamed:
        if option not in known:
            raise unknown(f"option of {path}", option, known)
    return FileOptions(**renamed)


def find_columns(source: Source, settings: FileOptions) -> tuple[str, str]:
    """The names of the text column and the label column."""
    text = find_column(source, "text", settings.text_column, TEXT_NAMES)
    label = find_column(source, "label", settings.label_column, LABEL_NAMES)
    if text == label:
        raise UsageError(
            f"text_column and label_column of {source.origin.name} are both {text!r}; name another with "
            f"{source.origin.typed('text_column', 'NAME')} or label_column"
        )
    return text, label


def find_column(source: Source, role: str, given: str | None, names: Sequence[str]) -> str:
    """The column with this role: the one that is given, else the one that has such a name."""
    columns = source.columns
    if given is None:
        folded = {column: column.strip().casefold() for column in columns}
        matches = [c for c in columns if folded[c] == names[0]] or [c for c in columns if folded[c] in names]
    elif given in columns:
        matches = [column for column in columns if column == given]
    else:
        more = f"; name one with {source.origin.typed(f'{role}_column', 'NAME')}"
        raise unknown(f"column of {source.origin.name}", given, columns, more)
    listed = ", ".join(map(repr, columns))
    if not matches:
        raise DataError(
            f"{source.origin.name} has no column called {role} or similar; its columns: {listed}; "
            f"name one with {source.origin.typed(f'{role}_column', 'NAME')}{source.header_hint}"
        )
    if len(set(matches)) > 1:
        raise DataError(
            f"{source.origin.name} has several columns that could hold the {role}: {', '.join(map(repr, matches))}; "
            f"name one with {source.origin.typed(f'{role}_column', 'NAME')}"
        )
    if len(matches) > 1:
        raise DataError(f"{source.origin.name} has {len(matches)} columns called {matches[0]!r}; rename all but one")
    return matches[0]


def read_items(source: Source, text_column: str, label_column: str) -> list[Item]:
    """All rows, checked; a column holds either texts, or lists of whole numbers, or lists of texts."""
    items: list[Item] = []
    bad: list[BadRow] = []
    kinds: dict[str, int] = {}  # the number of the first row of each kind of content
    for pair in source.pairs(text_column, label_column):
        try:
            if isinstance(pair, BadRow):
                raise pair
            content, kind = _content(source, pair.number, pair.text)
            label = checked_label(source.origin, pair.number, pair.label)
            if isinstance(label, str):
                _check_unicode(source, pair.number, "label", label)
        except BadRow as row:
            bad.append(row)
            continue
        if kind:
            kinds.setdefault(kind, pair.number)
        items.append(Item(pair.number, content, label))
    if bad:
        source.origin.refuse(bad)
    if len(kinds) > 1:
        (one, first), (other, second) = list(kinds.items())[:2]
        raise DataError(
            f"{source.origin.name}: column {text_column!r} mixes types: {one} at {source.unit} {first}, "
            f"{other} at {source.unit} {second}; use one"
        )
    if not items:
        raise DataError(f"{source.origin.name} names its columns but has no rows; it needs at least two labelled rows")
    return items


def _content(source: Source, number: int, cell: Any) -> tuple[Content, str]:
    """The content of a cell and its kind; an empty cell (null, no tokens, no text) has no kind."""
    if cell is None or cell in ("", []):
        return "", ""
    if isinstance(cell, str):
        _check_unicode(source, number, "text", cell)
        return cell, "a text"
    if isinstance(cell, list):
        for place, token in enumerate(cell):
            if type(token) not in (int, str) or type(token) is not type(cell[0]):
                raise source.origin.error(
                    number,
                    f"token {place} is {str(token)[:60]} ({type(token).__name__}) in a list that begins with "
                    f"{str(cell[0])[:60]}; a token list holds whole numbers only, or texts only",
                )
        if type(cell[0]) is int:
            return cell, "a list of whole numbers"
        _check_unicode(source, number, "token list", "".join(cell))
        return cell, "a list of texts"
    raise source.origin.error(
        number, f"{str(cell)[:60]} ({type(cell).__name__}) is neither a text nor a token list; write it as a text"
    )


def _check_unicode(source: Source, number: int, what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise source.origin.error(
            number, f"the {what} holds {half}, half of a character (a lone surrogate); remove it"
        ) from None


def _choose_tokenizer(source: Source, wanted: str, text_column: str, items: Sequence[Item]) -> str:
    contents = [item.content for item in items if len(item.content)]
    holds_lists = any(not isinstance(content, str) for content in contents)
    if holds_lists and wanted not in ("auto", "tokens"):
        raise UsageError(
            f"tokenizer = {wanted!r} needs texts, but column {text_column!r} of {source.origin.name} holds token "
            f"lists; leave tokenizer out, or name another column with {source.origin.typed('text_column', 'NAME')}"
        )
    if holds_lists:
        return "tokens"
    if wanted == "tokens":
        raise UsageError(
            f"tokenizer = 'tokens' needs token lists, but column {text_column!r} of {source.origin.name} holds texts; "
            f"choose char, whitespace or bpe, as in {source.origin.typed('tokenizer', 'whitespace')}"
        )
    if wanted != "auto":
        return wanted
    with_space = sum(len(str(content).split()) > 1 for content in contents)
    return "whitespace" if 2 * with_space >= len(contents) else "char"

"""Random damage to files: bytes that flip, vanish and appear, and JSON values that become something else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from semfocus.store import formats

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, 10**400, -(10**30), 0.5, -0.0, 1e308, 1e39, "", "x", "5", "[/x]",
    "=1+1", "\x1b[31mred", "\0", "a\nb", "\u202e", "<script>alert(1)</script>", "../../etc/passwd", "topk:5", "full",
    "nan", "x" * 300, [], [[]], [["x"]], ["x"], [1, None], {}, {"": 1}, {"a": {"b": []}}, {"lr": 1, "LR": 2},
)  # fmt: skip


def damaged(data: bytes, dice: random.Random) -> bytes:
    """Other bytes than these."""
    while True:
        changed = dice.choice(_BYTES)(data, dice)
        if changed != data:
            return changed


def _flip(data: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(data)) if data else 0
    return data[:place] + bytes([(data[place] if data else 0) ^ (1 << dice.randrange(8))]) + data[place + 1 :]


def _digit(data: bytes, dice: random.Random) -> bytes:
    places = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    if not places:
        return _flip(data, dice)
    place = dice.choice(places)
    return data[:place] + str(dice.randrange(10)).encode() + data[place + 1 :]


def _cut(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


def _drop(data: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(data) + 1)
    return data[:start] + data[start + dice.randrange(1, 40) :]


def _insert(data: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(data) + 1)
    more = dice.choice((b"\0", b"\n", b"9" * 400, b"\xff\xfe", b"{}", b"[" * 50, b"\x1b[31m", dice.randbytes(8)))
    return data[:start] + more + data[start:]


def _repeat(data: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(data) + 1)
    part = data[start : start + dice.randrange(1, 200)]
    return data[:start] + part + data[start:]


def _lines(data: bytes, dice: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    dice.shuffle(lines)
    return b"".join(lines[: dice.randrange(len(lines) + 1)])


_BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip, _digit, _digit, _cut, _drop, _insert, _repeat, _lines
)  # fmt: skip


def changed_json(value: Any, dice: random.Random) -> Any:
    """A JSON value in which one part is another, is gone, or is new."""
    value = json.loads(json.dumps(value))
    spots = list(_spots(value))
    if not spots:
        return dice.choice(VALUES)
    parent, key = dice.choice(spots)
    action = dice.random()
    if action < 0.7:
        parent[key] = dice.choice(VALUES)
    elif action < 0.85:
        del parent[key]
    elif isinstance(parent, dict):
        parent[dice.choice(("new", "", key.upper(), "\x1b[0m"))] = dice.choice(VALUES)
    else:
        parent.insert(key, dice.choice(VALUES))
    return value


def _spots(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield value, key
        yield from _spots(part)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def changed_document(data: bytes, dice: random.Random, sealed: bool) -> bytes:
    """A document of a run, or a line of its logs, with another value; `sealed`: and a checksum that fits."""
    if data.count(b"\n") > 1 and not data.startswith(b"{\n"):
        lines = data.splitlines(keepends=True)
        place = dice.randrange(len(lines))
        lines[place] = as_json(changed_json(json.loads(lines[place]), dice)) + b"\n"
        return b"".join(lines)
    document = json.loads(data)
    if not sealed:
        return as_json(changed_json(document, dice))
    if "body" in document:
        body = changed_json(document["body"], dice)
        return as_json({"sha256": formats.checksum(body), "body": body})
    document.pop(formats.SEAL, None)
    document = changed_json(document, dice)
    seal = {formats.SEAL: formats.checksum(document)} if isinstance(document, dict) else {}
    return as_json(document | seal if seal else document)

"""The options of an executor, from the text after its name: `ray:10.0.0.1:6379,shared=no,retries=10`."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, get_type_hints

from semfocus.errors import UsageError, unknown

T = TypeVar("T")


def parse_options(cls: type[T], executor: str, text: str) -> T:
    """A dataclass of options. A first part without `=` is the first field's value."""
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    kinds = get_type_hints(cls)
    values: dict[str, Any] = {}
    for place, part in enumerate(filter(None, (part.strip() for part in text.split(",")))):
        name, equals, value = part.partition("=")
        if not equals:
            if place:
                raise UsageError(f"--executor {executor}: {part!r} must look like name=value")
            name, value = next(iter(fields)), part
        if name not in fields:
            raise unknown(f"option of executor {executor}", name, fields)
        values[name] = _value(f"--executor {executor}: {name}", value, kinds[name])
    return cls(**values)


def _value(what: str, text: str, kind: Any) -> Any:
    if kind is str:
        return text
    if kind is bool:
        if text not in ("yes", "no"):
            raise UsageError(f"{what} = {text!r} must be yes or no")
        return text == "yes"
    try:
        value = kind(text)
    except ValueError:
        raise UsageError(f"{what} = {text!r} must be a {'whole ' if kind is int else ''}number") from None
    if not 0 < value < 10**9:
        raise UsageError(f"{what} = {text} must be above 0")
    return value

"""What was measured on a run, kept with it: checkpoints of the same settings as one, other settings beside them.

    keep(run, "dispersion", measured, by=("k", "split", "rows", "error"), usual={"k": 5, "split": "train", ...})

Under the plain name, where everybody reads, stands the measurement with the `usual` settings, so that runs stay
comparable after a look with others; as long as there is none, the newest. The rest have names of their own, which are
made from their settings: `dispersion--4f0c1a2b9d3e`.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from semfocus.errors import CorruptData
from semfocus.store import DamagedMeasurement, RunDirectory, read_measurement, write_measurement
from semfocus.store.measurements import changing

CHECKPOINTS, LAST = "checkpoints", "last"
Document = dict[str, Any]


def keep(
    run: RunDirectory, name: str, measured: Document, *, by: Sequence[str], usual: Mapping[str, Any]
) -> dict[str, Any]:
    """Store `measured`, told apart by its settings `by`; it comes back with the checkpoints measured before."""
    with changing(run):
        return _keep(run, name, measured, by, usual)


def _keep(
    run: RunDirectory, name: str, measured: Document, by: Sequence[str], usual: Mapping[str, Any]
) -> dict[str, Any]:
    own, shown = _settings(measured, by), _read(run, name)
    aside = _read(run, beside(name, own))
    place = name
    if shown is not None and _settings(shown, by) == own:
        aside = _merged(aside, shown)
    elif shown is not None and _settings(shown, by) == usual:
        place = beside(name, own)
    elif shown is not None:  # first to its own name, so that it is never without one
        other = beside(name, _settings(shown, by))
        write_measurement(run, other, _merged(_read(run, other), shown))
    whole = _merged(aside, measured)
    write_measurement(run, place, whole)
    return whole


def beside(name: str, settings: Mapping[str, Any]) -> str:
    """The name of a measurement with these settings, where the plain name is another's."""
    text = json.dumps(settings, sort_keys=True)
    return f"{name}--{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _settings(document: Mapping[str, Any], by: Sequence[str]) -> dict[str, Any]:
    return {name: document.get(name) for name in by}


def _merged(before: Document | None, now: Document) -> Document:
    """The newer document, with the checkpoints that only the one before it has; both are of the same settings."""
    earlier = (before or {}).get(CHECKPOINTS)
    if CHECKPOINTS not in now or not isinstance(earlier, dict):
        return now
    return now | {CHECKPOINTS: _of_age(earlier, now[CHECKPOINTS]) | now[CHECKPOINTS]}


def _of_age(earlier: Document, now: Mapping[str, Any]) -> Document:
    """Checkpoints from before; one that was the last then, and is none any more, under the name of its epoch."""
    epoch = _epoch(earlier.get(LAST))
    newest = max((_epoch(checkpoint) or 0.0 for checkpoint in now.values()), default=0.0)
    if epoch is None or epoch >= newest:
        return earlier
    return {(f"{epoch:g}" if key == LAST else key): checkpoint for key, checkpoint in earlier.items()}


def _epoch(checkpoint: Any) -> float | None:
    found = checkpoint.get("epoch") if isinstance(checkpoint, dict) else None
    return float(found) if isinstance(found, int | float) else None


def _read(run: RunDirectory, name: str) -> Document | None:
    """What is stored; nothing, with a warning, where it is damaged, since it can be measured again."""
    try:
        return read_measurement(run, name)
    except CorruptData as error:
        words = f"a damaged measurement of run {run.id} is left out, and made anew if it is measured again: {error}"
        warnings.warn(words, DamagedMeasurement, stacklevel=5)
        return None

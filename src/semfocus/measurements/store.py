"""Measurements kept with their run, told apart by their settings.

    keep(run, dispersion, usual=settings)         returns it with the checkpoints measured before
    read(run, Dispersion)                         the one that is shown; None where nothing was measured
    read(run, Sharpness, settings)                the one of these settings
    read_all(run).measurements["dispersion"]      every kind that is shown, and what cannot be read
    keep_surface(run, surface)                    a surface with its arrays
    read_surface(run, "path")                     the surface that is shown, with its arrays

The plain name (`dispersion`) belongs to the measurement with the usual settings, so that runs stay comparable after a
look with others; as long as there is none, to the newest. The rest have names made from their settings:
`dispersion--4f0c1a2b9d3e`.

Every surface has a name with the beginning of its key: `surface-0a1b2c3d4e5f`, a JSON document and a `.safetensors`
with the arrays. An unfinished one is `...-part.safetensors`. `surface.json` repeats the document of the surface that is
shown: around the newest checkpoint, of the finest grid, over the most rows, and of several such the last. Earlier
versions kept a single surface, in `surface.json` and `surface.safetensors`. It is read, and gets a name of its own
before another one is shown.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from semfocus.errors import CorruptData, OtherFormat, SemfocusError, StorageError
from semfocus.measurements.by_length import LengthCurve, Smoothness
from semfocus.measurements.by_step import Induction
from semfocus.measurements.fields import LARGEST, Malformed
from semfocus.measurements.kinds import (
    DIRECTIONS,
    Dispersion,
    KeptKeys,
    MaskStability,
    Measurement,
    Sharpness,
    SurfaceMeta,
)
from semfocus.measurements.samples import Sample
from semfocus.measurements.surface import Surface
from semfocus.store import DamagedMeasurement, RunDirectory
from semfocus.store.measurements import (
    changing,
    delete_arrays,
    measurement_names,
    read_arrays,
    read_measurement,
    write_arrays,
    write_measurement,
)

DONE = 3  # index in the array `plan` (models at once, rows at once, threads, points done)
KEY_DIGITS = 12  # of a surface's key, in its name
_KEY = re.compile(r"[0-9a-f]{64}")
M = TypeVar("M", bound=Measurement)


def surface_name(directions: str, key: str = "") -> str:
    """The name of the surface that is shown; with a key, of one among several."""
    kind = SurfaceMeta.NAME if directions == "random" else f"{SurfaceMeta.NAME}-{directions}"
    return f"{kind}-{key[:KEY_DIGITS]}" if key else kind


KINDS: dict[str, type[Measurement]] = {
    Dispersion.NAME: Dispersion,
    MaskStability.NAME: MaskStability,
    **{surface_name(directions): SurfaceMeta for directions in DIRECTIONS},
    Sharpness.NAME: Sharpness,
    LengthCurve.NAME: LengthCurve,
    KeptKeys.NAME: KeptKeys,
    Smoothness.NAME: Smoothness,
    Sample.NAME: Sample,
    Induction.NAME: Induction,
}  # by plain name


class Unreadable(NamedTuple):
    """A measurement that cannot be used; `name` is empty where not even the names can be read."""

    name: str
    error: SemfocusError

    @property
    def text(self) -> str:
        """What is wrong; a Malformed error does not say with which measurement."""
        is_named = not isinstance(self.error, Malformed)
        return str(self.error) if is_named else f"the measurement {self.name!r} is not shown: {self.error}"


@dataclass(frozen=True)
class RunMeasurements:
    """What is kept with a run under plain names."""

    measurements: dict[str, Measurement] = field(default_factory=dict)
    unreadable: list[Unreadable] = field(default_factory=list)


def read_all(run: RunDirectory) -> RunMeasurements:
    """Every kind of measurement of the run. A damaged one spoils nothing but itself."""
    kept = RunMeasurements()
    try:
        names = measurement_names(run)
    except (CorruptData, StorageError) as error:
        kept.unreadable.append(Unreadable("", error))
        return kept
    for name in names:
        try:
            payload = read_measurement(run, name)
            if name in KINDS and payload is not None:
                kept.measurements[name] = KINDS[name].from_payload(payload)
            elif payload is not None:
                _check_name(name, payload)
        except (CorruptData, OtherFormat, StorageError) as error:
            kept.unreadable.append(Unreadable(name, error))
    return kept


def read(
    run: RunDirectory, kind: type[M], settings: Mapping[str, Any] | None = None, largest: float = LARGEST
) -> M | None:
    """The measurement that is shown, or the one of these settings; None where there is none."""
    names = [kind.NAME] if settings is None else [kind.NAME, beside(kind.NAME, settings)]
    for name in names:
        payload = read_measurement(run, name)
        measurement = None if payload is None else kind.from_payload(payload, largest)
        if measurement is not None and settings in (None, measurement.settings):
            return measurement
    return None


def keep(run: RunDirectory, measurement: M, usual: Mapping[str, Any] | None = None) -> M:
    """Keep a measurement; it comes back merged with the one of the same settings that was there."""
    with changing(run):
        name, kind, own = measurement.NAME, type(measurement), measurement.settings
        shown, aside = _sound(run, name, kind), _sound(run, beside(name, own), kind)
        place = name
        if shown is not None and shown.settings == own:
            aside = shown.merged(aside)
        elif shown is not None and shown.settings == usual:
            place = beside(name, own)
        elif shown is not None:  # first to its own name, so that it is never without one
            other = beside(name, shown.settings)
            write_measurement(run, other, shown.merged(_sound(run, other, kind)).document)
        merged = measurement.merged(aside)
        write_measurement(run, place, merged.document)
        return merged


def beside(name: str, settings: Mapping[str, Any]) -> str:
    """The name of a measurement with these settings, where the plain name is another's."""
    text = json.dumps(settings, sort_keys=True)
    return f"{name}--{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _check_name(name: str, payload: Mapping[str, Any]) -> None:
    """Raise Malformed where the name was made from other settings than the measurement has."""
    kind = KINDS.get(name.partition("--")[0])
    if kind is not None and "--" in name and name != beside(kind.NAME, kind.from_payload(payload, math.inf).settings):
        raise Malformed("it has other settings than its name was made from")


def _sound(run: RunDirectory, name: str, kind: type[M]) -> M | None:
    """The measurement under this name; None, with a warning, where it is damaged: it can be measured again."""
    try:
        payload = read_measurement(run, name)
        return None if payload is None else kind.from_payload(payload, math.inf)
    except CorruptData as error:
        text = f"a damaged measurement of run {run.id} is left out, and made anew if it is measured again: {error}"
        warnings.warn(text, DamagedMeasurement, stacklevel=3)
        return None


def read_surface(run: RunDirectory, directions: str = "random", key: str = "") -> Surface | None:
    """A finished surface of this run: the one of this key, or the one that is shown; None where there is none."""
    name = surface_name(directions, key)
    payload = read_measurement(run, name)
    arrays = None if payload is None else _arrays(run, directions, payload.get("key"))
    if payload is None or arrays is None:
        return None
    try:
        meta = SurfaceMeta.from_payload(payload, math.inf)
        losses, known, done = arrays["losses"], bytes(arrays["key"]).hex(), int(arrays["plan"][DONE])
    except (KeyError, TypeError, IndexError, Malformed) as error:
        why = str(error) if isinstance(error, Malformed) else repr(error)
        raise CorruptData(f"the measurement {name!r} of run {run.id} is not a surface: {why}") from None
    if known != meta.key or done < losses.size:
        return None
    if losses.shape != (meta.grid, meta.grid) or losses.dtype != np.float64:
        raise CorruptData(
            f"the measurement {name!r} of run {run.id} says grid = {meta.grid}, "
            f"but its losses have shape {losses.shape} and type {losses.dtype}"
        )
    return Surface(meta, arrays)


def keep_surface(run: RunDirectory, surface: Surface) -> None:
    """Keep a finished surface under its own name, and show it unless a finer one is shown. No other is lost."""
    directions, key = surface.meta.directions, surface.meta.key
    with changing(run):  # another process may finish a finer one between the look and the write
        _write(run, surface_name(directions, key), surface)
        try:
            shown = read_surface(run, directions)
        except CorruptData:
            shown = None
        if shown is None or _fineness(surface.meta) >= _fineness(shown.meta):
            if shown is not None:
                _name_apart(run, shown)
            write_measurement(run, surface_name(directions), surface.meta.document)
        delete_arrays(run, _part_name(directions, key))  # last: a call killed before this line is taken up again


def read_part(run: RunDirectory, directions: str, key: str) -> dict[str, np.ndarray] | None:
    """What an interrupted call has left of the surface of this key."""
    return read_arrays(run, _part_name(directions, key))


def write_part(run: RunDirectory, directions: str, key: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Keep the finished points of an unfinished surface, apart from all finished surfaces."""
    write_arrays(run, _part_name(directions, key), arrays)


def _part_name(directions: str, key: str) -> str:
    return f"{surface_name(directions, key)}-part"


def _arrays(run: RunDirectory, directions: str, key: Any) -> dict[str, np.ndarray] | None:
    """The arrays of this key; where it has none, those that an earlier version left under the plain name."""
    is_key = isinstance(key, str) and _KEY.fullmatch(key) is not None
    own = read_arrays(run, surface_name(directions, key)) if is_key else None
    return own if own is not None else read_arrays(run, surface_name(directions))


def _fineness(meta: SurfaceMeta) -> tuple[int, int, int]:
    """The finer, the larger. A surface around an older checkpoint is not around the trained model."""
    return meta.step, meta.grid, meta.rows


def _name_apart(run: RunDirectory, shown: Surface) -> None:
    """Give a surface of an earlier version the name that it would have now."""
    name, old = surface_name(shown.meta.directions, shown.meta.key), surface_name(shown.meta.directions)
    if read_arrays(run, name) is None and read_arrays(run, old) is not None:
        _write(run, name, shown)
        delete_arrays(run, old)


def _write(run: RunDirectory, name: str, surface: Surface) -> None:
    write_arrays(run, name, surface.arrays)
    write_measurement(run, name, surface.meta.document)

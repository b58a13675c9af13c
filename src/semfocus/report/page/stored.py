"""What was measured on runs, as figures and tables take it. Measurements may be a stranger's: nothing is believed.

    dispersion(payload)        {"k", "split", "rows", "checkpoints": {"last": {"epoch", "keys", "delta": {"95": ...}}}}
    mask_stability(payload), surface(payload), sharpness(payload)

Each gives what is needed of a payload, every number finite or None and every list as long as it should be, or raises
Malformed and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from semfocus.landscape.slopes import PERCENTILES
from semfocus.landscape.stored import surface_name

Json = dict[str, Any]
PERCENTS = ("50", "75", "90", "95", "100")
SPREADS = ("delta", "delta_full", "delta_heavy", "separation", "in_degree")
DIRECTIONS = ("random", "path", "hessian")
LARGEST = 1e30  # beyond it no axis can be labelled
LONGEST = 10_000
FEWEST = 2  # keys of a query where nobody says how many: what holds for two holds for more
FINEST = 1001  # points along a side of a surface that a page draws


class Malformed(ValueError):
    """A measurement that is not what its name says."""


def dispersion(payload: Mapping[str, Any]) -> Json:
    checkpoints = {str(key): _checkpoint(value) for key, value in _mapping(payload, "checkpoints").items()}
    if not checkpoints:
        raise Malformed("it has no checkpoint")
    if _number(payload, "k") < 1:
        raise Malformed("k is below 1")
    return {
        "k": int(_number(payload, "k")),
        "split": str(payload.get("split")),
        "rows": _number(payload, "rows"),
        "checkpoints": checkpoints,
    }


def _checkpoint(value: Any) -> Json:
    if not isinstance(value, Mapping):
        raise Malformed("a checkpoint is not an object")
    infinite = value.get("infinite", {})
    infinite = infinite if isinstance(infinite, Mapping) else {}
    spreads = {name: _mapping(value, name) for name in SPREADS}
    return {
        "epoch": max(0.0, _number(value, "epoch")),
        "keys": max(1, int(_number(value, "keys"))),
        "fewest_keys": max(1, int(_number({"fewest_keys": FEWEST, **value}, "fewest_keys"))),
        "uneven": int(_number({"uneven": 1, **value}, "uneven")),
        **{name: {p: _maybe(spread.get(p), f"{name} {p}") for p in PERCENTS} for name, spread in spreads.items()},
        "infinite": {name: [p for p in PERCENTS if p in _strings(infinite.get(name))] for name in SPREADS},
    }


def mask_stability(payload: Mapping[str, Any]) -> Json:
    noise, kept = _numbers(payload, "noise"), _maybes(payload, "kept")
    groups = _mapping(payload, "by_separation")
    borders, rows = _numbers(groups, "borders"), _list(groups, "kept")
    shares = [_maybes({"kept": row}, "kept") for row in rows]
    if not noise or {len(kept), len(shares)} != {len(noise)} or any(len(row) != len(borders) + 1 for row in shares):
        raise Malformed("noise, kept and by_separation do not fit together")
    about = {"k": _number(payload, "k"), "split": str(payload.get("split")), "rows": _number(payload, "rows")}
    about |= {"checkpoint": str(payload.get("checkpoint", "last"))}
    return {**about, "noise": noise, "kept": kept, "by_separation": {"borders": borders, "kept": shares}}


def surface(payload: Mapping[str, Any]) -> Json:
    """Where the grid lies and how steep it is; the losses are read apart."""
    squares, directions = _numbers(payload, "squares"), payload.get("directions")
    if directions not in DIRECTIONS:
        raise Malformed(f"directions is not one of {', '.join(DIRECTIONS)}")
    found: Json = {"squares": squares, "directions": directions}
    found |= {name: _number(payload, name) for name in ("grid", "extent", "rows")}
    if not 2 <= found["grid"] <= FINEST or found["extent"] <= 0:
        raise Malformed(f"it has no grid of 2 to {FINEST} points a side")
    for way in ("per_step", "per_distance"):
        table = _mapping(payload, way)
        found[way] = {str(p): _maybes(table, str(p)) for p in PERCENTILES}
        if any(len(row) != len(squares) for row in found[way].values()):
            raise Malformed(f"{way} has not one number a square")
    return found


def sharpness(payload: Mapping[str, Any]) -> Json:
    found: Json = {"epochs": [max(0.0, epoch) for epoch in _numbers(payload, "epochs")]}
    found |= {name: _maybes(payload, name) for name in ("gradient_norm", "hessian_top")}
    found["certified"] = None if payload.get("certified") is None else _maybes(payload, "certified")
    lists = [values for values in found.values() if values is not None]
    if not found["epochs"] or any(len(values) != len(found["epochs"]) for values in lists):
        raise Malformed("its lists differ in length")
    return {**found, "rows": _number(payload, "rows")}


READERS: dict[str, Callable[[Mapping[str, Any]], Json]] = {
    "dispersion": dispersion,
    "mask_stability": mask_stability,
    **{surface_name(directions): surface for directions in DIRECTIONS},
    "sharpness": sharpness,
}


def _mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    if not isinstance(found, Mapping):
        raise Malformed(f"{name} is not an object")
    return found


def _number(values: Mapping[str, Any], name: str) -> float:
    found = _maybe(values.get(name), name)
    if found is None:
        raise Malformed(f"{name} is missing")
    return found


def _maybe(value: Any, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST:
        raise Malformed(f"{name} is not a number of at most {LARGEST:g}")
    return float(value)


def _list(values: Mapping[str, Any], name: str) -> list[Any]:
    found = values.get(name)
    if not isinstance(found, list) or len(found) > LONGEST:
        raise Malformed(f"{name} is not a list")
    return found


def _maybes(values: Mapping[str, Any], name: str) -> list[float | None]:
    return [_maybe(item, name) for item in _list(values, name)]


def _numbers(values: Mapping[str, Any], name: str) -> list[float]:
    found = _maybes(values, name)
    if any(item is None for item in found):
        raise Malformed(f"{name} has gaps")
    return [item for item in found if item is not None]


def _strings(value: Any) -> set[str]:
    return {item for item in value if isinstance(item, str)} if isinstance(value, list) else set()

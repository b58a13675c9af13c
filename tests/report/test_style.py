"""Styles of mechanisms differ: in colour, for every kind of colour vision, and without any colour."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import pytest

from semfocus.attention.base import size_fields
from semfocus.attention.mechanisms import mechanism_class, mechanism_names, parse_mechanism
from semfocus.errors import UsageError
from semfocus.recipes import COMPACT, GRID
from semfocus.report.figures.style import PALETTES, MechanismStyle, Theme, mechanism_style

LOCAL = [f"{name}:{w}{g}" for name in ("banded", "block_local") for w in (5, 9) for g in ("", "+1g", "+3g")]
ALL = ["full", "topk:5", "topk:9", *LOCAL, "bottomk:5", "randomk:5"]
SWEEP = [f"topk:{k}" for k in (1, 3, 5, 9, 15, 20, 40)]
# How a colour is seen without one kind of cone (Machado, Oliveira, Fernandes 2009, full strength), on linear RGB.
VISION = {
    "usual": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
THEMES: list[Theme] = ["light", "dark"]


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    ratio = XYZ @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(first: str, second: str) -> float:
    low, high = sorted(float(XYZ[1] @ linear(colour)) for colour in (first, second))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("names", [ALL, SWEEP], ids=["the paper's fifteen and the controls", "a sweep of k"])
def test_no_two_mechanisms_of_a_figure_share_a_line_style_or_a_colour(names: list[str]) -> None:
    styles = [mechanism_style(name) for name in names]
    assert len({style.dash for style in styles if style.dash}) == sum(bool(style.dash) for style in styles)
    assert {name for name in names if not mechanism_style(name).dash} <= {"full", "topk:5"}
    for theme in THEMES:
        assert len({style.on(theme) for style in styles}) == len(styles)


def forms(name: str) -> list[str]:
    """A registered mechanism in many sizes, with each of its extras and with all of them."""
    cls = mechanism_class(name)
    takes_size = bool(size_fields(cls))
    sizes = [f":{size}" for size in (1, 2, 3, 5, 8, 9, 40, 41, 64, 512, 4096, 4097, 2**40)] if takes_size else [""]
    each = [f"+{value}{letter}" for letter in cls.suffixes for value in (1, 2, 3, 4, 5, 6, 7, 16, 128)]
    every = "".join(f"+{3 + i}{letter}" for i, letter in enumerate(cls.suffixes)) if len(cls.suffixes) > 1 else ""
    marks = ["", *(f"{mark}{value}" for mark in cls.marks for value in ("0.01", "0.1", "1", "10"))]
    return [
        name + size + mark + extras for size in sizes for mark in marks for extras in dict.fromkeys(("", *each, every))
    ]


def accepted(texts: Iterable[str]) -> list[str]:
    """The mechanisms among these texts, each once: a default written out is the same, and some sizes are refused."""
    names = {}
    for text in texts:
        with suppress(UsageError):
            names[str(parse_mechanism(text))] = None
    return [*names]


def test_any_two_mechanisms_differ_in_colour_dash_or_marker() -> None:
    strangers = ["hashed:8", "hashed:9", "somebody's own", "", "<script>", "topk:", "grouped:4+2c"]
    registered = (text for name in mechanism_names() for text in forms(name))
    names = [*accepted(registered), *strangers]
    assert len(set(names)) == len(names) > 3000
    by_style: dict[tuple[object, ...], str] = {}
    for name in names:
        style = mechanism_style(name)
        for look in (("light", style.colour, style.dash, style.marker), ("dark", style.dark, style.dash, style.marker)):
            assert by_style.setdefault(look, name) == name, (name, by_style[look])


def test_sinks_and_a_seed_are_seen_without_comparing_single_strokes() -> None:
    """Two mechanisms that had the same colour, dash and marker."""
    one, other = mechanism_style("topk:8+4s+16w"), mechanism_style("randomk:5+3r")
    assert one.colour != other.colour
    assert one.dash != other.dash
    assert one.marker != other.marker
    assert mechanism_style("topk:8").marker not in (one.marker, other.marker)


def test_the_papers_fifteen_keep_their_styles() -> None:
    assert mechanism_style("full") == ("#1b1b1f", "#f2f2f0", (), "o")
    assert mechanism_style("topk:5") == ("#d1500b", "#ff8a3d", (), "D")
    assert mechanism_style("banded:5+1g") == ("#3f9bd8", "#9fd4ff", (6, 3, 1.2, 3), "s")
    digest = hashlib.sha256(repr([tuple(mechanism_style(name)) for name in GRID]).encode()).hexdigest()
    assert digest == "7b9b4f75531c8a5a460fd103a1ffb4cf56a5ff18fcaf02fe242e0c1100f5f6b6"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISION)
def test_the_papers_six_differ_to_every_kind_of_colour_vision(vision: str, theme: Theme) -> None:
    seen = {name: lab(np.asarray(VISION[vision]) @ linear(mechanism_style(name).on(theme))) for name in COMPACT}
    for (one, a), (other, b) in itertools.combinations(seen.items(), 2):
        assert np.linalg.norm(a - b) > 10, (one, other)


@pytest.mark.parametrize("theme", THEMES)
def test_every_line_stands_out_from_its_ground(theme: Theme) -> None:
    for name in (*ALL, *SWEEP, "topk:8+4s+16w", "randomk:5+3r", "randomk_replaced:9", "somebody's own", "another:3"):
        assert contrast(mechanism_style(name).on(theme), PALETTES[theme].ground) >= 2.99, name
    assert contrast(PALETTES[theme].quiet, PALETTES[theme].ground) >= 4.5  # small words


@pytest.mark.parametrize("theme", THEMES)
def test_more_kept_keys_are_further_from_the_ground_in_steps_that_are_seen(theme: Theme) -> None:
    """Seven values of k shared six oranges, and one key looked like nine."""
    seen = [lab(linear(mechanism_style(name).on(theme))) for name in SWEEP]
    steps = [(after[0] - before[0]) * (-1 if theme == "light" else 1) for before, after in itertools.pairwise(seen)]
    assert min(steps) > 1, "lighter or darker at each step"
    apart = [np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)]
    assert min(apart) > 8
    full = lab(linear(mechanism_style("full").on(theme)))
    assert min(np.linalg.norm(full - one) for one in seen) > 15


def test_any_text_has_a_style_and_always_the_same() -> None:
    for name in ("", "topk:", "<script>", "topk:99999999999999999999", "ünknown:5", "\ud800"):
        assert isinstance(mechanism_style(name), MechanismStyle)
        assert mechanism_style(name) == mechanism_style(name)

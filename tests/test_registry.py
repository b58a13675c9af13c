"""What every registry promises: one name, one entry, and messages that say what to do."""

from __future__ import annotations

import pytest

from semfocus.errors import UsageError
from semfocus.registry import Registry


class Round:
    name = "round"


def test_an_entry_is_found_by_its_name():
    shapes = Registry[type]("shape")
    assert shapes.register(Round) is Round
    assert shapes.get("round") is Round
    assert shapes.names() == list(shapes) == ["round"]
    assert "round" in shapes
    assert "square" not in shapes


def test_the_same_entry_may_be_registered_twice_and_another_may_not():
    shapes = Registry[type]("shape")
    shapes.register(Round)
    shapes.register(Round)
    with pytest.raises(UsageError, match="a shape called 'round' is registered already; choose another name"):
        shapes.register(type("Circle", (), {"name": "round"}))
    assert shapes.get("round") is Round


def test_an_unknown_name_is_answered_with_the_nearest_and_all_known_ones():
    shapes = Registry[type]("shape", hint="; or a file")
    shapes.register(Round)
    with pytest.raises(UsageError, match=r"unknown shape 'ruond'; did you mean 'round'\? known: round; or a file"):
        shapes.get("ruond")


@pytest.mark.parametrize("name", [None, "", 3])
def test_an_entry_without_a_name_is_refused(name):
    with pytest.raises(UsageError, match="cannot be registered as a shape: it needs a class attribute `name`"):
        Registry[type]("shape").register(type("Nameless", (), {"name": name}))


def test_a_name_may_be_given_instead():
    shapes = Registry[type]("shape")
    shapes.register(Round, "circle")
    assert shapes.names() == ["circle"]


def test_an_entry_can_be_registered_for_a_while():
    shapes = Registry[type]("shape")
    with shapes.temporarily(Round) as entry:
        assert entry is shapes.get("round")
    assert shapes.names() == []


def test_what_a_module_registers_is_imported_when_asked_for():
    modules = {"parity": "semfocus.tasks.parity"}
    tasks = Registry[type]("task", modules=modules)
    assert tasks.names() == ["parity"]
    assert "parity" in tasks
    with pytest.raises(UsageError, match="a task called 'parity' is registered already"):
        tasks.register(Round, "parity")

"""Seeing every attention of a model while it runs, whoever wrote it, without changing what it computes.

    with watching(model, see) as watch:
        watch.begin_pass()
        model(tokens)                    see(CapturedCall) is called once for each attention, in order
    watch.unseen()                       attention modules that ran and showed nothing

Three ways in, one kind of sighting: `attend` reports its problems (`attention.observing`); torch's own attention is
reached through its names (`torch_calls`); models of the transformers library through their registry (`registry`).
Everything is put back at the end, also after an exception. Modules are not touched: who is at work is told by
torch's global hooks, since a hook on a module would make torch leave its fused path, and change the last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from semfocus.attention.hooks import observing
from semfocus.attention.inputs import AttentionInputs
from semfocus.diagnostics import patch_transformers, torch_calls
from semfocus.errors import UsageError


@dataclass(frozen=True, eq=False)
class CapturedCall:
    """One attention at work: the module that does it, which of its calls in this pass, and what it is given."""

    name: str
    call: int
    inputs: AttentionInputs
    grouped: bool

    @property
    def place(self) -> tuple[str, int]:
        return self.name, self.call


class Watch:
    """Who is at work, and what was seen of whom."""

    def __init__(self, model: nn.Module, see: Callable[[CapturedCall], None]) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._kinds = {name: type(module).__name__ for name, module in model.named_modules()}
        self._see = see
        self._at_work: list[str] = []
        self._calls: dict[str, int] = {}
        self._ran: dict[str, tuple[str, ...]] = {}  # attention modules, and what they ran inside of
        self._seen: set[str] = set()
        self.count = 0

    @property
    def at_work(self) -> str:
        """The module that is running now."""
        return self._at_work[-1] if self._at_work else ""

    def begin_pass(self) -> None:
        """From here on a module's calls are numbered anew."""
        self._calls.clear()
        self._at_work.clear()

    def enter(self, module: nn.Module, _inputs: Any) -> None:
        name = self._names.get(id(module))
        if name is None:
            return
        self._at_work.append(name)
        if "Attention" in self._kinds[name]:
            self._ran[name] = tuple(self._at_work)

    def leave(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._at_work and self._names.get(id(module)) == self._at_work[-1]:
            self._at_work.pop()

    def sight(self, inputs: AttentionInputs, grouped: bool) -> None:
        """Note a problem for the module that is at work."""
        name = self.at_work
        call = self._calls[name] = self._calls.get(name, -1) + 1
        self._seen.update(self._at_work)
        self.count += 1
        self._see(CapturedCall(name, call, inputs, grouped))

    def unseen(self) -> list[str]:
        """Modules named attention that ran without a sighting, in themselves, below or in an attention above."""
        attentive = {name for name in self._seen if "Attention" in self._kinds[name]}
        hidden = [name for name, within in self._ran.items() if name not in self._seen and not attentive & {*within}]
        return [f"{name} ({self._kinds[name]})" for name in hidden]


@contextmanager
def watching(model: nn.Module, see: Callable[[CapturedCall], None]) -> Iterator[Watch]:
    """Watch `model` inside this block."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch module, not {type(model).__name__}")
    if hasattr(model, "_orig_mod"):
        raise UsageError(
            f"{type(model).__name__} is compiled, and what happens inside a compiled graph cannot be observed; "
            "give the module as it was before torch.compile (model._orig_mod)"
        )
    watch = Watch(model, see)
    with ExitStack() as stack:
        for hook in (
            register_module_forward_pre_hook(watch.enter),
            register_module_forward_hook(watch.leave, always_call=True),
        ):
            stack.callback(hook.remove)
        stack.enter_context(observing(watch.sight))
        stack.enter_context(torch_calls.intercepted(watch.sight))
        stack.enter_context(patch_transformers.wrapped(watch))
        yield watch

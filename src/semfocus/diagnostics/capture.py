"""Capture every attention call of any model while it runs, without changing what it computes.

    with watching(model, see) as watch:
        watch.begin_pass()
        model(tokens)                    see(CapturedCall) is called once for each attention call, in order
    watch.unseen()                       attention modules that ran without a captured call

Calls are captured in three ways: `attend` reports its inputs (`attention.inspection`), torch's own attention functions
are wrapped (`torch_calls`), and so is the attention registry of the transformers library (`patch_transformers`). All
wrappers are removed at the end, also after an exception. The running module is known from torch's global hooks: a hook
on a module would make torch leave its fused path, which changes the last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import observing
from semfocus.diagnostics import patch_transformers, torch_calls
from semfocus.errors import UsageError


@dataclass(frozen=True, eq=False)
class CapturedCall:
    """One call of attention: its module, the number of the call within the pass, and its inputs."""

    name: str
    call: int
    inputs: AttentionInputs
    grouped: bool

    @property
    def place(self) -> tuple[str, int]:
        return self.name, self.call


class Watch:
    """The modules that are running, and the calls captured from each."""

    def __init__(self, model: nn.Module, see: Callable[[CapturedCall], None]) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._kinds = {name: type(module).__name__ for name, module in model.named_modules()}
        self._see = see
        self._at_work: list[str] = []
        self._calls: dict[str, int] = {}
        self._ran: dict[str, tuple[str, ...]] = {}  # attention modules, and the modules they ran inside
        self._seen: set[str] = set()
        self.count = 0

    @property
    def at_work(self) -> str:
        """The module that is running now."""
        return self._at_work[-1] if self._at_work else ""

    def begin_pass(self) -> None:
        """Start to number the calls of every module from 0."""
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

    def capture(self, inputs: AttentionInputs, grouped: bool) -> None:
        """Report a call of the module that is running."""
        name = self.at_work
        call = self._calls[name] = self._calls.get(name, -1) + 1
        self._seen.update(self._at_work)
        self.count += 1
        self._see(CapturedCall(name, call, inputs, grouped))

    def unseen(self) -> list[str]:
        """Attention modules that ran without a captured call of their own, of a submodule or of an attention above."""
        attentive = {name for name in self._seen if "Attention" in self._kinds[name]}
        hidden = [name for name, within in self._ran.items() if name not in self._seen and not attentive & {*within}]
        return [f"{name} ({self._kinds[name]})" for name in hidden]


@contextmanager
def watching(model: nn.Module, see: Callable[[CapturedCall], None]) -> Iterator[Watch]:
    """Capture the attention calls of `model` inside this block."""
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
        stack.enter_context(observing(watch.capture))
        stack.enter_context(torch_calls.intercepted(watch.capture))
        stack.enter_context(patch_transformers.wrapped(watch))
        yield watch

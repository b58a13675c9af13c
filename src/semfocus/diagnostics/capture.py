"""Capture every attention call of any model while it runs, without changing what it computes.

    with watching(model, see) as watch:
        watch.begin_pass()
        model(tokens)                    see(CapturedCall) is called once for each attention call, in order
    watch.unseen()                       attention modules that ran without a captured call

with watch.handwritten(): ...            also modules that write attention out, whatever their name (slower)

Calls are captured in three ways. `attend` reports its inputs (`attention.inspection`). The attention registry of the
transformers library is wrapped (`patch_transformers`). Torch's own functions are replaced by wrappers that report the
call and then call the original with the same arguments:

    torch.nn.functional.scaled_dot_product_attention      wherever a loaded module holds that name
    torch._native_multi_head_attention                    the fused path of nn.MultiheadAttention in evaluation
    torch._transformer_encoder_layer_fwd                  the same of nn.TransformerEncoderLayer

All wrappers are removed at the end, also after an exception. The running module is known from torch's global hooks: a
hook on a module would make torch leave its fused path, which changes the last bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import observing
from semfocus.diagnostics import patch_transformers
from semfocus.diagnostics.handwritten import HandWritten
from semfocus.diagnostics.scores import full_attention_inputs
from semfocus.errors import UsageError

Report = Callable[[AttentionInputs, bool], None]
OURS = "semfocus."  # `attend` reports its calls by hooks
_PADDING_MASK = 1  # how torch's fused path numbers a mask (B, L); 2 is one (B, H, L, L)


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
        self._seen: set[str] = set()  # modules with a captured call, and those around them
        self._own: set[str] = set()  # modules with a captured call of their own
        self._written_out: set[str] = set()  # modules that multiply values with a softmax
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
        self._own.add(name)
        call = self._calls[name] = self._calls.get(name, -1) + 1
        self._seen.update(self._at_work)
        self.count += 1
        self._see(CapturedCall(name, call, inputs, grouped))

    def unseen(self) -> list[str]:
        """Attention modules that ran without a captured call of their own, of a submodule or of an attention above.

        Of modules that write attention out, those without a captured call of their own.
        """
        attentive = {name for name in self._seen if "Attention" in self._kinds[name]}
        hidden = [name for name, within in self._ran.items() if name not in self._seen and not attentive & {*within}]
        hidden += sorted(self._written_out - self._own - {*hidden})
        return [f"{name} ({self._kinds[name]})" if name else self._kinds[name] for name in hidden]

    def handwritten(self) -> HandWritten:
        """A context in which modules that write attention out are noted."""
        return HandWritten(lambda: self._written_out.add(self.at_work))


@contextmanager
def watching(model: nn.Module, see: Callable[[CapturedCall], None]) -> Iterator[Watch]:
    """Capture the attention calls of `model` inside this block."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch module, not {type(model).__name__}")
    _refuse_compiled(model)
    watch = Watch(model, see)
    with ExitStack() as stack:
        for hook in (
            register_module_forward_pre_hook(watch.enter),
            register_module_forward_hook(watch.leave, always_call=True),
        ):
            stack.callback(hook.remove)
        stack.enter_context(observing(watch.capture))
        stack.enter_context(_wrapped_torch(watch.capture))
        stack.enter_context(patch_transformers.wrapped(watch))
        yield watch


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        where = f"{name} ({type(module).__name__})" if name else type(module).__name__
        if hasattr(module, "_orig_mod"):
            way = f"give the module as it was before torch.compile ({f'{name}.' if name else 'model.'}_orig_mod)"
        elif getattr(module, "_compiled_call_impl", None) is not None:
            way = "observe it before .compile() is called"
        else:
            continue
        raise UsageError(f"{where} is compiled, and what happens inside a compiled graph cannot be observed; {way}")


@contextmanager
def _wrapped_torch(report: Report) -> Iterator[None]:
    """Replace torch's attention functions by wrappers that report the call; restored afterwards."""
    changed: list[tuple[ModuleType, str, Any]] = []
    try:
        wrappers = {id(original): (original, wrapper) for original, wrapper in _wrappers(report).items()}
        for module, name, which in _holders(wrappers.keys()):
            original, wrapper = wrappers[which]
            changed.append((module, name, original))
            setattr(module, name, wrapper)
        yield
    finally:
        for module, name, original in reversed(changed):
            setattr(module, name, original)


def _wrappers(report: Report) -> dict[Any, Callable[..., Any]]:
    attention = functional.scaled_dot_product_attention
    fused, fused_layer = torch._native_multi_head_attention, torch._transformer_encoder_layer_fwd

    @torch.compiler.disable
    def call_attention(*args: Any, **kwargs: Any) -> Any:
        _report_attention(report, *args, **kwargs)
        return attention(*args, **kwargs)

    @torch.compiler.disable
    def call_fused(*args: Any, **kwargs: Any) -> Any:
        query, _, _, _, heads, weight, bias, _, _, mask, _, _, kind = args
        _report_fused(report, query, heads, weight, bias, mask, kind)
        return fused(*args, **kwargs)

    @torch.compiler.disable
    def call_layer(*args: Any, **kwargs: Any) -> Any:
        source, _, heads, weight, bias, _, _, _, norm_first, epsilon, gain, shift, *_, mask, kind = args
        _refuse_nested(source)
        with torch.no_grad():
            tokens = functional.layer_norm(source, source.shape[-1:], gain, shift, epsilon) if norm_first else source
        _report_fused(report, tokens, heads, weight, bias, mask, kind)
        return fused_layer(*args, **kwargs)

    return {attention: call_attention, fused: call_fused, fused_layer: call_layer}


def _holders(wanted: Collection[int]) -> list[tuple[ModuleType, str, int]]:
    """Every loaded module that has one of these objects (by id) among its globals, and the name it has there."""
    sought = frozenset(wanted)
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    # A program has some hundred thousand globals: the few modules that hold one are selected first, in one step each.
    holding = [
        module
        for module in modules
        if _may_call(module.__name__) and not sought.isdisjoint(map(id, list(vars(module).values())))
    ]
    return [
        (module, name, id(value))
        for module in holding
        for name, value in list(vars(module).items())
        if id(value) in sought
    ]


def _may_call(module: str) -> bool:
    """Whether a model's attention may be called from a module: not from Python's own, nor from most of torch's."""
    package = module.partition(".")[0]
    if package == "torch":
        return module == "torch" or module.startswith("torch.nn")
    return package not in sys.stdlib_module_names and not module.startswith(OURS)


def _report_attention(
    report: Report,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    _refuse_nested(query)
    with torch.no_grad():
        queries, keys = query.shape[-2], key.shape[-2]
        if is_causal and queries != keys:  # torch aligns the first query with the first key, attend the last ones
            attn_mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
            is_causal = False
        report(full_attention_inputs(query, key, value, attn_mask, is_causal, scale, enable_gqa), enable_gqa)


def _report_fused(
    report: Report, tokens: Tensor, heads: int, weight: Tensor, bias: Tensor, mask: Tensor | None, kind: int | None
) -> None:
    """Report the fused self-attention over tokens (B, L, d). Its mask hides keys where it is not zero."""
    _refuse_nested(tokens)
    with torch.no_grad():
        parts = functional.linear(tokens, weight, bias).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        if mask is not None:
            mask = ~mask.bool()
            mask = mask[:, None, None, :] if kind == _PADDING_MASK else mask
        report(full_attention_inputs(q, k, v, mask, False, None, False), False)


def _refuse_nested(tensor: Tensor) -> None:
    if tensor.is_nested:
        raise UsageError(
            "this model packs rows of different lengths into a nested tensor, which cannot be observed; "
            "build nn.TransformerEncoder with enable_nested_tensor=False, or give batches without padding"
        )

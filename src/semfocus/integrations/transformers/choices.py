"""Which mechanism each layer uses, as stored in `config.semfocus`.

    "topk:8"                        every layer
    ["full", "topk:8", null]        layer by layer; null for a layer without attention

Plain JSON, so that `save_pretrained` writes it and `from_pretrained` reads it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from torch import nn

from semfocus.attention.mechanisms import Mechanism, parse_mechanism
from semfocus.errors import UsageError

FIELD = "semfocus"
PREFIX = "semfocus"
# Mechanisms by text form. A plain dict, which torch.compile can trace, unlike a cached function.
_parsed: dict[str, Mechanism] = {}

Choice = str | list[str | None]
ByLayer = Sequence[Mechanism | str | None] | Mapping[int, Mechanism | str]
Wanted = Mechanism | str | ByLayer


def is_by_layer(wanted: Wanted) -> TypeGuard[ByLayer]:
    """Whether `focus` was given one mechanism for each layer."""
    return isinstance(wanted, (Sequence, Mapping)) and not isinstance(wanted, str)


def choice_by_layer(wanted: ByLayer, numbers: Sequence[int], total: int) -> Choice:
    """A list or dict as `config.semfocus` keeps it; `numbers` are the layers, of `total`, that have attention."""
    if isinstance(wanted, Mapping):
        if set(wanted) != set(numbers):
            raise UsageError(
                f"mechanism names the layers {_listed(wanted)}, and the attention layers of this model are "
                f"{_listed(numbers)}; name each of them ('full' leaves one as it is)"
            )
        return [text_form(wanted[i]) if i in wanted else None for i in range(total)]
    if len(wanted) != total:
        raise UsageError(f"mechanism lists {len(wanted)} layers, and this model has {total}; give one for each")
    return [None if each is None and i not in numbers else text_form(each) for i, each in enumerate(wanted)]


def mechanisms_in(choice: Any) -> list[Mechanism]:
    """The distinct mechanisms of a choice, in the order of the layers; an error if it cannot be parsed."""
    named = [text for text in (choice if isinstance(choice, list) else [choice]) if text is not None]
    if not named or not all(isinstance(text, str) for text in named):
        raise UsageError(
            f"config.{FIELD} = {choice!r} must be a mechanism such as 'topk:8', or a list with one a layer"
        )
    return [_mechanism(text) for text in dict.fromkeys(named)]


def implementation_name(choice: Choice) -> str:
    """The `attn_implementation` that serves a choice: semfocus_topk, or plain semfocus where kinds are mixed."""
    kinds = {mechanism.name for mechanism in mechanisms_in(choice)}
    return f"{PREFIX}_{kinds.pop()}" if len(kinds) == 1 else PREFIX


def chosen_mechanism(module: nn.Module) -> Mechanism:
    """The mechanism of the layer that is computing; an error that names `focus()` if there is none."""
    config = getattr(module, "config", None)
    implementation = getattr(config, "_attn_implementation", PREFIX)
    choice = getattr(config, FIELD, None)
    if choice is None:
        raise UsageError(
            f'attn_implementation="{implementation}" does not say which keys to keep; call focus(model, "topk:8") from '
            f"semfocus.integrations.transformers, which sets the implementation and config.{FIELD} together"
        )
    if isinstance(choice, list):
        choice = _of_layer(choice, module)
    mechanism = _mechanism(choice)
    if implementation not in (PREFIX, f"{PREFIX}_{mechanism.name}"):
        raise UsageError(
            f'attn_implementation="{implementation}" and config.{FIELD} = {choice!r} disagree; call focus(model) to '
            "use what the config says, or focus(model, mechanism) to choose anew"
        )
    return mechanism


def _mechanism(text: str) -> Mechanism:
    if text not in _parsed:
        _parsed[text] = parse_mechanism(text)
    return _parsed[text]


def _of_layer(choice: list[str | None], module: nn.Module) -> str:
    layer = getattr(module, "layer_idx", None)
    text = choice[layer] if isinstance(layer, int) and 0 <= layer < len(choice) else None
    if text is None:
        raise UsageError(
            f"config.{FIELD} lists {len(choice)} layers and says nothing about {type(module).__name__} with "
            f"layer_idx = {layer!r}; call focus(model, ...) with one mechanism for all layers, or for each"
        )
    return text


def text_form(mechanism: object) -> str:
    """The text form of a mechanism; an error for what is no mechanism, or would not load as the same value."""
    if isinstance(mechanism, str):
        return str(parse_mechanism(mechanism))
    if not isinstance(mechanism, Mechanism):
        raise UsageError(
            f"mechanism = {mechanism!r} must be a value such as TopK(8), its text form 'topk:8', or one for each layer"
        )
    text = str(mechanism)
    if parse_mechanism(text) != mechanism:
        raise UsageError(f"mechanism = {mechanism!r} cannot be saved: its text form {text!r} stands for another value")
    return text


def _listed(numbers: Iterable[Any]) -> str:
    return ", ".join(str(number) for number in numbers) or "none"

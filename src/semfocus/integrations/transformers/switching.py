"""`focus` and `unfocus`: switch a loaded model to a mechanism and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel

from semfocus.attention import mechanism_names
from semfocus.errors import UsageError
from semfocus.integrations.transformers.attention import focused_attention, focused_mask
from semfocus.integrations.transformers.choices import (
    FIELD,
    PREFIX,
    Choice,
    Wanted,
    choice_by_layer,
    chosen_mechanism,
    implementation_name,
    is_by_layer,
    mechanisms_in,
    text_form,
)
from semfocus.integrations.transformers.models import attention_layers
from semfocus.integrations.transformers.ownership import own_configs

BEFORE = "_semfocus_before"
# transformers gives a special meaning to names that contain one of these.
RESERVED = ("flash", "sdpa", "flex_attention", "/", "|")


class _Before(NamedTuple):
    config: PreTrainedConfig
    implementation: str | None
    choice: Choice | None


def register() -> None:
    """Make every mechanism known to transformers: `attn_implementation="semfocus_topk"` and so on.

    Attention and mask function are registered together: without the latter transformers makes no mask, and queries
    would see later keys. Call it again after `register_mechanism`; names that are registered already stay as they are.
    """
    for name in (PREFIX, *(f"{PREFIX}_{mechanism}" for mechanism in mechanism_names())):
        for reserved in RESERVED:
            if reserved in name:
                raise UsageError(
                    f"a mechanism cannot be used in transformers under the name {name!r}: it holds {reserved!r}"
                )
        AttentionInterface.register(name, focused_attention)
        AttentionMaskInterface.register(name, focused_mask)


def focus(model: PreTrainedModel, mechanism: Wanted | None = None, *, partial: bool = False) -> None:
    """Switch a loaded model to a mechanism, live; `config.semfocus` keeps the choice and is saved with the model.

    mechanism    TopK(8), "topk:8", a list with one for each layer, or a dict from layer number to mechanism.
                 None applies what the config says, for a model that was saved while focused.
    partial      also focus a model of which some attention cannot be switched and stays as it is

    The model gets configs of its own: others that were made from the same config object stay as they are.
    """
    _check_model(model)
    layers = attention_layers(model, partial)
    register()
    own_configs(model)
    before = [_Before(each, each._attn_implementation, getattr(each, FIELD, None)) for each in _configs(model, layers)]
    try:
        if mechanism is not None:
            choice = _as_choice(model, layers, mechanism)
            for config, _, _ in before:
                setattr(config, FIELD, choice)
        _apply(model)
        _verify(model, layers)
    except Exception:
        _restore(before)
        raise
    if not hasattr(model, BEFORE):
        setattr(
            model, BEFORE, [each if _is_ours(each.implementation) else each._replace(choice=None) for each in before]
        )


def unfocus(model: PreTrainedModel) -> None:
    """Switch back to what the model used before its first `focus`, and take the choice out of its config."""
    _check_model(model)
    before = getattr(model, BEFORE, None)
    if before is None:
        raise UsageError(
            f"this {type(model).__name__} was not switched by focus(); "
            'model.set_attn_implementation("sdpa") chooses an implementation of transformers'
        )
    _restore(before)
    delattr(model, BEFORE)
    for part in _submodels(model):
        # A part that was focused before the whole model stays focused; one that was focused after it does not.
        if hasattr(part, BEFORE) and not _is_ours(part.config._attn_implementation):
            delattr(part, BEFORE)


def _check_model(model: object) -> None:
    if not isinstance(model, PreTrainedModel):
        hint = "; focus a model before compiling or wrapping it" if isinstance(model, nn.Module) else ""
        raise TypeError(f"model must be a transformers PreTrainedModel, not {type(model).__name__}{hint}")


def _configs(model: PreTrainedModel, layers: list[nn.Module]) -> Iterator[PreTrainedConfig]:
    """Every config in the model once, outer ones first: setting an outer one sets those inside it."""
    seen: set[int] = set()
    owners = [model, *(module for module in model.modules() if isinstance(module, PreTrainedModel)), *layers]
    for owner in owners:
        queue: list[Any] = [getattr(owner, "config", None)]
        while queue:
            config = queue.pop(0)
            if isinstance(config, PreTrainedConfig) and id(config) not in seen:
                seen.add(id(config))
                queue += [getattr(config, key, None) for key in config.sub_configs]
                yield config


def _as_choice(model: PreTrainedModel, layers: list[nn.Module], wanted: Wanted) -> Choice:
    if not is_by_layer(wanted):
        return text_form(wanted)
    numbers = _layer_numbers(model, layers)
    total = max(getattr(layers[0].config, "num_hidden_layers", None) or 0, numbers[-1] + 1)
    return choice_by_layer(wanted, numbers, total)


def _layer_numbers(model: PreTrainedModel, layers: list[nn.Module]) -> list[int]:
    """The number of each attention layer; an error where numbers do not identify layers."""
    numbers = {getattr(layer, "layer_idx", None) for layer in layers}
    stacks = {id(getattr(layer, "config", None)) for layer in layers}
    if len(stacks) > 1 or getattr(model.config, "is_encoder_decoder", False):
        raise UsageError(
            f"{type(model).__name__} has several stacks of layers; give one mechanism for all, or focus each part "
            "(model.model.language_model, ...) on its own"
        )
    if not all(isinstance(number, int) for number in numbers):
        raise UsageError(
            f"the layers of {type(model).__name__} carry no number (layer_idx); give one mechanism for all"
        )
    return sorted(number for number in numbers if number is not None)


def _apply(model: PreTrainedModel) -> None:
    """Set the implementation that each config's choice requires, outer models first: they pass theirs to inner ones."""
    chosen = [module for module in _submodels(model) if getattr(module.config, FIELD, None) is not None]
    if not chosen:
        raise UsageError(f'model.config.{FIELD} holds no choice to apply; name one: focus(model, "topk:8")')
    for module in chosen:
        choice = getattr(module.config, FIELD)
        _check_cross_attention(module, choice)
        module.set_attn_implementation(implementation_name(choice))


def _submodels(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """The model and the models inside it, one for each config, outer ones first."""
    seen: set[int] = set()
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and id(module.config) not in seen:
            seen.add(id(module.config))
            yield module


def _check_cross_attention(model: PreTrainedModel, choice: Choice) -> None:
    config = model.config
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False):
        for mechanism in mechanisms_in(choice):
            if mechanism.uses_positions:
                raise UsageError(
                    f"{mechanism} counts positions, and {type(model).__name__} attends from one text to another, "
                    "which share none; use a mechanism without a window, blocks or sinks, such as topk:8"
                )


def _verify(model: PreTrainedModel, layers: list[nn.Module]) -> None:
    """Check what every layer will read: where transformers does not switch, it only writes a log message."""
    for layer in layers:
        config = getattr(layer, "config", None)
        choice, taken = getattr(config, FIELD, None), getattr(config, "_attn_implementation", None)
        wanted = None if choice is None else implementation_name(choice)
        if taken != wanted and (wanted is not None or _is_ours(taken)):
            raise UsageError(
                f"{type(model).__name__} did not take the implementation {wanted!r} for its {type(layer).__name__}, "
                f"which has {taken!r}; transformers' log says why"
            )
        if wanted is not None:
            chosen_mechanism(layer)


def _restore(before: list[_Before]) -> None:
    for config, implementation, choice in before:
        config._attn_implementation = implementation
        if choice is not None:
            setattr(config, FIELD, choice)
        elif hasattr(config, FIELD):
            delattr(config, FIELD)


def _is_ours(implementation: str | None) -> bool:
    return implementation is not None and implementation.startswith(PREFIX)

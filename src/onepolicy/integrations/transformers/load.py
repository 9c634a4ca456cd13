"""A model and its tokenizer from a folder, or an error that says what is wrong with the folder."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from onepolicy.errors import EngineError, MissingExtraError
from onepolicy.integrations.transformers.changed import changed_config, cut_vocabulary, merged_adapter, replace_weights
from onepolicy.integrations.transformers.options import TransformersOptions
from onepolicy.integrations.transformers.quiet import quiet_transformers
from onepolicy.integrations.transformers.tokenizer import TextTokenizer
from onepolicy.weights.model import model_hash

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")

UNUSABLE = {
    "missing_keys": "weights that the model needs and the files lack, which would be random numbers",
    "unexpected_keys": "weights that the model has no place for",
    "mismatched_keys": "weights of another shape than the model's",
    "error_msgs": "weights that could not be read",
}
"""entry of Transformers' loading info -> what it means"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """A model in eval mode on its device, with what is known about it."""

    model: Any
    """a `PreTrainedModel` with a language-model head; Any, as Transformers' types for `to` and `generate` are wrong"""
    tokenizer: TextTokenizer | None
    folder: Path
    weights_hash: str
    """of the weights, the adapter's included, and their configuration, whatever files they lie in"""
    vocab_size: int
    """rows of the embedding, which may be more than the tokenizer has"""
    max_length: int | None
    """positions that the model was made for, if its config says"""
    stop_ids: tuple[int, ...]
    """end tokens of the model's generation config"""
    pad_id: int


def load(folder: Path, options: TransformersOptions) -> Loaded:
    """Load the model in `folder`. Raises EngineError or MissingExtraError."""
    device = _device(options.device)
    adapter = Path(options.adapter).expanduser() if options.adapter else None
    with quiet_transformers():
        model = _model(folder, options)
        model = _with_adapter(model, adapter, folder, merged=options.merged) if adapter else model
        if options.config:
            cut_vocabulary(model, options.config)  # last: an adapter has all rows
        model = _on(device, model, folder)
        tokenizer = _tokenizer(folder, options)
    stop_ids = _stop_ids(model, tokenizer)
    # its own would fill in what a sampling config leaves open
    model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    return Loaded(
        model=model.eval(),
        tokenizer=tokenizer,
        folder=folder,
        weights_hash="" if _is_changed(options) else model_hash([folder, adapter] if adapter else [folder]),
        vocab_size=model.get_input_embeddings().num_embeddings,
        max_length=getattr(model.config.get_text_config(), "max_position_embeddings", None),
        stop_ids=stop_ids,
        pad_id=stop_ids[0] if stop_ids else 0,
    )


def _is_changed(options: TransformersOptions) -> bool:
    """Whether the model is another one than its files hold, so that their hash is not its own."""
    return bool(options.merged or options.config or options.replaced)


def _on(device: Any, model: Any, folder: Path) -> Any:
    try:
        return model.to(device)
    except RuntimeError as error:  # of memory
        raise EngineError(f"{folder}: this model cannot be moved to {device}: {error}") from error


def _stop_ids(model: Any, tokenizer: TextTokenizer | None) -> tuple[int, ...]:
    """The end tokens that `generate` would use; where the model names none, the tokenizer's."""
    named = model.generation_config.eos_token_id if model.generation_config else None
    if named is None and tokenizer is not None:
        named = tokenizer.plain.eos_token_id
    if named is None:
        return ()
    return tuple(named) if isinstance(named, list | tuple) else (int(named),)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise EngineError(f"device={name!r} is no device that torch knows. Write cpu, cuda or cuda:1.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise EngineError(
            f"device={name!r} is not available: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA "
            "devices here. Use device=cpu, or install torch for CUDA."
        )
    return device


def _model(folder: Path, options: TransformersOptions) -> Any:
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    trusts = options.trust_remote_code
    changed = {"config": changed_config(folder, options.config, trust_remote_code=trusts)} if options.config else {}
    try:
        model, info = from_pretrained(
            folder,
            dtype=getattr(torch, options.dtype),
            attn_implementation=options.attn,
            trust_remote_code=trusts,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            output_loading_info=True,
            **changed,
        )
    except SafetensorError as error:
        raise EngineError(
            f"{folder}: a safetensors file is damaged or incomplete ({error}). Copy or save the model again."
        ) from error
    except (ValueError, OSError, RuntimeError) as error:
        raise EngineError(f"{folder}: Transformers cannot load this model: {error}") from error
    refuse_unusable(folder, info)
    if options.replaced:
        replace_weights(model, options.replaced)
    return model


def refuse_unusable(folder: Path, info: dict[str, Any]) -> None:
    """Raise EngineError if Transformers had to make weights up or leave weights out."""
    for entry, what in UNUSABLE.items():
        if keys := sorted(map(str, info.get(entry) or ())):
            raise EngineError(
                f"{folder} has {len(keys)} {what}: {_some(keys)}. "
                "The files belong to another architecture than config.json says, or saving them was not complete."
            )


def _with_adapter(model: Any, adapter: Path, folder: Path, *, merged: str | None) -> Any:
    """The same model with the adapter's layers in place, or added to its weights, in the model's dtype."""
    weights = adapter / "adapter_model.safetensors"
    for file in (adapter / "adapter_config.json", weights):
        if not file.is_file():
            raise EngineError(f"adapter={adapter} is no PEFT adapter: it has no {file.name}.")
    try:
        from peft import PeftModel, get_peft_model_state_dict  # noqa: PLC0415  (only specs with an adapter need it)
    except ImportError as error:
        raise MissingExtraError(package="peft", extra="transformers", needed_for="adapter=") from error
    before = {name for name, _ in model.named_parameters()}
    try:
        with warnings.catch_warnings(action="ignore"):  # of keys that do not fit; they are compared below
            wrapped = PeftModel.from_pretrained(model, str(adapter), autocast_adapter_dtype=False)
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise EngineError(f"adapter={adapter} does not fit the model in {folder}: {error}") from error
    with safe_open(weights, framework="pt") as stored:
        _refuse_other_keys(adapter, in_file=set(stored.keys()), in_model=set(get_peft_model_state_dict(wrapped)))
    if merged:
        return merged_adapter(wrapped, getattr(torch, merged))
    base = wrapped.get_base_model()
    for name, parameter in base.named_parameters():
        if name not in before and parameter.is_floating_point():
            parameter.data = parameter.data.to(model.dtype)
    return base


def _refuse_other_keys(adapter: Path, *, in_file: set[str], in_model: set[str]) -> None:
    if in_file != in_model:
        raise EngineError(
            f"adapter={adapter} does not fit the model: {len(in_file - in_model)} of its weights have no place "
            f"({_some(sorted(in_file - in_model))}), {len(in_model - in_file)} places have no weights "
            f"({_some(sorted(in_model - in_file))}). Use the model that the adapter was trained on."
        )


def _tokenizer(folder: Path, options: TransformersOptions) -> TextTokenizer | None:
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        plain = AutoTokenizer.from_pretrained(folder, trust_remote_code=options.trust_remote_code)
    except (ValueError, OSError, KeyError) as error:
        raise EngineError(f"{folder}: Transformers cannot load this tokenizer: {error}") from error
    return TextTokenizer(plain=plain, folder=folder)


def _some(keys: list[str]) -> str:
    shown = ", ".join(keys[:3]) or "none"
    return shown + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")

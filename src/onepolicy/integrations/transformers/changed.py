"""A model that is not quite what its folder says: other constants, or some weights of another folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig

from onepolicy.errors import EngineError, InapplicableError, UsageError
from onepolicy.weights.files import files_of

_ROPE = ("rope_theta", "rope_factor")
VOCABULARY = "vocab_size"


def pairs_of(text: str, *, option: str) -> dict[str, str]:
    """`a=1;b=2` -> {"a": "1", "b": "2"}. Raises: UsageError."""
    parts = [part.partition("=") for part in text.split(";") if part]
    if not parts or not all(name and value for name, _, value in parts):
        raise UsageError(f"{option}={text!r} must read NAME=VALUE, several of them with ; in between.")
    return {name: value for name, _, value in parts}


def changed_config(folder: Path, changes: str, *, trust_remote_code: bool) -> Any:
    """The model's config with some constants changed.

    Raises: EngineError for a constant that the model does not have, or that is so already: nothing would be changed.
    """
    whole = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    config, before = whole.get_text_config(), whole.to_json_string()
    for name, value in pairs_of(changes, option="config").items():
        if name == VOCABULARY:
            continue  # its rows are left out once they are loaded
        if name in _ROPE:
            _change_rope(config, name, float(value), folder)
            continue
        own = getattr(config, name, None)
        if own is None:
            raise InapplicableError(f"{folder}: config={name}={value}: this model has no {name}.")
        setattr(config, name, _changed(own, value))
    if whole.to_json_string() == before and VOCABULARY not in pairs_of(changes, option="config"):
        raise InapplicableError(f"{folder}: config={changes}: it is so in the model's folder.")
    return whole


def _changed(before: Any, value: str) -> Any:
    """`none`; +1 and -1 are counted from what it was; else a value of the same type."""
    if value == "none":
        return None
    if value[0] in "+-":
        return before + type(before)(value)
    return type(before)(value)


def _change_rope(config: Any, name: str, value: float, folder: Path) -> None:
    """rope_theta; or rope_factor, by which positions are divided, 1 for none."""
    rope = getattr(config, "rope_parameters", None)
    if not rope:
        raise InapplicableError(f"{folder}: config={name}={value:g}: this model has no rotary positions.")
    of_layers = list(rope.values()) if all(isinstance(one, dict) for one in rope.values()) else [rope]
    for one in of_layers:
        if name == "rope_theta":
            one["rope_theta"] = value
        elif value == 1.0:
            one["rope_type"] = "default"
        else:
            one |= {"rope_type": "linear", "factor": value}


def cut_vocabulary(model: Any, changes: str) -> None:
    """Give the head's rows from `vocab_size` on a logit of -inf. Raises: InapplicableError if it has no such rows."""
    wanted, head = pairs_of(changes, option="config").get(VOCABULARY), model.get_output_embeddings()
    if wanted is None:
        return
    if head is None or not 0 < int(wanted) < len(head.weight):
        raise InapplicableError(f"config={VOCABULARY}={wanted}: the head of this model has no rows beyond.")
    bias = torch.zeros(len(head.weight), dtype=head.weight.dtype) if head.bias is None else head.bias.detach().clone()
    bias[int(wanted) :] = -torch.inf
    head.bias = torch.nn.Parameter(bias, requires_grad=False)


def merged_adapter(wrapped: Any, dtype: torch.dtype) -> Any:
    """A PEFT model as one with plain layers; the weights that had an adapter are rounded to a dtype."""
    from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415  (only specs with an adapter need it)

    names = [name for name, module in wrapped.base_model.model.named_modules() if isinstance(module, BaseTunerLayer)]
    model = wrapped.merge_and_unload()
    for name in names:
        weight = model.get_submodule(name).weight
        weight.data = weight.data.to(dtype).to(weight.dtype)
    return model


def replace_weights(model: Any, text: str) -> None:
    """Take the weights whose names hold a word from another folder: `lm_head=FOLDER`. Raises: EngineError."""
    ((word, folder),) = list(pairs_of(text, option="replaced").items())[:1]
    stored = _tensors(Path(folder).expanduser(), word)
    own = {name: parameter for name, parameter in model.named_parameters() if word in name}
    if not own or not own.keys() <= stored.keys():
        raise EngineError(f"replaced={text}: {len(own)} weights of the model and {len(stored)} there have {word!r}.")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(stored[name])


def _tensors(folder: Path, word: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in files_of(folder):
        with safe_open(file, framework="pt") as opened:
            found |= {name: opened.get_tensor(name) for name in opened.keys() if word in name}  # noqa: SIM118
    return found

"""A reward model and its tokenizer from a folder. What is missing from the files is kept as a finding, not refused."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

from onepolicy.errors import EngineError, MissingExtraError
from onepolicy.integrations.transformers.load import TOKENIZER_FILES
from onepolicy.integrations.transformers.quiet import quiet_transformers
from onepolicy.integrations.transformers.reward_options import RewardOptions
from onepolicy.integrations.transformers.tokenizer import TextTokenizer
from onepolicy.signal.reward.scorer import TokenizerFacts

_END_WORDS = ("eos_token_id", "sep_token_id")
_NO_LIMIT = 10**9
"""what tokenizers write that know no longest text is above it"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedReward:
    """A reward model in eval mode on its device, with what is known about it."""

    model: Any
    tokenizer: Any
    tokenizer_hash: str
    facts: TokenizerFacts
    missing: tuple[str, ...]
    """names of weights that the files lack"""
    max_length: int | None
    pad_id: int
    """what is written into padding: the tokenizer's, else the model's, else the end token as many do"""
    device: torch.device


def load_reward(folder: Path, options: RewardOptions, *, seed: int) -> LoadedReward:
    """Load it. seed: of weights that have to be made up. Raises: EngineError, MissingExtraError."""
    device = _device(options.device)
    with quiet_transformers(), torch.random.fork_rng():
        torch.manual_seed(seed)
        model, missing = _model(folder, options)
        tokenizer = _tokenizer(folder, options)
    facts = _facts(model, tokenizer)
    known = (facts.pad_id, facts.model_pad_id, *facts.end_ids, 0)
    return LoadedReward(
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        tokenizer_hash=TextTokenizer(plain=tokenizer, folder=folder).hash() or str(folder),
        facts=facts,
        missing=missing,
        max_length=options.max_length or _max_length(model, tokenizer),
        pad_id=next(one for one in known if one is not None),
        device=device,
    )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EngineError(f"device={name!r} cannot be used here: {error}. Write cpu, cuda or cuda:1.") from error
    return device


def _model(folder: Path, options: RewardOptions) -> tuple[Any, tuple[str, ...]]:
    trusts = options.trust_remote_code
    try:
        names = AutoConfig.from_pretrained(folder, trust_remote_code=trusts).architectures or [""]
        by_token = names[0].endswith("ForTokenClassification")
        kind: Any = AutoModelForTokenClassification if by_token else AutoModelForSequenceClassification
        model, info = kind.from_pretrained(
            folder,
            dtype=getattr(torch, options.dtype),
            attn_implementation=options.attn,
            trust_remote_code=trusts,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            output_loading_info=True,
        )
    except (SafetensorError, ValueError, OSError, RuntimeError, KeyError) as error:
        raise EngineError(f"{folder}: Transformers cannot load this as a reward model: {error}") from error
    if broken := sorted(map(str, [*info["mismatched_keys"], *(info.get("error_msgs") or ())])):
        raise EngineError(
            f"{folder}: {len(broken)} weights have another shape than config.json says, the first is {broken[0]}. "
            "Compare num_labels and the sizes in config.json with what was saved."
        )
    missing = tuple(sorted(map(str, info["missing_keys"])))
    return _with_adapter(model, missing, options) if options.adapter else (model, missing)


def _with_adapter(model: Any, missing: tuple[str, ...], options: RewardOptions) -> tuple[Any, tuple[str, ...]]:
    """The model with an adapter, and what is still missing: an adapter may bring the head."""
    assert options.adapter is not None
    adapter = Path(options.adapter).expanduser()
    weights = adapter / "adapter_model.safetensors"
    for file in (adapter / "adapter_config.json", weights):
        if not file.is_file():
            raise EngineError(f"adapter={adapter} is no PEFT adapter: it has no {file.name}.")
    try:
        from peft import PeftModel  # noqa: PLC0415  (only specs with an adapter need it)
    except ImportError as error:
        raise MissingExtraError(package="peft", extra="transformers", needed_for="adapter=") from error
    try:
        with warnings.catch_warnings(action="ignore"):  # of keys that do not fit: two loads show them
            wrapped = PeftModel.from_pretrained(model, str(adapter), autocast_adapter_dtype=False)
        with safe_open(weights, framework="pt") as stored:
            brought = tuple(stored.keys())
    except KeyError as error:  # PEFT's, for a module that the configuration names and the file lacks
        raise EngineError(
            f"adapter={adapter}: its weights lack {error.args[0]!r}, which adapter_config.json says was saved with "
            "them. Save the adapter again from the training process; a head that was lost cannot be made up."
        ) from error
    except (SafetensorError, ValueError, RuntimeError, AttributeError) as error:
        raise EngineError(f"adapter={adapter} does not fit the model: {error}") from error
    return wrapped, tuple(name for name in missing if not any(key.endswith(name) for key in brought))


def _tokenizer(folder: Path, options: RewardOptions) -> Any:
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise EngineError(
            f"{folder} has no tokenizer, and a reward model reads its own ids. Save its tokenizer beside it: looked "
            f"for {', '.join(TOKENIZER_FILES)}."
        )
    sides = {"padding_side": options.padding_side, "truncation_side": options.truncation_side}
    given: dict[str, Any] = {name: side for name, side in sides.items() if side}
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=options.trust_remote_code, **given)
    except (ValueError, OSError, KeyError) as error:
        raise EngineError(f"{folder}: Transformers cannot load this tokenizer: {error}") from error


def _facts(model: Any, tokenizer: Any) -> TokenizerFacts:
    ends = [getattr(tokenizer, word, None) for word in _END_WORDS]
    return TokenizerFacts(
        has_template=bool(tokenizer.chat_template),
        rows=model.get_input_embeddings().num_embeddings,
        highest_id=max(tokenizer.get_vocab().values()),
        pad_id=tokenizer.pad_token_id,
        model_pad_id=model.config.get_text_config().pad_token_id,
        end_ids=tuple(end for end in ends if end is not None),
        bos_id=tokenizer.bos_token_id,
        padding_side=tokenizer.padding_side,
    )


def _max_length(model: Any, tokenizer: Any) -> int | None:
    """Tokens: the lesser of what the tokenizer and the model's positions say."""
    said = (tokenizer.model_max_length, getattr(model.config.get_text_config(), "max_position_embeddings", None))
    known = [int(one) for one in said if one is not None and one < _NO_LIMIT]
    return min(known, default=None)

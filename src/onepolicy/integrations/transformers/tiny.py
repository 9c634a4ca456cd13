"""Tiny random models in folders, whole or wrong in a known way: what faults are planted in.

Each is made from a seed, so it is the same in every run. A model's `gain` says how strongly it feels a fault: logits
are linear in it near 0, so that a fault can be given any size without touching a number that an engine returns.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel

from onepolicy.errors import MissingExtraError
from onepolicy.integrations.transformers.quiet import quiet_transformers

VOCABULARY = 300
"""rows of the head: 256 bytes, the special tokens, and some that are no tokens"""
END, WIDTH, LONGEST = 0, 32, 512
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LONGEST,
    "initializer_range": 0.4,
    "eos_token_id": END,
    "bos_token_id": None,
    "pad_token_id": END,
    "tie_word_embeddings": False,
}
"""0.4: logits as peaked as those of a trained model"""
_PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def llama(into: Path, *, attention: float = 1.0, head: float = 1.0, with_bos: bool = False) -> Path:
    """A Llama. attention, head: gain of what its attention adds, and of its logits. with_bos: texts begin with one."""
    model = _random(transformers.LlamaForCausalLM, transformers.LlamaConfig(**_SHAPE))
    _scale(model, {"o_proj": attention, "lm_head": head})
    return _saved(model, into, with_bos=with_bos)


def with_more_rows(folder: Path, into: Path, *, rows: int, zeros: bool) -> Path:
    """The model with more rows in its head and embedding than it has tokens, as padding to a multiple gives them.

    zeros: what they hold; they have no part of the mass where logits are large. Else they repeat the first rows.
    """
    model = _loaded(folder)
    size = model.config.vocab_size
    with quiet_transformers():
        model.resize_token_embeddings(size + rows, mean_resizing=False)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[size:] = 0.0 if zeros else head[torch.arange(rows) % size]
    return _copied(folder, into, model)


def gpt2(into: Path, *, positions: float = 1.0, dropout: float = 0.0) -> Path:
    """A GPT-2, whose positions are learned. positions: gain of their embedding."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LONGEST,
        n_embd=WIDTH,
        n_layer=2,
        n_head=4,
        initializer_range=0.2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        eos_token_id=END,
        bos_token_id=None,
    )
    model = _random(transformers.GPT2LMHeadModel, config)
    _scale(model, {"wpe": positions})
    return _saved(model, into)


def gemma(into: Path, *, attention: float = 1.0) -> Path:
    """A Gemma 2 with a sliding window and soft caps. attention: gain of what its attention adds."""
    config = transformers.Gemma2Config(**_SHAPE, head_dim=8, sliding_window=16, attn_logit_softcapping=2.0)
    model = _random(transformers.Gemma2ForCausalLM, config)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "post_attention_layernorm" in name:
                weights.fill_(attention - 1.0)  # this norm multiplies by 1 + its weight
    return _saved(model, into)


def experts(into: Path, *, strength: float = 1.0) -> Path:
    """A Mixtral with four experts, two of them for a token. strength: gain of what experts add."""
    config = transformers.MixtralConfig(**_SHAPE, num_local_experts=4, num_experts_per_tok=2)
    model = _random(transformers.MixtralForCausalLM, config)
    _scale(model, {"down_proj": strength})
    return _saved(model, into)


def moved(folder: Path, into: Path, *, size: float, seed: int = 1) -> Path:
    """The model after an update: each weight moved at random by this share of its tensor's spread."""
    model, generator = _loaded(folder), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(size * weights.std() * torch.randn(weights.shape, generator=generator))
    return _copied(folder, into, model)


def adapter(folder: Path, into: Path, *, size: float = 1.0) -> Path:
    """A LoRA adapter of the model. size: gain of what it adds. Raises: MissingExtraError without PEFT."""
    try:
        import peft  # noqa: PLC0415  (only faults of adapters need it)
    except ImportError as error:
        raise MissingExtraError(package="peft", extra="transformers", needed_for="faults of adapters") from error
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):  # PEFT asks Transformers for an old name
        torch.manual_seed(0)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        wrapped = peft.get_peft_model(_loaded(folder), config)
        _scale(wrapped, {"lora_B": size})
        wrapped.save_pretrained(str(into))
    return into


def tokenizer(*, with_bos: bool) -> Any:
    """One token a byte, and the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: n for n, token in enumerate(["<|end|>", *alphabet])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevel()
    begin = {"bos_token": AddedToken("<s>", special=True)} if with_bos else {}
    kind: Any = transformers.PreTrainedTokenizerFast
    fast = kind(tokenizer_object=backend, eos_token="<|end|>", **begin)  # noqa: S106
    fast.chat_template = "{{ bos_token }}" * with_bos + _PLAIN
    return fast


def _random(kind: Callable[[Any], Any], config: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(config)


def _scale(model: Any, gains: dict[str, float]) -> None:
    with torch.no_grad():
        for name, weights in model.named_parameters():
            for word, gain in gains.items():
                if word in name:
                    weights.mul_(gain)


def _loaded(folder: Path) -> Any:
    with quiet_transformers():
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _saved(model: Any, into: Path, *, with_bos: bool = False) -> Path:
    generation: Any = transformers.GenerationConfig
    model.generation_config = generation(eos_token_id=END)
    with quiet_transformers():
        model.save_pretrained(into)
    tokenizer(with_bos=with_bos).save_pretrained(into)
    return into


def _copied(folder: Path, into: Path, model: Any) -> Path:
    """The folder's tokenizer beside other weights."""
    shutil.copytree(folder, into)
    with quiet_transformers():
        model.save_pretrained(into)
    return into

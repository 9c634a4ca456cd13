"""Tiny random reward models in folders, sound, or wrong in one known way."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel

from onepolicy.integrations.transformers.quiet import quiet_transformers

END, PAD, LONGEST, ROWS = 0, 1, 2048, 300
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
SHAPE: dict[str, Any] = {
    "vocab_size": ROWS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LONGEST,
    "initializer_range": 0.3,
    "eos_token_id": END,
    "bos_token_id": None,
    "pad_token_id": PAD,
}


def tokenizer(*, pad: str = "<pad>", side: str = "right", cuts: str = "left") -> Any:
    """One token a byte; texts end with the end token, and are padded with `pad`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: n for n, token in enumerate(["<|end|>", "<pad>", *alphabet])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevel()
    kind: Any = transformers.PreTrainedTokenizerFast
    fast = kind(
        tokenizer_object=backend,
        eos_token="<|end|>",
        pad_token=pad,
        padding_side=side,
        truncation_side=cuts,
        chat_template=TEMPLATE,
    )
    fast.add_special_tokens({"additional_special_tokens": ["<|end|>", "<pad>"]})
    return fast


def llama(into: Path, *, labels: int = 1, kind: str = "SequenceClassification", seed: int = 0, **config: Any) -> Path:
    """A Llama with a head on its last token, or on every token."""
    settings = transformers.LlamaConfig(**{**SHAPE, "num_labels": labels} | config)
    return saved(random(getattr(transformers, f"LlamaFor{kind}"), settings, seed=seed), into)


def gpt2(into: Path, *, side: str) -> Path:
    """A GPT-2, whose positions are learned."""
    config = transformers.GPT2Config(
        vocab_size=ROWS, n_positions=LONGEST, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3,
        eos_token_id=END, bos_token_id=None, pad_token_id=PAD, num_labels=1,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return saved(random(transformers.GPT2ForSequenceClassification, config), into, side=side)


def random(kind: Any, config: Any, *, seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind(config)


def saved(model: Any, into: Path, **of_tokenizer: str) -> Path:
    with quiet_transformers():
        model.save_pretrained(into)
    tokenizer(**of_tokenizer).save_pretrained(into)
    return into


def retokenized(folder: Path, **of_tokenizer: str) -> Path:
    """The same weights beside another tokenizer."""
    tokenizer(**of_tokenizer).save_pretrained(folder)
    return folder


def reconfigured(folder: Path, **config: Any) -> Path:
    """The same weights under another configuration."""
    settings = transformers.AutoConfig.from_pretrained(folder)
    for name, value in config.items():
        setattr(settings, name, value)
    settings.save_pretrained(folder)
    return folder


def without_head(folder: Path) -> Path:
    """The same files without the weights of the head, as after a merge that saved another class."""
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - of these tests alone

    for file in folder.glob("*.safetensors"):
        kept = {name: tensor for name, tensor in load_file(file).items() if "score" not in name}
        save_file(kept, file, metadata={"format": "pt"})
    return folder


def adapter(base: Path, into: Path, *, task: str | None = "SEQ_CLS") -> Path:
    """A LoRA adapter of a reward model. Only as a sequence classifier does it keep the head among its own weights."""
    import peft  # noqa: PLC0415 - of one test alone

    with quiet_transformers(), torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(2)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(base)
        config = peft.LoraConfig(task_type=task, r=2, target_modules=["q_proj"], init_lora_weights=False)
        peft.get_peft_model(model, config).save_pretrained(str(into))
    return into

"""Tiny policies and their references, random and always the same, and a training step that moves a policy."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "eos_token_id": 0,
    "bos_token_id": None,
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """For models this small, waking another one takes longer than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def llama(seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(SHAPE | changes))).eval()


def gpt2(seed: int = 0, *, dropout: float) -> Any:
    """Its dropout is in modules, and in a function of its attention."""
    torch.manual_seed(seed)
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.4, **drops
    )
    return transformers.GPT2LMHeadModel(config).eval()


def frozen(model: Any) -> Any:
    return copy.deepcopy(model).requires_grad_(False)


def with_lora(model: Any, *, trained: bool = False, **options: Any) -> Any:
    """The model with an adapter that is the identity, or one that was trained."""
    with warnings.catch_warnings(action="ignore"):  # PEFT asks Transformers for an old name
        import peft  # noqa: PLC0415

        torch.manual_seed(3)
        config = peft.LoraConfig(
            r=2, target_modules=["q_proj", "v_proj", "c_attn"][: 3 if hasattr(model, "transformer") else 2],
            init_lora_weights=not trained, **options,
        )  # fmt: skip
        return peft.get_peft_model(model, config).eval()


def stepped(model: Any, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    """One update towards random ids, in train mode, as trainers leave a model."""
    model.train()
    ids = torch.randint(1, 64, (2, 8), generator=torch.Generator().manual_seed(seed))
    model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()

"""Tiny random models, one with absolute and one with rotary positions, and fixed sequences to read with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel

from onepolicy.engines.spec import parse_spec
from onepolicy.judgement.load import load_limits
from onepolicy.numerics.legs.ladder import Ladder, Rung
from onepolicy.workflow.legs import LegsRequest, legs

END = 0
VOCABULARY = 300
LONGEST = 512
WIDTH = 32


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost more than they give on models this small, and a lot more on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rotary(path: Path, **changes: Any) -> Path:
    """A Llama. Its logits are peaked, as a trained model's are."""
    config = transformers.LlamaConfig(
        **{
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
            "tie_word_embeddings": False,
            **changes,
        }
    )
    return saved(transformers.LlamaForCausalLM, config, path)


def absolute(path: Path, *, dropout: float = 0.0) -> Path:
    """A GPT-2, whose positions are learned."""
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
    return saved(transformers.GPT2LMHeadModel, config, path)


def saved(kind: Any, config: Any, path: Path) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config)
    model.generation_config = transformers.GenerationConfig(eos_token_id=END)
    model.save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def tokenizer() -> Any:
    """One token a byte, and <|end|>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: n for n, token in enumerate(["<|end|>", *alphabet])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


def suite(path: Path, *, count: int = 16, inside: str = "") -> Path:
    """Sequences of many lengths; `inside` stands in the completions of every second one."""
    lines = [
        {
            "id": f"s{n:02}",
            "prompt": f"{n}: " + "the rain in spain, "[: 3 + 5 * n % 17],
            "completion": f"{n} of {count} "
            + (inside if n % 2 else "")
            + " stays mainly in the plain"[: 12 + 7 * n % 14],
        }
        for n in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def climbed(
    folder: Path, spec: str, *, limits: str = "strict", against: dict[str, str] | None = None, **more: Any
) -> Ladder:
    """The ladder of an engine on a suite in `folder`, which is written if it is not there."""
    file = folder / "suite.jsonl"
    run = more.pop("run", folder / "run")
    there = (run / "manifest.json").exists()
    request = LegsRequest(
        engine=parse_spec(spec),
        against={name: parse_spec(one) for name, one in (against or {}).items()},
        suite=None if there else str(file if file.exists() else suite(file)),
        limits=load_limits(limits),
        **more,
    )
    return legs(request, path=run)


def rung(ladder: Ladder, name: str) -> Rung:
    return next(one for one in ladder.rungs if one.name == name)


def planted(folder: Path, model: Path, fault: str) -> str:
    """The spec of a function of `leg_faults` that scores with this model."""
    file = folder / f"{fault}.py"
    file.write_text(
        f"from leg_faults import {fault}, loaded\n\nMODEL = loaded({str(model)!r})\n\n\n"
        f"def score(token_ids):\n    return {fault}(MODEL, token_ids)\n"
    )
    return f"callable:{file}:score"

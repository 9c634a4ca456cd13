"""A tiny random Llama in a folder, opened as an engine, and sequences for it."""

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel

from onepolicy.engines.contract import SampleInput, ScoreInput
from onepolicy.engines.spec import EngineSpec
from onepolicy.integrations import open_engine

END = 0
VOCABULARY_SIZE = 300
LONGEST = 64
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)


def tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: n for n, token in enumerate(["<|end|>", *alphabet])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


def copied(folder, into):
    into.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    return into


def opened(target, **options):
    spec = EngineSpec(engine="transformers", target=str(target), options={k: str(v) for k, v in options.items()})
    return open_engine(spec)


def exact_logprobs(model, ids):
    """[T - 1, V] of the tokens from the second on, from the whole sequence alone."""
    with torch.no_grad():
        return model(torch.tensor([list(ids)])).logits[0].double().log_softmax(-1)[:-1].numpy()


def sequences(*lengths, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.integers(8, VOCABULARY_SIZE, size=length).astype(np.int32) for length in lengths]


def asked(ids, *, start=1, rollout_id="r-0", **fields):
    wanted = np.arange(len(ids)) >= start
    return ScoreInput(rollout_id=rollout_id, token_ids=ids, wanted=wanted, **fields)


def prompt(ids=(20, 30, 40), *, rollout_id="r-0", seed=0, **fields):
    return SampleInput(rollout_id=rollout_id, prompt_ids=np.asarray(ids, dtype=np.int32), seed=seed, **fields)

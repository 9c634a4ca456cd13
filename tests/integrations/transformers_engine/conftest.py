"""A tiny random Llama: its folder, the engine on it, and the model itself."""

import pytest
import torch
import transformers
from tiny_model import END, LONGEST, VOCABULARY_SIZE, opened, tokenizer


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads cost more than they give on models this small, and a lot more on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved random Llama whose generation config would change what is sampled, with a byte-level tokenizer."""
    path = tmp_path_factory.mktemp("model") / "tiny"
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LONGEST,
        initializer_range=0.4,
        eos_token_id=END,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=[END, 7], do_sample=True, top_k=3, temperature=0.5, repetition_penalty=1.8
    )
    model.save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def engine(folder):
    return opened(folder)


@pytest.fixture(scope="module")
def plain(folder):
    """The same model loaded without the engine, in float64."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()

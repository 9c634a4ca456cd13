"""A random Llama of 256 byte tokens as a GGUF file; its output is full of broken characters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from onepolicy.tokens.pieces import byte_alphabet

END = 256
VOCABULARY_SIZE = 288
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)


def tiny_model() -> Any:
    """Float32, on the CPU."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).eval()


def write_gguf(model: Any, path: Path, *, add_bos: bool = False) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_file_type(0)
    tokens = [char for char, _ in sorted(byte_alphabet().items(), key=lambda pair: pair[1])]
    extra = ["<|end|>", *(f"<|{n}|>" for n in range(VOCABULARY_SIZE - END - 2)), "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens + extra)
    writer.add_token_types([1] * 256 + [3] * (len(extra) - 1) + [1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(END)
    writer.add_bos_token_id(END)
    writer.add_add_bos_token(add_bos)
    writer.add_chat_template(("{{ bos_token }}" if add_bos else "") + TEMPLATE)
    for name, values in model.state_dict().items():
        writer.add_tensor(gguf_name(name), gguf_values(name, values.numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    if name in names:
        return names[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{parts[part]}.weight"


def gguf_values(name: str, values: np.ndarray, config: Any) -> np.ndarray:
    """Rotary pairs are neighbours in GGUF and halves in Transformers."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if part in name:
            split = values.reshape(count, 2, -1, values.shape[1])
            return np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))
    return values

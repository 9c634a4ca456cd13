"""llama.cpp's names for the fields of a protocol, and for what a protocol leaves out. Source: see protocol.py."""

from __future__ import annotations

from typing import Any

from onepolicy.sampling.layers import Elsewhere, words
from onepolicy.sampling.spellings import Setting, finite, listed, texts


def _not_below_zero(value: Any, where: str) -> float:
    """Temperatures below 0 are greedy too."""
    return max(finite(value, where), 0.0)


def _kept(value: Any, where: str) -> Any:
    """Any top_k below 1 keeps all tokens."""
    return 0 if isinstance(value, int) and not isinstance(value, bool) and value < 0 else value


SETTINGS = (
    Setting(theirs="temperature", field="temperature", read=_not_below_zero),
    Setting(theirs="top_k", field="top_k", off=(0,), read=_kept),
    Setting(theirs="top_p", field="top_p"),
    Setting(theirs="min_p", field="min_p"),
    Setting(theirs="repeat_penalty", field="repetition_penalty"),
    Setting(theirs="presence_penalty", field="presence_penalty"),
    Setting(theirs="frequency_penalty", field="frequency_penalty"),
    Setting(theirs="repeat_last_n", field="penalty_window"),
    Setting(theirs="n_cmpl", field="samples_per_prompt"),
    Setting(theirs="stop", field="stop", read=texts, write=listed),
    Setting(theirs="ignore_eos", field="ignore_eos"),
)
FLAGS = (Setting(theirs="chat_template", field="chat_template"),)
DEFAULTS: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repeat_last_n": 64,
    "n_cmpl": 1,
    "ignore_eos": False,
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
}
NAMES = {"temp": "temperature", "typical": "typ_p", "typical_p": "typ_p", "nucleus": "top_p"}
LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}
NOT_OURS = frozenset({"dry", "top_n_sigma", "typ_p", "xtc", "infill", "adaptive_p"})
"""samplers that are off unless a setting of theirs is on"""
KNOWN = {setting.theirs for setting in (*SETTINGS, *FLAGS)} | {
    "samplers",
    "sampler_seq",
    "n_predict",
    "n_ctx",
    "ctx_size",
    "seed",
    "grammar",
    "json_schema",
    "post_sampling_probs",
    "parallel",
}
REQUEST_ALIASES = {
    "max_tokens": "n_predict",
    "max_completion_tokens": "n_predict",
    "n": "n_cmpl",
    "typ_p": "typical_p",
}
ALIASES = {
    "temp": "temperature",
    "n": "n_predict",
    "predict": "n_predict",
    "s": "seed",
    "c": "ctx_size",
    "np": "parallel",
    "typical": "typical_p",
    "typ_p": "typical_p",
    "top_nsigma": "top_n_sigma",
    "sampling_seq": "sampler_seq",
    "j": "json_schema",
    "l": "logit_bias",
    "m": "model",
    "t": "threads",
    "tb": "threads_batch",
    "b": "batch_size",
    "ub": "ubatch_size",
    "fa": "flash_attn",
    "ngl": "gpu_layers",
    "n_gpu_layers": "gpu_layers",
    "ctk": "cache_type_k",
    "ctv": "cache_type_v",
    "hf": "hf_repo",
    "a": "alias",
    "cb": "cont_batching",
}
NEUTRAL: dict[str, Any] = {
    "dynatemp_range": 0.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "typical_p": 1.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
    "min_keep": 0,
    "logit_bias": [],
}
_CHANGING: dict[str, tuple[Any, ...]] = {
    **{name: (value,) for name, value in NEUTRAL.items()},
    "logit_bias": ([], {}, ""),
    "t_max_predict_ms": (0,),
    "n_indent": (0,),
    "lora": ([],),
}
ELSEWHERE = Elsewhere(
    silent=words(
        "prompt messages model stream cache_prompt id_slot return_tokens n_probs n_keep n_cache_reuse n_discard "
        "timings_per_token return_progress response_fields dynatemp_exponent xtc_threshold dry_base dry_allowed_length "
        "dry_penalty_last_n dry_sequence_breakers mirostat_tau mirostat_eta adaptive_decay max_tokens is_processing id "
        "speculative chat_format reasoning_format reasoning_in_content generation_prompt thinking_forced_open "
        "preserved_tokens grammar_triggers grammar_lazy next_token backend_sampling logprobs top_logprobs id_task "
        "n_past cache_ram input_prefix input_suffix"
    ),
    neutral=_CHANGING,
)
FLAGS_ELSEWHERE = Elsewhere(
    silent=ELSEWHERE.silent
    | words(
        "host port model alias hf_repo hf_file model_url threads threads_batch batch_size ubatch_size flash_attn "
        "gpu_layers split_mode tensor_split main_gpu no_mmap mlock numa device cont_batching metrics slots props "
        "api_key log_disable verbose verbosity log_file log_verbosity offline jinja no_webui embeddings cache_type_k "
        "cache_type_v keep fit mmap kv_offload kv_unified webui warmup perf timeout special escape"
    ),
    neutral={
        **_CHANGING,
        "grammar_file": (),
        "json_schema_file": (),
        "chat_template_file": (),
        "context_shift": (False,),
    },
)

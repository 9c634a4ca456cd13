"""SGLang's names for the fields of a protocol, and for what a protocol leaves out. Source: see protocol.py."""

from __future__ import annotations

from onepolicy.sampling.layers import Elsewhere, words
from onepolicy.sampling.spellings import Kind, Setting, ids, listed, texts

_SHARED = (
    Setting(theirs="temperature", field="temperature"),
    Setting(theirs="top_p", field="top_p"),
    Setting(theirs="top_k", field="top_k", off=(-1, 1 << 30)),
    Setting(theirs="min_p", field="min_p"),
    Setting(theirs="repetition_penalty", field="repetition_penalty"),
    Setting(theirs="presence_penalty", field="presence_penalty"),
    Setting(theirs="frequency_penalty", field="frequency_penalty"),
    Setting(theirs="n", field="samples_per_prompt"),
    Setting(theirs="stop", field="stop", read=texts, write=listed),
    Setting(theirs="stop_token_ids", field="stop_token_ids", read=ids, write=listed),
    Setting(theirs="ignore_eos", field="ignore_eos"),
)
NATIVE = (*_SHARED, Setting(theirs="min_new_tokens", field="min_new_tokens"))
OPENAI = (*_SHARED, Setting(theirs="min_tokens", field="min_new_tokens"))
NATIVE_DEFAULTS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "n": 1,
    "ignore_eos": False,
}
FROM_MODEL = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")
"""what the OpenAI endpoints take from the model's generation config"""
KINDS: dict[str, Kind] = {
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf": "grammar",
}
ELSEWHERE = Elsewhere(
    silent=words(
        "model text input_ids prompt messages stream stream_options stream_interval echo logprobs top_logprobs user "
        "rid return_logprob logprob_start_len top_logprobs_num token_ids_logprob return_text_in_logprobs "
        "return_prompt_token_ids return_hidden_states skip_special_tokens spaces_between_special_tokens no_stop_trim "
        "stop_strs stop_regex_strs stop_str_max_len stop_regex_max_len is_normalized session_params response_format "
        "chat_template_kwargs separate_reasoning stream_reasoning priority sampling_params lora_path"
    ),
    neutral={
        "logit_bias": ({},),
        "stop_regex": ("", []),
        "structural_tag": (),
        "custom_params": ({},),
        "custom_logit_processor": (),
        "tools": ([],),
        "continue_final_message": (False,),
        "best_of": (1,),
        "suffix": ("",),
    },
)
FLAGS = (
    Setting(theirs="context_length", field="max_total_tokens"),
    Setting(theirs="dtype", field="dtype", off=(None, "auto")),
    Setting(theirs="chat_template", field="chat_template"),
)
OTHER_FLAGS = words(
    "context_length dtype chat_template sampling_defaults preferred_sampling_params allow_auto_truncate "
    "sampling_backend random_seed"
)
ALIASES = {
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "model": "model_path",
}
FLAGS_ELSEWHERE = Elsewhere(
    silent=words(
        "model_path tokenizer_path host port served_model_name api_key tp_size dp_size ep_size pp_size "
        "mem_fraction_static max_running_requests max_total_tokens chunked_prefill_size max_prefill_tokens device "
        "trust_remote_code load_format revision log_level disable_radix_cache disable_cuda_graph cuda_graph_max_bs "
        "attention_backend enable_metrics enable_deterministic_inference rl_on_policy_target enable_memory_saver "
        "base_gpu_id nnodes node_rank dist_init_addr weight_version grammar_backend reasoning_parser tool_call_parser "
        "skip_server_warmup page_size schedule_policy schedule_conservativeness kv_cache_dtype quantization"
    ),
    neutral={"tokenizer_mode": ("auto",), "speculative_algorithm": (), "enable_custom_logit_processor": (False,)},
)

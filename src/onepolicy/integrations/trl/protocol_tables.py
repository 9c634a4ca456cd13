"""TRL's names for the fields of a protocol, and for what a protocol leaves out. Source: see protocol.py."""

from __future__ import annotations

from typing import Any

from onepolicy.records.processors import Processor
from onepolicy.sampling.layers import Elsewhere, words
from onepolicy.sampling.spellings import Setting, ids, listed, texts

VLLM_ORDER: tuple[Processor, ...] = ("penalties", "temperature", "min_p", "top_k", "top_p")
TRANSFORMERS_ORDER: tuple[Processor, ...] = ("penalties", "temperature", "top_k", "top_p", "min_p")
SETTINGS = (
    Setting(theirs="temperature", field="temperature"),
    Setting(theirs="top_p", field="top_p"),
    Setting(theirs="top_k", field="top_k", off=(0, -1)),
    Setting(theirs="min_p", field="min_p"),
    Setting(theirs="repetition_penalty", field="repetition_penalty"),
    Setting(theirs="num_generations", field="samples_per_prompt"),
    Setting(theirs="vllm_max_model_length", field="max_total_tokens"),
)
KWARGS_SETTINGS = (
    Setting(theirs="presence_penalty", field="presence_penalty"),
    Setting(theirs="frequency_penalty", field="frequency_penalty"),
    Setting(theirs="min_new_tokens", field="min_new_tokens"),
    Setting(theirs="stop", field="stop", read=texts, write=listed),
    Setting(theirs="stop_token_ids", field="stop_token_ids", read=ids, write=listed),
    Setting(theirs="ignore_eos", field="ignore_eos"),
)
"""in generation_kwargs alone"""
KWARGS_SPELLINGS = {
    "max_tokens": "max_completion_length",
    "max_new_tokens": "max_completion_length",
    "min_tokens": "min_new_tokens",
    "stop_strings": "stop",
    "eos_token_id": "stop_token_ids",
}
"""names in generation_kwargs -> one name for both samplers"""
DEFAULTS: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "num_generations": 8,
    "max_completion_length": 512,
}
KWARGS_NAMES = (
    {setting.theirs for setting in (*SETTINGS, *KWARGS_SETTINGS)}
    | {"max_completion_length", "structured_outputs", "do_sample"}
) - {"num_generations", "vllm_max_model_length"}
KWARGS_ELSEWHERE = Elsewhere(
    silent=words(
        "logprobs detokenize skip_special_tokens spaces_between_special_tokens include_stop_str_in_output output_kind "
        "cache_implementation disable_compile use_cache pad_token_id bos_token_id"
    ),
    neutral={
        "n": (1,),
        "num_return_sequences": (1,),
        "typical_p": (1.0,),
        "no_repeat_ngram_size": (0,),
        "num_beams": (1,),
        "bad_words": ([],),
        "logit_bias": ({},),
        "seed": (),
        "allowed_token_ids": (),
    },
)
ELSEWHERE = Elsewhere(
    silent=words(
        "num_generations_eval steps_per_generation generation_batch_size ds3_gather_for_generation data_seed "
        "vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host vllm_server_port "
        "vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization vllm_tensor_parallel_size "
        "vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_importance_sampling_clip_max "
        "vllm_importance_sampling_clip_min vllm_importance_sampling_cap sapo_temperature_neg sapo_temperature_pos "
        "mask_truncated_completions top_entropy_quantile num_completions_to_print log_unique_prompts "
        "importance_sampling_level hub_token push_to_hub_token include_num_input_tokens_seen include_tokens_per_second "
        "length_column_name group_by_length train_sampling_strategy vespo_k_neg shuffle_dataset "
        "average_tokens_across_devices logging_strategy off_policy_mask_threshold multi_objective_aggregation"
    ),
    neutral={"chat_template_kwargs": ({}, ""), "cache_implementation": ()},
)

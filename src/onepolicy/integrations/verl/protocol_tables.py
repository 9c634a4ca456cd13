"""verl's names for the fields of a protocol, and for what a protocol leaves out. Source: see protocol.py."""

from __future__ import annotations

from typing import Any

from onepolicy.records.processors import Processor
from onepolicy.sampling.layers import Elsewhere, words
from onepolicy.sampling.spellings import Setting

ORDERS: dict[str, tuple[Processor, ...]] = {
    "vllm": ("penalties", "temperature", "min_p", "top_k", "top_p"),
    "sglang": ("penalties", "temperature", "top_p", "top_k", "min_p"),
    "hf": ("penalties", "temperature", "top_k", "top_p", "min_p"),
    "trtllm": ("temperature", "penalties", "top_k", "top_p", "min_p"),
}
VALIDATION_SETTINGS = (
    Setting(theirs="temperature", field="temperature"),
    Setting(theirs="top_p", field="top_p"),
    Setting(theirs="top_k", field="top_k", off=(-1, 0)),
    Setting(theirs="n", field="samples_per_prompt"),
)
SETTINGS = (
    *VALIDATION_SETTINGS,
    Setting(theirs="ignore_eos", field="ignore_eos"),
    Setting(theirs="dtype", field="dtype", off=("auto",)),
    Setting(theirs="max_model_len", field="max_total_tokens"),
)
DEFAULTS: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "n": 1,
    "ignore_eos": False,
    "dtype": "bfloat16",
}
VALIDATION_DEFAULTS: dict[str, Any] = {"temperature": 0, "top_p": 1.0, "top_k": -1, "n": 1}
KNOWN = {setting.theirs for setting in SETTINGS} | {
    "name",
    "prompt_length",
    "response_length",
    "logprobs_mode",
    "calculate_log_probs",
    "repetition_penalty",
    "seed",
    "full_determinism",
    "do_sample",
    "val_kwargs",
}
ELSEWHERE = Elsewhere(
    silent=words(
        "_target_ mode nnodes n_gpus_per_node over_sample_rate gpu_memory_utilization "
        "standalone_gpu_memory_utilization "
        "enforce_eager cudagraph_capture_sizes free_cache_engine data_parallel_size expert_parallel_size "
        "tensor_model_parallel_size pipeline_model_parallel_size moe_tensor_parallel_size max_num_batched_tokens "
        "scheduling_policy max_num_seqs log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu "
        "log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu disable_log_stats multi_stage_wake_up agent trace "
        "multi_turn server prometheus checkpoint_manager_class checkpoint_engine profiler enable_chunked_prefill "
        "enable_prefix_caching load_format layered_summon layer_name_map sglang_engine_mode limit_images "
        "skip_tokenizer_init enable_rollout_routing_replay moe_load_balance_metrics_interval enable_sleep_mode mtp qat "
        "disaggregation router_config_path"
    ),
    neutral={
        "engine_kwargs": ({}, {"vllm": {}}, {"vllm": {}, "sglang": {}}, {"vllm": {}, "sglang": {}, "trtllm": {}}),
        "quantization": (),
        "quantization_config_file": (),
        "custom": ({},),
    },
)
DATA_KNOWN = {"max_prompt_length", "max_response_length", "truncation"}
DATA_ELSEWHERE = Elsewhere(
    silent=words(
        "tokenizer use_shm train_files val_files train_max_samples val_max_samples prompt_key reward_fn_key "
        "train_batch_size gen_batch_size val_batch_size tool_config_path function_tool_path return_raw_input_ids "
        "return_raw_chat return_full_prompt shuffle seed dataloader_num_workers image_patch_size validation_shuffle "
        "filter_overlong_prompts filter_overlong_prompts_workers image_key video_key audio_key trust_remote_code "
        "custom_cls return_multi_modal_inputs mm_processor_kwargs sampler datagen video_fps cache_dir"
    ),
    neutral={"apply_chat_template_kwargs": ({},)},
)

"""vLLM's names for the fields of a protocol, and for what a protocol leaves out. Source: see protocol.py."""

from __future__ import annotations

from onepolicy.records.processors import Processor
from onepolicy.sampling.layers import Elsewhere, words
from onepolicy.sampling.spellings import Kind, Setting, ids, listed, one_of, texts

KINDS: dict[str, Kind] = {
    "json": "json_schema",
    "regex": "regex",
    "grammar": "grammar",
}
LOWEST_TEMPERATURE = 0.01
"""what a lower temperature is raised to, but for 0"""
HIGHEST_TEMPERATURE = 2.0
ORDER: tuple[Processor, ...] = ("penalties", "temperature", "min_p", "top_k", "top_p")
PARAMS = (
    Setting(theirs="temperature", field="temperature"),
    Setting(theirs="top_p", field="top_p"),
    Setting(theirs="top_k", field="top_k", off=(0, -1)),
    Setting(theirs="min_p", field="min_p"),
    Setting(theirs="repetition_penalty", field="repetition_penalty"),
    Setting(theirs="presence_penalty", field="presence_penalty"),
    Setting(theirs="frequency_penalty", field="frequency_penalty"),
    Setting(theirs="min_tokens", field="min_new_tokens"),
    Setting(theirs="n", field="samples_per_prompt"),
    Setting(theirs="stop", field="stop", read=texts, write=listed),
    Setting(theirs="stop_token_ids", field="stop_token_ids", read=ids, write=listed),
    Setting(theirs="ignore_eos", field="ignore_eos"),
)
SEED = Setting(theirs="seed", field="seed")
COMPLETIONS = PARAMS
CHAT = (
    *PARAMS,
    Setting(theirs="add_generation_prompt", field="add_generation_prompt"),
)
NEUTRAL_DEFAULTS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "n": 1,
    "ignore_eos": False,
}
FROM_MODEL = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "max_new_tokens",
)
"""what a server takes from a generation config for requests that leave it out"""
MODEL_SILENT = words(
    "_from_model_config transformers_version bos_token_id pad_token_id eos_token_id do_sample "
    "decoder_start_token_id max_length use_cache"
)
REQUEST_EXTRA = {
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "add_special_tokens",
    "structured_outputs",
    "response_format",
    "chat_template",
}
ELSEWHERE = Elsewhere(
    silent=words(
        "model prompt messages stream stream_options stream_interval echo logprobs top_logprobs prompt_logprobs "
        "user request_id session_id priority cache_salt skip_special_tokens spaces_between_special_tokens "
        "detokenize include_stop_str_in_output output_kind flat_logprobs logprob_token_ids prompt_logprob_token_ids "
        "prompt_logprob_start return_token_ids return_tokens_as_token_ids return_token_offsets return_prompt_text "
        "return_mm_kwargs mm_payload kv_transfer_params ec_transfer_params length_penalty skip_clone "
        "skip_reading_prefix_cache output_text_buffer_length routed_experts_prompt_start include_reasoning "
        "parallel_tool_calls media_io_kwargs"
    ),
    neutral={
        "logit_bias": ({}, []),
        "allowed_token_ids": (),
        "bad_words": ([],),
        "use_beam_search": (False,),
        "watermarking": (False,),
        "thinking_token_budget": (-1,),
        "repetition_detection": (),
        "extra_args": ({},),
        "vllm_xargs": ({},),
        "trace_decode_token_ids": (),
        "suffix": ("",),
        "best_of": (1,),
        "tools": ([],),
        "tool_choice": ("none",),
        "reasoning_effort": (),
        "documents": ([],),
        "chat_template_kwargs": ({},),
        "continue_final_message": (False,),
        "mm_processor_kwargs": ({},),
        "prompt_embeds": (),
    },
)
FLAGS = (
    Setting(
        theirs="logprobs_mode",
        field="logprobs",
        read=one_of({"raw_logprobs": "raw", "processed_logprobs": "processed"}),
        write=lambda ours: f"{ours}_logprobs",
    ),
    Setting(theirs="dtype", field="dtype", off=(None, "auto")),
    Setting(theirs="chat_template", field="chat_template"),
)
ALIASES = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size"}
FLAGS_ELSEWHERE = Elsewhere(
    silent=words(
        "model host port uds grpc_port served_model_name generation_config max_model_len seed uvicorn_log_level "
        "log_level api_key help tensor_parallel_size pipeline_parallel_size data_parallel_size "
        "data_parallel_size_local data_parallel_address data_parallel_rpc_port data_parallel_rank "
        "data_parallel_backend decode_context_parallel_size prefill_context_parallel_size enable_expert_parallel "
        "enable_eplb eplb_config gpu_memory_utilization device_memory_utilization kv_cache_memory_bytes "
        "num_gpu_blocks_override max_num_seqs max_num_batched_tokens long_prefill_token_threshold "
        "max_parallel_loading_workers enforce_eager max_logprobs enable_prefix_caching prefix_caching_hash_algo "
        "enable_chunked_prefill async_scheduling scheduling_policy scheduler_cls stream_interval block_size "
        "attention_backend moe_backend all2all_backend compilation_config cudagraph_capture_sizes "
        "max_cudagraph_capture_size optimization_level performance_mode kernel_config disable_cascade_attn "
        "disable_custom_all_reduce cpu_offload_gb swap_space kv_transfer_config kv_events_config ec_transfer_config "
        "weight_transfer_config enable_sleep_mode trust_remote_code download_dir load_format "
        "model_loader_extra_config safetensors_load_strategy revision code_revision tokenizer_revision hf_token "
        "hf_config_path config_format model_impl runner convert nnodes node_rank master_addr master_port device_ids "
        "distributed_executor_backend worker_cls worker_extension_cls enable_lora lora_modules max_loras "
        "max_lora_rank max_cpu_loras lora_dtype fully_sharded_loras limit_mm_per_prompt media_io_kwargs "
        "mm_encoder_tp_mode mm_processor_cache_gb skip_mm_profiling disable_log_stats disable_log_requests "
        "enable_log_requests enable_log_outputs max_log_len collect_detailed_traces otlp_traces_endpoint "
        "shutdown_timeout allowed_origins allowed_methods allowed_headers allow_credentials middleware root_path "
        "ssl_keyfile ssl_certfile ssl_ca_certs enable_prompt_tokens_details enable_scale_out enable_trace_replay "
        "enable_return_routed_experts enable_server_load_tracking enable_force_include_usage "
        "enable_tokenizer_info_endpoint return_sampling_mask enable_auto_tool_choice tool_call_parser "
        "tool_parser_plugin reasoning_parser reasoning_parser_plugin chat_template_content_format "
        "trust_request_chat_template response_role use_fp64_gumbel return_tokens_as_token_ids "
        "disable_uvicorn_access_log renderer_num_workers profiler_config tokens_only"
    ),
    neutral={
        "tokenizer_mode": ("auto",),
        "tokenizer": (),
        "logits_processors": ([],),
        "speculative_config": ({},),
        "spec_method": (),
        "spec_model": (),
        "watermark": (),
        "watermark_config": ({},),
        "default_chat_template_kwargs": ({},),
        "hf_overrides": ({},),
        "quantization": (),
        "quantization_config": ({},),
        "kv_cache_dtype": ("auto",),
        "reasoning_config": ({},),
        "structured_outputs_config": ({},),
        "disable_sliding_window": (False,),
    },
)
"""seed is of the engine: a request without one draws from it in the order in which requests arrive"""
OVERRIDE_ELSEWHERE = Elsewhere(silent=frozenset({"eos_token_id", "bos_token_id", "pad_token_id", "do_sample"}))

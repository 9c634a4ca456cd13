"""The user's own scoring function as an engine: how FSDP, Megatron and DeepSpeed join."""

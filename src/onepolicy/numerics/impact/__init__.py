"""What the mismatch of two readings does to PPO and GRPO: clipping, weights, and what each correction would do."""

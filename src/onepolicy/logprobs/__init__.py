"""The reference logprobs: torch functions that other engines are measured against."""

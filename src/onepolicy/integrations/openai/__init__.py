"""Any server that speaks OpenAI's `/v1/completions` and returns token ids."""

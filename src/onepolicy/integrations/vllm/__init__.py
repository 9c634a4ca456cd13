"""vLLM's OpenAI-style server, given a URL."""

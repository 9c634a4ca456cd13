"""SGLang over HTTP, by its own API."""

"""llama.cpp's HTTP server: of a GGUF file in this process, or one that is already running."""

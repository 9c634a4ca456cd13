"""TensorRT-LLM (`trtllm-serve`) over HTTP."""

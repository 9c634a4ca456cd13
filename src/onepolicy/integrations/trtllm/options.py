"""What a `trtllm:` spec may say."""

from __future__ import annotations

from onepolicy.engines.http import ServerOptions


class TrtllmOptions(ServerOptions):
    """Options of the engine `trtllm`."""

    model: str = ""
    """name of the model to ask for; needed only if the server has several"""
    tokenizer: str = ""
    """folder, `tokenizer.json` or GGUF file of the model's tokenizer and chat template; needed, as the server encodes
    nothing that it would show"""
    dtype: str = ""
    """of weights and activations; the server does not say"""

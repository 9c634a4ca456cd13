"""Stand-in servers: real sockets that speak the recorded shapes of vLLM, SGLang, TensorRT-LLM and OpenAI-style servers.

The model behind them has the weights of the engine `fake` with the same seed, so a server can be compared with it; what
is computed from them here (softmax, truncation, draws) shares no code with the package. Every field that a client
leaves out has a default that bites, as real servers take theirs from the model's folder.

    with standing_in(Sglang(model="m")) as server:
        open_engine(parse_spec(f"sglang:{server.url}"))
        server.requests     # (method, path, body) of everything that was asked
"""

from standin.asking import asked, given, spec_of
from standin.completions import OpenAiShaped
from standin.dialect import BITING, Asked, Dialect, Drawn, Faults, Json, Reply, refused
from standin.model import END, LOWEST, TinyModel, floored, ids_of, rendered, text_of, top_of, truncated
from standin.openai import OPENAI, OpenAi
from standin.server import StandIn, standing_in
from standin.sglang import Sglang
from standin.trtllm import STRICT, Trtllm
from standin.vllm import Vllm

__all__ = [
    "BITING",
    "END",
    "LOWEST",
    "OPENAI",
    "STRICT",
    "Asked",
    "Dialect",
    "Drawn",
    "Faults",
    "Json",
    "OpenAi",
    "OpenAiShaped",
    "Reply",
    "Sglang",
    "StandIn",
    "TinyModel",
    "Trtllm",
    "Vllm",
    "asked",
    "floored",
    "given",
    "ids_of",
    "refused",
    "rendered",
    "spec_of",
    "standing_in",
    "text_of",
    "top_of",
    "truncated",
]

"""A Transformers model on one rank: whole, sharded by FSDP2, or split by its tensor-parallel plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from onepolicy.engines.options import read_options
from onepolicy.engines.parallel import Layout, LayoutUnavailableError, RankLogits
from onepolicy.engines.spec import EngineSpec
from onepolicy.engines.threads import sleeping_threads
from onepolicy.errors import EngineError, MissingExtraError, UsageError
from onepolicy.integrations.transformers.options import TransformersOptions
from onepolicy.records.tokens import IntArray

try:
    with sleeping_threads():  # ranks share the cores
        import torch
    from torch import distributed
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    from onepolicy.integrations.transformers.load import Loaded, load
    from onepolicy.integrations.transformers.parallel_plan import tensor_parallel_plan
    from onepolicy.integrations.transformers.target import model_folder
    from onepolicy.logprobs.bits import bits_of
except ImportError as error:
    if (error.name or "").startswith("onepolicy"):
        raise  # a fault of ours, not a package to install
    raise MissingExtraError(
        package=error.name or "transformers", extra="transformers", needed_for="a Transformers model on several ranks"
    ) from error

_KINDS = ("fsdp", "tp")


class TransformersRank:
    """A model on this rank, in eval mode."""

    def __init__(self, loaded: Loaded, *, notes: Sequence[str] = ()) -> None:
        self.notes = tuple(notes)
        self._loaded = loaded

    def logits(self, token_ids: IntArray, *, name: str) -> RankLogits:
        """Of one forward pass over the sequence alone. Raises: EngineError if it is too long, or has unknown ids."""
        loaded = self._loaded
        if loaded.max_length is not None and len(token_ids) > loaded.max_length:
            raise EngineError(
                f"sequence {name}: {len(token_ids)} tokens, and the model has {loaded.max_length} places."
            )
        outside = token_ids[(token_ids < 0) | (token_ids >= loaded.vocab_size)]
        if len(outside):
            raise EngineError(f"sequence {name}: has the id {outside[0]}; the model has {loaded.vocab_size}.")
        ids = torch.from_numpy(token_ids.astype(np.int64))[None].to(loaded.model.device)
        with torch.no_grad():
            found = bits_of(loaded.model(input_ids=ids, use_cache=False).logits)
        assert found is not None, "a Transformers model is loaded in a dtype that has bits"
        return found[0][0], found[1]

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Ids of a text. Raises: EngineError if the model came without a tokenizer."""
        if self._loaded.tokenizer is None:
            raise EngineError(
                f"{self._loaded.folder} has no tokenizer, so a suite's text cannot be encoded. Give the ids: --run DIR "
                "of a recorded run, or --ids."
            )
        return self._loaded.tokenizer.encode(text, add_special_tokens=add_special_tokens)


def open_rank(spec: EngineSpec, layout: Layout | None) -> TransformersRank:
    """The model on this rank, which has the variables that torchrun would set.

    Every rank reads the whole model before it keeps its share. Raises: EngineError if it cannot be loaded,
    LayoutUnavailableError if it cannot be spread so.
    """
    options = read_options(spec, TransformersOptions)
    if not options.are_plain:
        raise UsageError(
            f"{spec}: sets how the model is called when it scores, which full logits under several layouts do not "
            "heed. Leave out rows, positions, mask, cache, chunk, packed, mode and head."
        )
    if layout is None:
        return TransformersRank(load(model_folder(spec.target), options))
    device = torch.device(options.device).type
    _check(layout, device)
    if device == "cuda":
        options = options.model_copy(update={"device": f"cuda:{os.environ['LOCAL_RANK']}"})
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    loaded = load(model_folder(spec.target), options)
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    mesh = init_device_mesh(device, (layout.degree,))
    spread = _sharded if layout.kind == "fsdp" else _split
    return TransformersRank(loaded, notes=spread(loaded.model, mesh, layout))


def _check(layout: Layout, device: str) -> None:
    if layout.kind not in _KINDS:
        raise LayoutUnavailableError(
            f"{layout}: Transformers models are spread as {' or '.join(_KINDS)}. Bring another layout with callable:."
        )
    if device == "cuda" and layout.degree > torch.cuda.device_count():
        raise LayoutUnavailableError(
            f"{layout}: needs {layout.degree} GPUs, and torch sees {torch.cuda.device_count()}."
        )


def _sharded(model: Any, mesh: DeviceMesh, layout: Layout) -> tuple[str, ...]:
    """Each decoder layer a unit of FSDP2, and the rest one more, as trainers do."""
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  since torch 2.6
    except ImportError as error:
        raise LayoutUnavailableError(f"{layout}: FSDP2 needs torch 2.6, and this is {torch.__version__}.") from error
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return () if layers else ("the model names no layers, so it is one unit of FSDP2",)


def _split(model: Any, mesh: DeviceMesh, layout: Layout) -> tuple[str, ...]:
    """The model's own plan by torch's DTensor; what does not divide stays whole on every rank."""
    plan = tensor_parallel_plan(model, layout.degree)
    if not plan.styles:
        raise LayoutUnavailableError(
            f"{layout}: nothing of {type(model).__name__} can be split: {'; '.join(plan.whole) or 'it has no plan'}. "
            "Try another degree, or bring the layout with callable:."
        )
    parallelize_module(model, mesh, dict(plan.styles))
    return plan.whole

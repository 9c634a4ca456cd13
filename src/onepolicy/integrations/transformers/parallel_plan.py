"""A model's tensor-parallel plan, as far as torch's own parallel styles can follow it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

_COLUMNS = ("colwise",)
_COLUMNS_GATHERED = ("colwise_gather_output", "colwise_rep")
_ROWS = ("rowwise",)
_ROWS_OF_WHOLE = ("rowwise_split_input", "rowwise_rep")
_AS_IT_IS = ("replicate", "replicated_with_grad_allreduce", "embedding_rowwise", "embedding_colwise")
"""styles of Transformers by what they do in a forward pass; the last change no number in it, as a lookup is exact"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallelPlan:
    """What is split, and what stays whole."""

    styles: Mapping[str, ParallelStyle]
    """name of a module -> how it is split"""
    whole: tuple[str, ...] = ()
    """one sentence for each kind of module that the plan names and that stays whole, with the reason"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Planned:
    name: str
    module: Any
    style: str


@dataclass(slots=True)
class _Found:
    styles: dict[str, ParallelStyle] = field(default_factory=dict)
    whole: dict[str, None] = field(default_factory=dict)
    """sentences, in order and once each"""


def tensor_parallel_plan(model: Any, degree: int) -> TensorParallelPlan:
    """How each module is split over `degree` ranks.

    The modules of one parent (an attention, an MLP) are split together or not at all, as their shards fit only each
    other.
    """
    found = _Found()
    planned = sorted(_planned(model), key=lambda one: _parent(one.name))
    for parent, group in groupby(planned, key=lambda one: _parent(one.name)):
        members = list(group)
        reason = _why_not(members, model.get_submodule(parent), degree)
        if reason:
            found.whole[f"{_wildcard(parent) or members[0].name}: {reason}"] = None
        else:
            styles = {one.name: _style(one.style) for one in members if one.style not in _AS_IT_IS}
            found.styles.update(styles)
    return TensorParallelPlan(styles=found.styles, whole=tuple(found.whole))


def _planned(model: Any) -> list[_Planned]:
    """The modules and parameters that the model's plan names."""
    plan = getattr(model, "tp_plan", None) or {}
    named = [*model.named_modules(), *model.named_parameters()]
    return [
        _Planned(name=name, module=one, style=plan[_wildcard(name)]) for name, one in named if _wildcard(name) in plan
    ]


def _why_not(members: Sequence[_Planned], parent: Any, degree: int) -> str:
    """Why the members cannot be split; empty if they can."""
    for one in members:
        if one.style in _AS_IT_IS:
            continue
        if not isinstance(one.module, nn.Linear):
            return f"{one.name.rpartition('.')[2]} is no linear layer ({one.style})"
        if one.style not in (*_COLUMNS, *_COLUMNS_GATHERED, *_ROWS, *_ROWS_OF_WHOLE):
            return f"the style {one.style} is not known here"
        if one.style not in _COLUMNS_GATHERED and _width(one) % (degree * _unit(one, parent)):
            parts = _width(one) // _unit(one, parent)
            return f"{one.name.rpartition('.')[2]} has {parts} parts, which {degree} does not divide"
    return ""


def _width(one: _Planned) -> int:
    width: int = one.module.in_features if one.style in (*_ROWS, *_ROWS_OF_WHOLE) else one.module.out_features
    return width


def _unit(one: _Planned, parent: Any) -> int:
    """What must stay together: an attention head, of a module that has heads."""
    head: int = getattr(parent, "head_dim", 1)
    return head if head and _width(one) % head == 0 else 1


def _style(name: str) -> ParallelStyle:
    if name in _COLUMNS:
        return ColwiseParallel()
    if name in _COLUMNS_GATHERED:
        return ColwiseParallel(output_layouts=Replicate())
    return RowwiseParallel(input_layouts=Shard(-1) if name in _ROWS else Replicate())


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _wildcard(name: str) -> str:
    """The name with `*` for the number of a layer, as plans write it."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)

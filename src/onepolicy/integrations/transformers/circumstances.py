"""The ways in which one model may be called on the same tokens: options that a trainer or a server differs in.

None of them is set in a plain reading. `onepolicy legs` sets one at a time.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from onepolicy.engines.legs import LegChange
from onepolicy.engines.options import EngineOptions

BLOCK = 4
"""tokens that a speculative decoder verifies in one call"""
CHUNK = 32
"""tokens of a chunk in the leg `chunked`"""
LEFT_BATCH = 8
"""sequences of a padded batch where the plain reading has one alone"""
_PLAIN = "each call computes its whole sequence"


class Circumstances(EngineOptions):
    """Options of the engine `transformers` that say how its model is called when it scores; sampling has none."""

    rows: Literal["reversed"] | None = None
    """hand the sequences of a batch over in the reversed order"""
    positions: Literal["none"] | None = None
    """give the model no position ids: it counts columns, padding included"""
    mask: Literal["none"] | None = None
    """give the model no attention mask, and no position ids, which are made of it"""
    cache: Literal["prefix", "turns", "steps", "blocks"] | None = None
    """score over several calls with a KV cache: prompt and completion; turn by turn (a sequence of one turn in three
    calls); token by token, as when decoding; four tokens a call, as a speculative decoder verifies"""
    chunk: int | None = Field(default=None, ge=1)
    """prefill in chunks of so many tokens"""
    packed: bool | None = None
    """put the sequences of a batch into one row, kept apart by position ids that start again, as trainers do"""
    mode: Literal["train"] | None = None
    """score in train mode, so with dropout if the model has any"""
    head: Literal["float32", "bfloat16"] | None = None
    """multiply the LM head in this precision, whatever the dtype of the model"""

    @model_validator(mode="after")
    def _one_layout(self) -> Circumstances:
        laid_out = [name for name in ("cache", "chunk", "packed") if getattr(self, name)]
        if len(laid_out) > 1:
            raise ValueError(f"{' and '.join(laid_out)} cannot be had together; ask for one of them")
        if self.packed and (self.mask or self.positions):
            raise ValueError("packed sequences are kept apart by position ids; leave out mask and positions")
        return self

    @property
    def are_plain(self) -> bool:
        """Whether none of them is set."""
        return not any(getattr(self, name) for name in Circumstances.model_fields)


def legs_of(circumstances: Circumstances, *, dtype: str, batch_size: int) -> dict[str, LegChange | str]:
    """The legs of an engine with this dtype and batch size; nothing where the spec itself sets a circumstance."""
    if not circumstances.are_plain:
        why = "the spec itself says how the model is called; give a plain one"
        return dict.fromkeys((*_calls(1), *_precisions("")), why)
    return _calls(batch_size) | _precisions(dtype)


def _calls(batch_size: int) -> dict[str, LegChange | str]:
    left = {"batch_size": batch_size if batch_size > 1 else LEFT_BATCH, "padding_side": "left"}
    alone = "one sequence at a time has no neighbours (batch_size=1)"
    return {
        "rows": LegChange(options={"rows": "reversed"}) if batch_size > 1 else alone,
        "no-positions": LegChange(options=left | {"positions": "none"}),
        "no-mask": LegChange(options=left | {"mask": "none"}),
        "decode": LegChange(options={"cache": "steps"}),
        "warm": LegChange(options={"cache": "prefix"}, cold_because=_PLAIN),
        "turns": LegChange(options={"cache": "turns"}, cold_because=_PLAIN),
        "chunked": LegChange(options={"chunk": CHUNK}),
        "packed": LegChange(options={"packed": True}) if batch_size > 1 else alone,
        "speculative": LegChange(options={"cache": "blocks"}),
        "train": LegChange(options={"mode": "train"}),
    }


def _precisions(dtype: str) -> dict[str, LegChange | str]:
    found: dict[str, LegChange | str] = {
        name: f"the plain reading is in {name}" if name == dtype else LegChange(options={"dtype": name})
        for name in ("float32", "bfloat16", "float16")
    }
    float32 = "the LM head is in float32 already" if dtype == "float32" else LegChange(options={"head": "float32"})
    return found | {"head": float32}

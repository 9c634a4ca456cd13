"""The options of the callable engine."""

from __future__ import annotations

from pydantic import Field

from onepolicy.engines.options import EngineOptions


class CallableOptions(EngineOptions):
    """Options of `callable:my_pkg.scoring:score?...`."""

    batch_size: int = Field(default=8, ge=1)
    """sequences at a time"""
    ranks: int = Field(default=0, ge=0)
    """processes to start, which call the function in lock step; 0 calls it in this process"""
    tokenizer: str = ""
    """a `tokenizer.json` or the folder it lies in, for the token checks"""
    dtype: str = "unknown"
    """a label for the report"""
    timeout: float = Field(default=600.0, gt=0.0, allow_inf_nan=False)
    """seconds that ranks may take to load, and for each batch; not used in this process"""

    def variations(self) -> dict[str, dict[str, object]]:
        """Another batch size; how the function pads is its own business."""
        return {"batch": {"batch_size": 1 if self.batch_size > 1 else 8}}

"""`manifest.json`: what a run is and what was asked of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.strict import Strict

FORMAT_VERSION = 1


class Imported(Strict):
    """What became of recorded files when they were read into a run. Rows read are rows used and rows refused."""

    format: str
    """as --format names it"""
    files: tuple[str, ...]
    """the first of them"""
    file_count: int
    read: int
    used: int
    refused: int
    refusals: tuple[str, ...] = ()
    """the first of them: row, field, and what contradicts what"""
    notes: tuple[str, ...] = ()
    """what to know of these numbers, and what was found odd"""
    stale: str = ""
    """said if rollouts were sampled by other weights than those that scored them"""


class Manifest(Strict):
    """Written when recording starts, and again, atomically, when it is complete."""

    format_version: int = FORMAT_VERSION
    tool_version: str
    status: Literal["recording", "complete"]
    kind: Literal["fresh", "fixed"]
    """fresh: completions were sampled for this run. fixed: they came with the suite"""
    suite: str
    suite_hash: str
    earlier_suites: dict[str, str] = Field(default_factory=dict)
    """of a run that was extended with the prompts of another one: name -> hash"""
    there_before: tuple[str, ...] = ()
    """ids of the rollouts that the run had when its last extension began; what is planned follows from them"""
    protocol: SamplingProtocol
    rollout_engine: str
    """spec string of the engine that sampled, or whose tokenizer encoded the fixed sequences"""
    planned_rollouts: int = Field(ge=0)
    keeps_text: bool = True
    imported: Imported | None = None
    """of a run that was read from the files of a framework"""

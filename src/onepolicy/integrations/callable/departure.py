"""Leaving torch's process group before the interpreter ends."""

from __future__ import annotations

import sys


def leave_process_group() -> None:
    """Destroy the default process group if there is one; loads no torch.

    Left alone, the threads of a gloo group abort the process at its end every few times ("terminate called
    without an active exception", torch 2.13), which would turn a good run into exit status 134.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()

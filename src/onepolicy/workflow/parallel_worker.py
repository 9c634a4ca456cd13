"""One rank of `onepolicy parallel`: `python -m onepolicy.workflow.parallel_worker SPEC RANK DESCRIPTOR`.

It computes the logits of one sequence after the other as its parent asks, and reduces them here: what is sent back is
a digest and a few sums. The base run writes its logits to a file, which the ranks of a layout map into memory.
"""

from __future__ import annotations

import faulthandler
import signal
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from onepolicy.engines.parallel import Layout, LayoutUnavailableError, RankModel
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError, OnePolicyError
from onepolicy.integrations import open_rank_model
from onepolicy.integrations.callable.channel import Channel, Frame
from onepolicy.integrations.callable.departure import leave_process_group
from onepolicy.integrations.callable.worker import start_reading
from onepolicy.numerics.logits import LogitDifference, Logits, logit_difference
from onepolicy.numerics.ulp import FORMATS
from onepolicy.workflow.environment import environment


def main(spec: str, descriptor: int) -> None:
    """Open the model in the layout that is asked for first, then answer until told that it is done."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # the parent asks a hung rank where it is
    channel = Channel(socket.socket(fileno=descriptor))
    inbox = start_reading(channel)
    layout = inbox.get().header["layout"]
    model: RankModel | None = None
    try:
        model = open_rank_model(parse_spec(spec), Layout(**layout) if layout else None)
        channel.send(Frame(header={"notes": list(model.notes), "environment": environment()}))
    except LayoutUnavailableError as error:
        channel.send(Frame(header={"missing": str(error)}))
    except OnePolicyError as error:
        channel.send(Frame(header={"error": str(error)}))
    while "done" not in (frame := inbox.get()).header:
        assert model is not None, "nothing is asked of a model that is not there"
        channel.send(_answered(model, frame))
    leave_process_group()


def _answered(model: RankModel, frame: Frame) -> Frame:
    try:
        return _encoded(model, frame) if "prompt" in frame.header else _scored(model, frame)
    except OnePolicyError as error:
        return Frame(header={"error": str(error)})


def _encoded(model: RankModel, frame: Frame) -> Frame:
    prompt = model.encode(frame.header["prompt"], add_special_tokens=True)
    completion = model.encode(frame.header["completion"], add_special_tokens=False)
    return Frame(header={}, arrays=[np.concatenate([prompt, completion]).astype(np.int32)])


def _scored(model: RankModel, frame: Frame) -> Frame:
    """The logits of one sequence, as a digest and how far they are from the base run's."""
    name, (token_ids,) = frame.header["sequence"], frame.arrays
    answer = model.logits(token_ids.astype(np.int32), name=name)
    if answer is None:
        return Frame(header={"digest": ""})
    found = Logits(bits=answer[0], dtype=answer[1])
    found.refuse_nan(f"sequence {name}")
    digest, base = found.digest(), frame.header.get("base")
    header: dict[str, Any] = {"digest": digest, "shape": list(found.bits.shape), "dtype": found.dtype}
    if "write" in frame.header:
        _write(found, Path(frame.header["write"]))
    elif base is not None:
        header["difference"] = asdict(_difference(found, token_ids, name, digest, base))
    return Frame(header=header)


def _difference(
    found: Logits, token_ids: np.ndarray[Any, Any], name: str, digest: str, base: dict[str, Any]
) -> LogitDifference:
    """Against the base run's file; equal digests need no look at it."""
    if digest == base["digest"]:
        return LogitDifference(logits=found.bits.size, equal=found.bits.size, tokens=len(token_ids) - 1)
    kept = np.memmap(base["path"], dtype=FORMATS[base["dtype"]], mode="r", shape=tuple(base["shape"]))
    return logit_difference(Logits(bits=kept, dtype=base["dtype"]), found, token_ids.astype(np.int32), sequence=name)


def _write(logits: Logits, path: Path) -> None:
    try:
        logits.bits.tofile(path)
    except OSError as error:
        raise EngineError(
            f"{path}: {logits.bits.nbytes / 1e6:,.0f} MB of logits could not be written ({error.strerror or error}). "
            "Give fewer or shorter sequences, or a folder with more room: --logits DIR."
        ) from error


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[3]))

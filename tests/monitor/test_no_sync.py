"""Nothing in `update` may wait for the device: no value is read, no shape follows from one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onepolicy.monitor.monitor import Monitor

READS_A_VALUE = (
    "_local_scalar_dense",
    "item",
    "nonzero",
    "nonzero_numpy",
    "argwhere",
    "masked_select",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
    "histc",
    "histogram",
    "is_nonzero",
    "equal",
    "allclose",
    "repeat_interleave",
    "_assert_async",
    "linalg_lstsq",
)


class SynchronisedError(AssertionError):
    pass


class NoSync(TorchDispatchMode):
    """Raises at every operation for which an accelerator would make the host wait."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in READS_A_VALUE or (name.startswith("index") and _has_bool_index(args)):
            raise SynchronisedError(str(func))
        found = func(*args, **(kwargs or {}))
        if name in ("_to_copy", "copy_") and _devices(args) != _devices([found]):
            raise SynchronisedError(f"{func} from {_devices(args)} to {_devices([found])}")
        return found


def _has_bool_index(args: Any) -> bool:
    indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _devices(args: Any) -> set[str]:
    return {arg.device.type for arg in args if isinstance(arg, torch.Tensor)}


def _tensors(device: str, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    p = -torch.rand(6, 20).to(device=device, dtype=dtype)
    return {
        "rollout_logprobs": p,
        "trainer_logprobs": (p - 0.01).clone().requires_grad_(),
        "sampled": torch.ones(6, 20, device=device, dtype=torch.int64),
        "loss_mask": torch.ones(6, 20, device=device),
        "token_ids": torch.ones(6, 20, device=device, dtype=torch.int64),
        "prompt_ids": torch.ones(6, 5, device=device, dtype=torch.int64),
        "prompt_mask": torch.ones(6, 5, device=device),
        "rollout_versions": torch.ones(6, device=device, dtype=torch.int64),
        "trainer_version": 3,
        "advantages": torch.randn(6, device=device),
        "groups": torch.arange(6, device=device),
        "tags": ["a"] * 6,
    }


@pytest.mark.parametrize("policy", ["warn", "mask", "halt"])
def test_update_never_waits_for_the_device(tmp_path: Path, policy: Any) -> None:
    monitor = Monitor(tmp_path / "run", policy=policy)
    for _ in range(3):
        for _ in range(3):
            tensors = _tensors("cpu")
            with NoSync():
                keep = monitor.update(**tensors)
            assert keep.shape == (6, 1)
            assert keep.dtype == torch.bfloat16
            assert not keep.requires_grad
        monitor.step()
    assert not monitor._recorder.standing.failures


def test_update_reads_no_value_of_tensors_that_have_none(tmp_path: Path) -> None:
    # a meta tensor has a shape and no numbers: whatever needs one raises
    monitor = Monitor(tmp_path / "run", policy="mask")
    for _ in range(3):
        keep = monitor.update(**_tensors("meta"))
        assert keep.device.type == "meta"
    assert not monitor._recorder.standing.failures


@pytest.mark.parametrize(
    "reads",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: x.long().unique(),
        lambda x: x.flatten().long().bincount(),
        lambda x: float(x.max()),
        lambda x: torch.equal(x, x),
        lambda x: x.to("meta"),
        lambda x: torch.where(x > 0),
    ],
)
def test_the_mode_raises_where_a_value_is_read(reads: Callable[[torch.Tensor], Any]) -> None:
    x = torch.rand(2, 3)
    with pytest.raises(SynchronisedError), NoSync():
        reads(x)


@pytest.mark.parametrize("reads", [lambda x: x.tolist(), lambda x: x.numpy(), lambda x: x.cpu(), lambda x: x[x > 0]])
def test_a_meta_tensor_raises_where_a_value_is_read(reads: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises((NotImplementedError, RuntimeError, TypeError)):
        reads(torch.rand(2, 3, device="meta"))


def test_an_update_in_inference_mode_does_not_disturb_the_next(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path / "run", policy="mask")
    with torch.inference_mode():
        tensors = _tensors("cpu", torch.float32)
        monitor.update(**tensors)
    keep = monitor.update(**_tensors("cpu", torch.float32))
    loss = (torch.ones(6, 20, requires_grad=True) * keep).sum()
    loss.backward()
    assert not monitor._recorder.standing.failures

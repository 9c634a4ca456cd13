"""K27: a reference policy that is not what the policy starts from, or is scored with dropout (B125, B126, B128)."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tiny_reference import frozen, gpt2, llama, one_thread, with_lora  # noqa: F401

from onepolicy.monitor.halted import TrainingHalted
from onepolicy.monitor.reference.guard import ReferenceGuard
from onepolicy.monitor.reference.model import teacher_forced, with_adapter, without_adapters
from onepolicy.records.verdict import Status

IDS = torch.arange(1, 41).view(2, 20)


def started_from_an_adapter(*, with_copy: bool) -> Any:
    """A policy whose adapter was trained before; a copy of it under the name "ref", if there is one."""
    policy = with_lora(llama(), trained=True)
    if with_copy:
        with warnings.catch_warnings(action="ignore"):
            policy.add_adapter("ref", policy.peft_config["default"])
        state = policy.state_dict()
        policy.load_state_dict(
            {n.replace(".default.", ".ref."): state[n] for n in state if ".default." in n}, strict=False
        )
    return policy.eval()


def alarms(guard: ReferenceGuard) -> dict[str, str]:
    return {alarm.kind: alarm.message for alarm in guard.alarms}


def test_b125_a_bare_base_as_reference_of_a_trained_adapter_is_not_the_policy_at_step_0(tmp_path):
    policy = started_from_an_adapter(with_copy=True)
    reference = without_adapters(policy)
    with policy.disable_adapter():
        assert torch.equal(teacher_forced(policy, IDS), teacher_forced(llama(), IDS))
    guard = ReferenceGuard(tmp_path / "base", reference, trained=policy)
    assert guard.status is Status.FAIL
    message = alarms(guard)["version"]
    assert "the policy starts from something that the reference lacks (adapters of its model: default, ref" in message
    assert "or the reference is of another checkpoint" in message
    assert "a frozen copy of its adapter" in message
    copied = ReferenceGuard(tmp_path / "copy", with_adapter(policy, "ref"), trained=policy)
    copied.close()
    assert copied.status is Status.PASS


def test_b126_a_fall_back_to_the_base_halts_where_only_a_warning_was_said(tmp_path):
    policy = started_from_an_adapter(with_copy=False)
    assert "ref" not in policy.peft_config
    with pytest.raises(TrainingHalted, match=r"adapters of its model: default; the reference is scored without any"):
        ReferenceGuard(tmp_path, without_adapters(policy), trained=policy, policy="halt")


def test_b128_dropout_in_the_references_pass_differs_from_pass_to_pass_and_is_named(tmp_path):
    policy = gpt2(dropout=0.1)
    reference = frozen(policy)
    reference.train()
    assert not torch.equal(teacher_forced(reference, IDS), teacher_forced(reference, IDS))
    in_train_mode = ReferenceGuard(tmp_path / "train", reference, trained=policy)
    assert list(alarms(in_train_mode)) == ["dropout"]
    reference.eval()
    assert torch.equal(teacher_forced(reference, IDS), teacher_forced(reference, IDS))
    in_eval_mode = ReferenceGuard(tmp_path / "eval", reference, trained=policy)
    in_eval_mode.close()
    assert in_eval_mode.status is Status.PASS


def test_b128_dropout_is_no_rounding_and_does_not_shrink_in_a_wider_type(tmp_path):
    policy = gpt2(dropout=0.1).double()
    guard = ReferenceGuard(tmp_path, frozen(policy).train(), trained=policy)
    assert list(alarms(guard)) == ["dropout"]

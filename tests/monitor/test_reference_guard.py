"""Every fault of a reference policy, planted in tiny models, and sound trainings that leave the guard quiet."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_reference import frozen, gpt2, llama, one_thread, stepped, with_lora  # noqa: F401

from onepolicy.errors import RunError, UsageError
from onepolicy.monitor.halted import TrainingHalted
from onepolicy.monitor.monitor import Monitor
from onepolicy.monitor.reference.guard import ReferenceGuard
from onepolicy.monitor.reference.model import Reference, teacher_forced, with_adapter, without_adapters
from onepolicy.monitor.reference.record import one_guard, read_reference
from onepolicy.records.verdict import Status
from onepolicy.weights.live import digest_of


def kinds(guard: ReferenceGuard) -> list[str]:
    return [alarm.kind for alarm in guard.alarms]


def said(guard: ReferenceGuard, kind: str) -> str:
    return next(alarm.message for alarm in guard.alarms if alarm.kind == kind)


def sgd(model: Any, rate: float = 0.5) -> torch.optim.SGD:
    return torch.optim.SGD([weights for weights in model.parameters() if weights.requires_grad], lr=rate)


def trained(guard: ReferenceGuard, policy: Any, *, steps: int = 3) -> ReferenceGuard:
    optimizer = sgd(policy)
    guard.watch(optimizer)
    for number in range(1, steps + 1):
        stepped(policy, optimizer, seed=number)
        guard.step(number)
    return guard


def quiet(guard: ReferenceGuard) -> None:
    guard.close()
    assert kinds(guard) == []
    assert guard.status is Status.PASS, guard.why


def test_a_frozen_copy_passes_and_the_record_says_so(tmp_path):
    policy = llama()
    guard = ReferenceGuard(tmp_path, frozen(policy), trained=policy, every=2)
    assert guard.status is Status.UNKNOWN
    quiet(trained(guard, policy, steps=5))
    record = read_reference(tmp_path)
    assert record is not None
    assert (record.status, record.checks, record.last_step) == ("pass", 4, 5)  # after 1, 3, 5 and at the end
    assert (record.noise, record.start_gap) == (0.0, 0.0)
    assert record.digest == digest_of(llama()).whole
    assert len(record.canary) == 31


def test_a_copy_that_requires_gradients_and_gets_none_is_as_good(tmp_path):
    policy = llama()
    quiet(trained(ReferenceGuard(tmp_path, copy.deepcopy(policy), trained=policy, every=1), policy))


def test_bfloat16_is_as_quiet_and_as_sharp(tmp_path):
    policy = llama().to(torch.bfloat16)
    reference = frozen(policy)
    guard = trained(ReferenceGuard(tmp_path, reference, trained=policy, every=1), policy, steps=2)
    assert kinds(guard) == []
    with torch.no_grad():
        reference.model.layers[0].mlp.up_proj.weight.mul_(1.01)
    guard.step(3)
    assert kinds(guard) == ["moved"]


def test_the_training_is_the_same_in_every_bit_with_a_guard_and_without(tmp_path):
    def run(*, guarded: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor, list[bool], list[bool]]:
        policy = with_lora(gpt2(dropout=0.3), lora_dropout=0.3, trained=True)
        torch.manual_seed(11)
        guard = ReferenceGuard(tmp_path, without_adapters(policy), trained=policy, every=1) if guarded else None
        optimizer = sgd(policy)
        for number in range(1, 4):
            stepped(policy, optimizer, seed=number)
            if guard is not None:
                guard.used(number, torch.zeros(2), lambda model: torch.zeros(2))
                guard.step(number)
        modes = [module.training for module in policy.modules()]
        return (
            dict(policy.state_dict()),
            torch.rand(4),
            modes,
            [weights.requires_grad for weights in policy.parameters()],
        )

    (ours, *others), (plain, *plains) = run(guarded=True), run(guarded=False)
    assert all(torch.equal(ours[name], plain[name]) for name in plain)
    assert torch.equal(others[0], plains[0])
    assert others[1:] == plains[1:]


def test_the_policy_itself_as_reference_is_seen_before_the_first_update(tmp_path):
    policy = llama()
    guard = ReferenceGuard(tmp_path, policy, trained=policy)
    assert kinds(guard) == ["trained"]
    assert "21 of the reference's 21 weights" in said(guard, "trained")


def test_a_reference_in_the_optimizer_is_seen_as_soon_as_that_is_known(tmp_path):
    policy, reference = llama(), llama()
    guard = ReferenceGuard(tmp_path, reference, trained=policy)
    guard.watch(torch.optim.SGD(policy.parameters()))
    assert kinds(guard) == []
    guard.watch(torch.optim.SGD([*policy.parameters(), reference.lm_head.weight]))
    assert kinds(guard) == ["trained"]
    assert "lm_head.weight" in said(guard, "trained")


def test_one_matrix_shared_with_the_policy_is_named(tmp_path):
    policy = llama()
    reference = frozen(policy)
    reference.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(
        policy.model.layers[1].mlp.up_proj.weight.data, requires_grad=False
    )
    guard = ReferenceGuard(tmp_path, reference, trained=policy)
    assert "1 of the reference's 21 weights are trained (model.layers.1.mlp.up_proj.weight)" in said(guard, "trained")


@pytest.mark.parametrize(("step", "fine_at"), [(4, 1), (1, 0)])
def test_weights_that_are_written_into_are_seen_at_the_next_check_with_the_last_good_one(tmp_path, step, fine_at):
    policy = llama()
    reference = frozen(policy)
    guard = ReferenceGuard(tmp_path, reference, trained=policy, every=3)
    for number in range(1, 5):
        if number == step:
            reference.model.layers[0].mlp.up_proj.weight.mul_(1.001)
        guard.step(number)
    assert [(alarm.kind, alarm.step, alarm.fine_at) for alarm in guard.alarms] == [("moved", step, fine_at)]


@pytest.mark.parametrize("numbers", [range(1, 7), [1000] * 6, range(999, 993, -1)], ids=["anew", "one", "back"])
def test_steps_whose_numbers_do_not_go_up_are_looked_at_too(tmp_path, numbers):
    policy = llama()
    reference = frozen(policy)
    guard = ReferenceGuard(tmp_path, reference, trained=policy, every=5)
    guard.step(1000)
    reference.lm_head.weight.mul_(1.1)
    for number in numbers:
        guard.step(number)
    assert kinds(guard) == ["moved"]


def test_a_change_that_the_canary_does_not_feel_is_in_the_digest(tmp_path):
    policy = llama()
    reference = frozen(policy)
    ids = torch.arange(1, 11).view(1, 10)
    guard = ReferenceGuard(tmp_path, Reference(model=reference, canary=ids), trained=policy)
    with torch.no_grad():
        reference.model.embed_tokens.weight[60] += 1.0
    guard.step(1)
    assert kinds(guard) == []
    guard.close()
    assert kinds(guard) == ["weights"]
    assert "model.embed_tokens.weight" in said(guard, "weights")


def test_dropout_in_train_mode_is_seen_and_where_it_is(tmp_path):
    policy = gpt2(dropout=0.1)
    reference = frozen(policy)
    guard = ReferenceGuard(tmp_path, reference, trained=policy, every=1)
    guard.step(1)
    assert kinds(guard) == []
    reference.train()
    guard.step(2)
    assert kinds(guard) == ["dropout"]
    assert "transformer.drop" in said(guard, "dropout")
    assert reference.training


def test_dropout_without_a_module_of_its_own_is_seen_too(tmp_path):
    policy = llama(attention_dropout=0.2)
    guard = ReferenceGuard(tmp_path, frozen(policy).train(), trained=policy)
    assert kinds(guard) == ["dropout"]


def test_train_mode_without_dropout_is_no_fault(tmp_path):
    policy = llama()
    quiet(ReferenceGuard(tmp_path, frozen(policy).train(), trained=policy))


def test_another_checkpoint_differs_from_the_policy_at_the_start(tmp_path):
    policy = llama()
    guard = ReferenceGuard(tmp_path, frozen(llama(seed=5)), trained=policy)
    assert kinds(guard) == ["version"]
    assert "another checkpoint" in said(guard, "version")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_folder_that_it_must_be_from_is_held_against_it_in_either_dtype(tmp_path, dtype):
    llama().to(torch.bfloat16).save_pretrained(tmp_path / "model")
    right, wrong = (llama(seed).to(torch.bfloat16).to(dtype) for seed in (0, 5))
    quiet(ReferenceGuard(tmp_path / "right", right, expected=tmp_path / "model"))
    guard = ReferenceGuard(tmp_path / "wrong", wrong, expected=tmp_path / "model")
    assert kinds(guard) == ["version"]
    assert "tensors differ" in said(guard, "version")
    assert str(tmp_path / "model") in said(guard, "version")


def test_a_digest_taken_elsewhere_says_what_it_must_be(tmp_path):
    quiet(ReferenceGuard(tmp_path / "right", llama(), expected=digest_of(llama(), rounded_to="bfloat16")))
    assert kinds(ReferenceGuard(tmp_path / "wrong", llama(seed=5), expected=digest_of(llama()))) == ["version"]


def test_what_is_named_as_expected_may_differ_from_the_policy(tmp_path):
    llama(seed=5).save_pretrained(tmp_path / "teacher")
    guard = ReferenceGuard(tmp_path, llama(seed=5), trained=llama(), expected=tmp_path / "teacher")
    quiet(guard)
    record = read_reference(tmp_path)
    assert record is not None
    assert record.start_gap is not None
    assert record.start_gap > 0.1


def test_a_fresh_adapter_in_train_mode_with_dropout_leaves_its_base_alone(tmp_path):
    policy = with_lora(llama(), lora_dropout=0.5)
    reference = without_adapters(policy)
    assert reference.digest().whole == digest_of(llama()).whole
    quiet(trained(ReferenceGuard(tmp_path, reference, trained=policy, every=1), policy))


@pytest.mark.parametrize(("dtype", "low", "high"), [(torch.float32, 0.0, 1e-6), (torch.bfloat16, 1e-3, 0.05)])
def test_a_fresh_dora_adapter_is_its_base_up_to_rounding(tmp_path, dtype, low, high):
    policy = with_lora(llama().to(dtype), use_dora=True)
    quiet(ReferenceGuard(tmp_path, without_adapters(policy), trained=policy))
    record = read_reference(tmp_path)
    assert record is not None
    assert record.start_gap is not None
    assert low <= record.start_gap <= high, record.start_gap


def test_a_head_that_is_trained_beside_the_adapter_is_not_the_references(tmp_path):
    policy = with_lora(llama(), modules_to_save=["lm_head"])
    reference = without_adapters(policy)
    assert reference.digest().whole == digest_of(llama()).whole
    guard = trained(ReferenceGuard(tmp_path, reference, trained=policy, every=1), policy)
    assert reference.digest().whole != digest_of(policy).whole
    quiet(guard)


def test_dropout_of_the_base_is_seen_with_the_adapters_off(tmp_path):
    policy = with_lora(gpt2(dropout=0.1))
    guard = ReferenceGuard(tmp_path, without_adapters(policy), trained=policy, every=1)
    assert kinds(guard) == []
    assert kinds(trained(guard, policy, steps=1)) == ["dropout"]


def test_an_adapter_that_stays_on_is_a_reference_that_moves(tmp_path):
    policy = with_lora(llama())
    reference = Reference(model=policy, entered=nullcontext, adapters=())
    guard = trained(ReferenceGuard(tmp_path, reference, trained=policy, every=1), policy)
    assert kinds(guard) == ["moved"]


def test_an_adapter_merged_into_its_base_is_a_reference_that_moves(tmp_path):
    policy = with_lora(llama())
    guard = trained(ReferenceGuard(tmp_path, without_adapters(policy), trained=policy, every=1), policy, steps=1)
    policy.base_model.model.model.layers[0].self_attn.q_proj.base_layer.weight.data.add_(0.01)
    guard.step(2)
    assert kinds(guard) == ["moved"]


def test_a_base_that_is_trained_with_its_adapter_is_seen(tmp_path):
    policy = with_lora(llama())
    policy.base_model.model.lm_head.weight.requires_grad_(True)
    guard = ReferenceGuard(tmp_path, without_adapters(policy), trained=policy)
    assert "1 of the reference's 21 weights are trained (lm_head.weight)" in said(guard, "trained")


def scored(model: Any) -> torch.Tensor:
    return teacher_forced(model, torch.arange(1, 25).view(2, 12))


def test_the_pass_that_the_trainer_used_is_named_the_policys_where_the_adapter_was_on(tmp_path):
    policy = with_lora(llama())
    guard = trained(ReferenceGuard(tmp_path, without_adapters(policy), trained=policy), policy)
    with policy.disable_adapter():
        sound = scored(policy)
    guard.used(4, sound, scored)
    assert kinds(guard) == []
    guard.used(5, scored(policy), scored)
    assert kinds(guard) == ["pass"]
    assert "and are the policy's" in said(guard, "pass")
    assert guard.alarms[0].fine_at == 4


OTHERS = {
    "another model": lambda model: scored(llama(seed=5)),
    "another temperature": lambda model: scored(model) / 0.7,
    "NaN": lambda model: torch.full((22,), float("nan")),
    "another length": lambda model: torch.zeros(21),
}


@pytest.mark.parametrize("used", OTHERS.values(), ids=OTHERS)
def test_a_pass_of_something_else_is_named_as_such(tmp_path, used):
    policy = llama()
    reference = frozen(policy)
    guard = trained(ReferenceGuard(tmp_path, reference, trained=policy), policy)
    guard.used(4, used(reference), scored)
    assert kinds(guard) == ["pass"]
    assert "not the policy's either" in said(guard, "pass")


def test_a_pass_that_repeats_less_well_than_the_canary_is_no_fault_within_its_own_noise(tmp_path):
    policy = llama()
    guard = ReferenceGuard(tmp_path, frozen(policy), trained=policy)
    generator = torch.Generator().manual_seed(0)

    def noisy(model: Any) -> torch.Tensor:
        return scored(model) + 1e-4 * torch.randn(2, 11, generator=generator)

    guard.used(1, noisy(policy), noisy)
    assert kinds(guard) == []
    guard.used(2, noisy(policy) - 0.1, noisy)
    assert kinds(guard) == ["pass"]


def test_a_pass_with_dropout_is_named_dropout_and_nothing_else(tmp_path):
    policy = with_lora(gpt2(dropout=0.2))
    guard = ReferenceGuard(tmp_path, without_adapters(policy), trained=policy)
    policy.train()
    with policy.disable_adapter(), torch.no_grad():
        used = scored(policy)
    guard.used(1, used, scored)
    assert kinds(guard) == ["dropout"]


def test_nan_is_no_logprob_at_the_start_or_later(tmp_path):
    policy = llama()
    reference = frozen(policy)
    guard = ReferenceGuard(tmp_path / "later", reference, trained=policy)
    reference.lm_head.weight.fill_(float("nan"))
    guard.step(1)
    assert [(alarm.kind, alarm.step) for alarm in guard.alarms] == [("invalid", 1)]
    assert kinds(ReferenceGuard(tmp_path / "start", reference, trained=policy)) == ["invalid"]
    assert read_reference(tmp_path / "start") is not None


class Noisy(torch.nn.Module):
    """As kernels that add in no fixed order."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.model, self.size, self.generator = llama(), size, torch.Generator().manual_seed(0)

    def score(self, model: Any, ids: torch.Tensor) -> torch.Tensor:
        return teacher_forced(model.model, ids) - self.size * torch.rand(1, 31, generator=self.generator)

    def get_input_embeddings(self) -> Any:
        return self.model.get_input_embeddings()


def test_noise_of_the_kernels_is_measured_and_not_taken_for_a_fault(tmp_path):
    noisy = Noisy(1e-4)
    guard = ReferenceGuard(tmp_path, Reference(model=noisy, score=noisy.score), trained=Noisy(0.0), every=1)
    for number in range(1, 30):
        guard.step(number)
    assert kinds(guard) == []
    with torch.no_grad():
        noisy.model.lm_head.weight.mul_(1.001)
    guard.step(30)
    assert kinds(guard)[0] == "moved"


def test_a_reference_that_does_not_repeat_itself_holds_nothing(tmp_path):
    noisy = Noisy(1.0)
    guard = ReferenceGuard(tmp_path, Reference(model=noisy, score=noisy.score), trained=Noisy(0.0))
    assert kinds(guard) == ["invalid"]
    assert "two passes" in said(guard, "invalid")


def test_halt_ends_the_training_before_it_begins(tmp_path):
    policy = llama()
    with pytest.raises(TrainingHalted, match=r"reference policy is not what it must be(.|\n)*trained, step 0") as ended:
        ReferenceGuard(tmp_path, policy, trained=policy, policy="halt")
    assert str(tmp_path / "reference.json") in str(ended.value)
    record = read_reference(tmp_path)
    assert record is not None
    assert (record.status, [alarm.kind for alarm in record.alarms]) == ("fail", ["trained"])
    quiet(ReferenceGuard(tmp_path, frozen(policy), trained=policy, policy="halt"))  # nothing was trained before


def test_halt_ends_the_training_at_the_step_that_finds_it(tmp_path):
    policy = llama()
    reference = frozen(policy)
    guard = ReferenceGuard(tmp_path, reference, trained=policy, policy="halt", every=1)
    guard.step(1)
    reference.lm_head.weight.mul_(1.1)
    with pytest.raises(TrainingHalted, match=r"step 2 \(at step 1 it was not so"):
        guard.step(2)
    assert guard.status is Status.FAIL


def test_an_alarm_is_said_once_and_the_same_kind_not_again(tmp_path, caplog):
    policy = llama()
    reference = frozen(policy)
    guard = ReferenceGuard(tmp_path, reference, trained=policy, every=1)
    reference.lm_head.weight.mul_(1.1)
    for number in range(1, 5):
        guard.step(number)
    assert len(caplog.records) == 1
    assert guard.status is Status.FAIL
    guard.close()
    assert kinds(guard) == ["moved", "weights"]
    assert "moved at step 1" in guard.why


def test_a_training_that_was_killed_never_passes(tmp_path):
    policy = llama()
    guard = ReferenceGuard(tmp_path, frozen(policy), trained=policy)
    guard.step(1)
    record = read_reference(tmp_path)
    assert record is not None
    assert (record.status, guard.status) == ("running", Status.UNKNOWN)


def test_a_training_that_ends_by_an_error_is_unknown(tmp_path):
    policy = llama()
    with pytest.raises(ValueError, match="no data"), ReferenceGuard(tmp_path, frozen(policy), trained=policy) as guard:
        raise ValueError("no data")
    record = read_reference(tmp_path)
    assert record is not None
    assert (record.status, guard.status) == ("unknown", Status.UNKNOWN)
    assert "ValueError: no data" in record.why
    quiet(ReferenceGuard(tmp_path, frozen(policy), trained=policy))  # nothing was trained, and the folder is free


def test_a_training_goes_on_with_the_reference_that_it_was_begun_with(tmp_path):
    policy = llama()
    reference = frozen(policy)
    trained(ReferenceGuard(tmp_path, reference, trained=policy), policy)  # not closed, as a process that was killed
    later = ReferenceGuard(tmp_path, reference, trained=policy)  # the policy is another one by now
    later.step(4)
    quiet(later)
    from_the_checkpoint = ReferenceGuard(tmp_path, frozen(policy), trained=policy)
    assert kinds(from_the_checkpoint) == ["version"]
    assert "begun with" in said(from_the_checkpoint, "version")
    from_the_checkpoint.close()
    assert kinds(ReferenceGuard(tmp_path, reference, trained=policy)) == ["version"]  # what was found stays found


def test_a_second_guard_of_a_folder_is_refused_and_cannot_take_back_what_the_first_finds(tmp_path):
    policy = llama()
    reference = frozen(policy)
    first = ReferenceGuard(tmp_path, reference, trained=policy)
    with pytest.raises(RunError, match=r"another guard writes its reference.json there(.*)a folder of its own"):
        ReferenceGuard(tmp_path, frozen(policy), trained=policy)
    reference.lm_head.weight.mul_(1.1)
    first.close()
    second = ReferenceGuard(tmp_path, frozen(policy), trained=policy)
    second.close()
    record = read_reference(tmp_path)
    assert record is not None
    assert (record.status, [alarm.kind for alarm in record.alarms]) == ("fail", ["moved", "weights"])


def test_the_monitors_folder_holds_the_record_too(tmp_path):
    policy = llama()
    with Monitor(tmp_path), ReferenceGuard(tmp_path, frozen(policy), trained=policy) as guard:
        guard.step(1)
    with ReferenceGuard(tmp_path, frozen(policy), trained=policy) as guard, Monitor(tmp_path):
        guard.step(2)
    assert guard.status is Status.PASS
    assert {"monitor.json", "reference.json"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trained": None}, "nothing says what the reference must be"),
        ({"policy": "mask"}, "there is no policy 'mask'"),
        ({"every": 0}, "1 or more"),
        ({"every": 2.5}, "`every` is 2.5; give the steps between two checks, a whole number"),
        ({"reference": "gpt2"}, "the reference is a str; give the model itself"),
        ({"trained": "gpt2"}, "`trained` is a str; give the model itself"),
        ({"trained": torch.nn.ReLU()}, "`trained`, a ReLU, has no weights"),
        ({"reference": llama().to("meta")}, "the reference, a LlamaForCausalLM, has 21 of its 21 weights on the dev"),
        ({"trained": llama().to("meta")}, "`trained`, a LlamaForCausalLM, has 21 of its 21 weights on the device meta"),
        ({"reference": torch.nn.Linear(2, 2)}, "does not say how many tokens"),
        ({"reference": Reference(model=llama(), canary=torch.zeros(2, 1, dtype=torch.int64))}, r"\[2, 1\]"),
        ({"reference": Reference(model=llama(), canary=torch.zeros(2, 8))}, "float32"),
        ({"reference": Reference(model=llama(), canary=torch.zeros(1, 8, dtype=torch.bool))}, "torch.bool"),
        ({"reference": Reference(model=llama(), canary=[[1, 2]])}, "`canary` is a list"),
        ({"reference": Reference(model=llama(), canary=torch.tensor([[1, 64]]))}, "from 1 to 64(.*)end at 63"),
        ({"reference": Reference(model=llama(), canary=torch.tensor([[-1, 2]]))}, "from -1 to 2(.*)begin at 0"),
        ({"trained": llama(vocab_size=32)}, "from 0 to 62(.*)end at 31"),
        ({"reference": Reference(model=llama(), score=lambda model, ids: None)}, "`score` returned a NoneType"),
        (
            {"reference": Reference(model=llama(), score=lambda model, ids: ids[:0])},
            r"returned torch.int64 \[0, 32",
        ),
        ({"expected": Path("/nowhere")}, "/nowhere"),
        ({"expected": ""}, "`expected` is ''; give a folder"),
        ({"expected": 5}, "`expected` is '5'; give a folder"),
        ({"path": ""}, "the path is empty; give a folder"),
        ({"expected": digest_of(torch.nn.Linear(2, 2))}, "no weight of one name"),
    ],
)
def test_what_cannot_be_guarded_is_an_error_at_once(tmp_path, options, words):
    given = {"path": tmp_path, "reference": llama(), "trained": llama(), **options}
    with pytest.raises(UsageError, match=words):
        ReferenceGuard(**given)


def test_an_adapter_that_is_not_there_is_an_error(tmp_path):
    policy = with_lora(llama())
    with pytest.raises(UsageError, match="no adapter 'ref'; it has default"):
        with_adapter(policy, "ref")
    with pytest.raises(UsageError, match="no PEFT model"):
        without_adapters(llama())


def test_a_damaged_record_is_an_error_and_not_written_over(tmp_path):
    (tmp_path / "reference.json").write_text("{")
    for _ in range(2):
        with pytest.raises(RunError, match=r"The file is damaged. Move it away to begin anew"):
            ReferenceGuard(tmp_path, llama(), trained=llama())
    assert (tmp_path / "reference.json").read_text() == "{"


def test_a_guard_that_fails_says_so_once_and_the_training_goes_on(tmp_path, caplog):
    policy = llama()
    reference = frozen(policy)
    guard = ReferenceGuard(tmp_path, reference, trained=policy, policy="halt", every=1)
    reference.forward = None
    for number in (1, 2, "three"):
        guard.step(number)
    guard.close()
    assert guard.status is Status.UNKNOWN
    assert len(caplog.records) == 2
    assert json.loads((tmp_path / "reference.json").read_text())["status"] == "unknown"


def test_a_closed_guard_takes_no_further_step(tmp_path):
    guard = ReferenceGuard(tmp_path, llama(), trained=llama())
    guard.close()
    guard.close()
    late = (lambda: guard.step(1), lambda: guard.watch(None), lambda: guard.used(1, torch.zeros(2), scored))
    for call in late:
        with pytest.raises(UsageError, match="closed"):
            call()


def said_by_two_ranks(folder: Path) -> list[str]:
    """What each of them prints as it ends, with exit status 1."""
    script = Path(__file__).with_name("reference_rank.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script, folder, str(rank)],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=120)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [1, 1], said
    return said


def test_what_one_of_two_ranks_finds_both_have_and_both_end_by_it(tmp_path):
    said = said_by_two_ranks(tmp_path)
    assert all("moved, step 3 (at step 1 it was not so)" in err for err in said)
    record = read_reference(tmp_path / "guard")
    assert record is not None
    assert (record.status, [alarm.kind for alarm in record.alarms]) == ("fail", ["moved"])


def test_where_the_first_of_two_ranks_is_refused_the_other_does_not_wait(tmp_path):
    with one_guard(tmp_path / "guard"):
        assert all("another guard writes" in err for err in said_by_two_ranks(tmp_path))

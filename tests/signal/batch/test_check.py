from dataclasses import fields

import numpy as np
import pytest
import torch

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.records.verdict import Status
from onepolicy.signal.batch.batch import SignalBatch
from onepolicy.signal.batch.check import CHECKS, check_batch, checked


@pytest.mark.parametrize("seed", range(20))
def test_a_sound_batch_passes_every_check(sound, seed):
    batch = sound(seed)
    found = check_batch(batch)
    assert found.status is Status.PASS, found.sentence
    assert [v.check for v in found.verdicts if not v.required] == ["kl_sign"]
    assert str(found) == found.sentence
    assert found.sentence == (
        "Pass: loss_mask, end_trained, reward_values, advantage_sums, advantage_spread, logprob_values, "
        "duplicate_samples, value_inputs of 16 completions. Not checked: kl_sign."
    )
    assert found.exit_status == 0


def as_tensors(batch):
    given = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return SignalBatch(**{n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in given.items()})


def as_lists(batch):
    given = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return SignalBatch(**{n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in given.items()})


def test_tensors_arrays_and_lists_give_the_same_verdicts(sound):
    batch = sound()
    statuses = [[v.status for v in checked(one)] for one in (batch, as_tensors(batch), as_lists(batch))]
    assert statuses[0] == statuses[1] == statuses[2]


def test_tensors_with_a_gradient_and_in_bfloat16_are_read(sound):
    batch = sound()
    logprobs = torch.from_numpy(batch.rollout_logprobs).bfloat16().requires_grad_()
    advantages = torch.from_numpy(batch.advantages).bfloat16()
    found = check_batch(sound(rollout_logprobs=logprobs, advantages=advantages))
    assert found.status is Status.PASS, found.sentence


def test_prompts_may_be_named(sound):
    names = np.array([f"uid-{p}" for p in sound().prompts], dtype=object)
    assert check_batch(sound(prompts=names)).status is Status.PASS
    assert check_batch(sound(prompts=tuple(names))).status is Status.PASS


@pytest.mark.parametrize("name", [f.name for f in fields(SignalBatch) if f.name not in ("end_ids", "group_relative")])
def test_what_is_absent_is_said_and_decides_nothing(sound, name):
    found = check_batch(sound(**{name: None}))
    assert found.status is Status.PASS, found.sentence
    for one in found.verdicts:
        assert one.required is (one.status is Status.PASS)
        assert one.required or one.message.startswith("not checked: ")


def test_a_batch_of_one_field_alone_never_passes_by_what_was_not_checked(sound):
    found = check_batch(SignalBatch(token_ids=sound().token_ids))
    assert found.status is Status.UNKNOWN
    assert found.exit_status == 3
    assert len(found.verdicts) == len(CHECKS)


def test_one_fault_fails_the_batch_and_names_it_first(sound):
    rewards = sound().rewards.copy()
    rewards[3] = np.nan
    found = check_batch(sound(rewards=rewards))
    assert found.status is Status.FAIL
    assert found.sentence.startswith("Fail: 1 of 16 rewards are no finite numbers; the first is row 3.")


def test_the_judgement_is_json(sound):
    found = check_batch(sound())
    assert type(found).model_validate_json(found.model_dump_json()) == found


def test_an_empty_batch_is_no_error_and_no_pass():
    found = check_batch(
        SignalBatch(
            token_ids=np.zeros((0, 4), dtype=np.int64),
            loss_mask=np.zeros((0, 4)),
            lengths=np.zeros(0, dtype=np.int64),
            rewards=np.zeros(0),
            advantages=np.zeros(0),
            prompts=[],
            end_ids=[1],
        )
    )
    assert found.status is Status.UNKNOWN


def test_no_columns_are_no_error(sound):
    empty = np.zeros((16, 0), dtype=np.int64)
    found = checked(SignalBatch(token_ids=empty, loss_mask=empty, lengths=np.zeros(16, dtype=np.int64), end_ids=[2]))
    assert all(one.status is not Status.FAIL for one in found)


NOTHING = {
    "no rows": {
        "token_ids": np.zeros((0, 5), dtype=np.int64),
        "value_token_ids": np.zeros((0, 5), dtype=np.int64),
        "loss_mask": np.zeros((0, 5)),
        "attention_mask": np.zeros((0, 5)),
        "value_attention_mask": np.zeros((0, 5)),
    },
    "no columns": {
        "token_ids": np.zeros((2, 0), dtype=np.int64),
        "value_token_ids": np.zeros((2, 0), dtype=np.int64),
        "loss_mask": np.zeros((2, 0)),
        "lengths": [0, 0],
    },
    "no completion has a token": {
        "token_ids": np.ones((2, 5), dtype=np.int64),
        "loss_mask": np.zeros((2, 5)),
        "lengths": [0, 0],
        "rollout_logprobs": -np.ones((2, 5)),
        "reference_logprobs": -np.ones((2, 5)),
        "prompts": ["a", "a"],
        "end_ids": [2],
    },
    "nothing is in the loss": {
        "token_ids": np.ones((2, 5), dtype=np.int64),
        "loss_mask": np.zeros((2, 5)),
        "lengths": [4, 3],
        "rewards": [1.0, 0.0],
        "advantages": [0.5, -0.5],
        "prompts": ["a", "a"],
        "end_ids": [1],
    },
    "all is padding": {
        "token_ids": np.ones((2, 5), dtype=np.int64),
        "value_token_ids": np.zeros((2, 5), dtype=np.int64),
        "attention_mask": np.zeros((2, 5)),
        "value_attention_mask": np.zeros((2, 5)),
    },
}


@pytest.mark.parametrize("given", NOTHING.values(), ids=NOTHING.keys())
def test_a_batch_with_nothing_to_look_at_is_unknown_and_never_a_pass(given):
    found = check_batch(SignalBatch(**given))
    assert (found.status, found.exit_status) == (Status.UNKNOWN, 3), found.sentence
    assert "has nothing to look at in this batch" in found.sentence


def test_one_completion_with_tokens_beside_an_empty_one_is_compared_with_none(verdict):
    batch = SignalBatch(token_ids=np.ones((2, 5), dtype=np.int64), lengths=[5, 0], prompts=["a", "a"])
    found = verdict("duplicate_samples", batch)
    assert (found.status, found.required) == (Status.UNKNOWN, True)


# -- refused ----------------------------------------------------------------------------------------------------


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(UsageError, match="batch of nothing"):
        check_batch(SignalBatch())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_mask": np.ones((16, 11))}, r"loss_mask have shape \[16, 11\].*\[16, 12\]"),
        ({"rewards": np.ones(15)}, "rewards have 15 rows and token_ids 16"),
        ({"rewards": np.ones((16, 1))}, r"rewards have shape \[16, 1\]; they are \[B\]"),
        ({"advantages": np.ones((16, 1, 1))}, r"they are \[B\] or \[B, T\]"),
        ({"token_ids": np.ones(16, dtype=np.int64)}, r"they are \[B, T\]"),
        ({"value_attention_mask": np.ones((16, 9))}, "value_attention_mask"),
        ({"lengths": np.full(16, 13)}, "13 tokens from column 0 on, in 12 columns"),
        ({"lengths": np.full(16, -1)}, "-1 tokens"),
        ({"starts": np.full(16, 9)}, "from column 9 on"),
        ({"starts": np.full(16, -3), "lengths": None}, "from column -3 on, in 12 columns"),
        ({"starts": np.full(16, 50), "lengths": None}, "from column 50 on, in 12 columns"),
        ({"token_ids": [[1, 2], [1]] * 8}, "rows of unequal length"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_their_names(sound, changes, message):
    with pytest.raises(AlignmentError, match=message):
        check_batch(sound(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_mask": np.full((16, 12), 2)}, "something else than 0 and 1"),
        ({"loss_mask": np.full((16, 12), np.nan)}, "something else than 0 and 1"),
        ({"token_ids": np.ones((16, 12))}, "whole numbers"),
        ({"rewards": np.array(["a"] * 16)}, "they are numbers"),
        ({"rewards": torch.ones(16, dtype=torch.complex64)}, "they are numbers"),
        ({"prompts": [np.nan] * 16}, "prompts: row 0 has nan"),
        ({"prompts": ["a"] * 15 + [None]}, "prompts: row 15 has None"),
        *(({"group_size": size}, f"group_size is {size!r}") for size in (0, -1, 2.5, "2")),
        *(({"end_ids": ids}, "a list of token ids") for ids in (2, None, [2.9], ["2"], [[2]], ["</s>"], [None])),
        *(
            ({"rewards": tensor}, "rewards cannot be read on the host")
            for tensor in (
                torch.zeros(16).to(torch.float8_e4m3fn),
                torch.zeros(16).to_sparse(),
                torch.zeros(16, device="meta"),
                [torch.zeros((), requires_grad=True)] * 16,
            )
        ),
    ],
)
def test_values_of_another_kind_are_refused(sound, changes, message):
    with pytest.raises(UsageError, match=message):
        check_batch(sound(**changes))


def test_something_else_than_a_batch_is_refused():
    with pytest.raises(UsageError, match="this is a dict"):
        check_batch({"rewards": [1.0, 0.0]})


def test_a_negated_view_is_read(verdict):
    advantages = torch.tensor([1 - 1j, 1 + 1j]).conj().imag
    assert advantages.is_neg()
    assert verdict("advantage_sums", SignalBatch(prompts=[0, 0], advantages=advantages)).status is Status.PASS


def test_what_is_no_number_is_found_without_a_warning(verdict):
    wrong = np.array([np.inf, -np.inf, 0.5, -0.5])
    batch = SignalBatch(prompts=[0, 0, 1, 1], rewards=wrong, advantages=wrong)
    assert verdict("advantage_spread", batch).status is Status.FAIL
    assert verdict("advantage_sums", batch).message == "the advantages of each of 1 prompts add up to 0."

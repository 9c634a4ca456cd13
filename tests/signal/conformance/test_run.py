"""What a run says of functions that agree, differ, raise, decline, or return something else."""

import pytest
import torch

from onepolicy.errors import EngineError
from onepolicy.records.conform import Answer
from onepolicy.signal.conformance import references, variants
from onepolicy.signal.conformance.cases import CASES
from onepolicy.signal.conformance.compare import difference
from onepolicy.signal.conformance.general import GENERAL
from onepolicy.signal.conformance.ours import subject
from onepolicy.signal.conformance.roles import ROLES
from onepolicy.signal.conformance.run import run
from onepolicy.signal.conformance.subject import Difference, Function, Subject

STATEMENTS = ("agrees", "is_systematic")


def answers(role, call, *, differences=()):
    one = Subject(name="x", functions=[Function(role=role, label=role, call=call)], differences=differences)
    return {answer.case: answer for answer in run(one).tried}


def moved(found):
    """Wrong in value, sign and gradient."""
    if isinstance(found, tuple):
        return tuple(moved(one) for one in found)
    return ~found if found.dtype is torch.bool else found.nan_to_num() * -1.5 + 0.1


def test_the_references_agree_in_every_role_and_every_case():
    found = run(subject())
    assert {one.answer for one in found.tried if one.role not in STATEMENTS} == {Answer.AGREES}
    assert {one.found for one in found.of(Answer.NOT_TRIED)} == {"it says unknown, which cannot be wrong"}
    assert not found.of(Answer.WRONG)
    assert {(one.role, one.case) for one in found.tried} == {(case.role, case.name) for case in CASES}
    assert {case.role for case in CASES} == set(ROLES)
    assert found.exit_status == 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.role}/{case.name}")
def test_every_case_flags_a_function_that_is_wrong_there(case):
    reference = ROLES[case.role].reference
    if case.role in STATEMENTS:
        said = {wrong: answers(case.role, lambda *_, wrong=wrong: wrong)[case.name].answer for wrong in (True, False)}
        assert sorted(one.value for one in said.values()) == ["agrees", "wrong"]
        return
    assert difference(case.observe(lambda *given: moved(reference(*given))), case.observe(reference))


def test_who_says_unknown_is_not_wrong_and_not_checked():
    for role in STATEMENTS:
        assert {one.answer for one in answers(role, lambda *_: None).values()} == {Answer.NOT_TRIED}


def test_what_a_function_raises_is_its_answer():
    def refuses(logprobs, loss_mask):
        if not bool(loss_mask.any(dim=1).all()):
            raise IndexError("list index out of range")
        return references.sequence_logprobs(logprobs, loss_mask)

    found = answers("sequence_logprobs", refuses)
    assert found["zero length"].answer is Answer.WRONG
    assert found["zero length"].found == "raised IndexError: list index out of range"
    assert found["unequal lengths"].answer is Answer.AGREES


def test_a_function_that_declines_a_batch_was_not_tried_there():
    def declines(*_):
        raise NotImplementedError("there are no such batches")

    found = run(Subject(name="x", functions=[Function(role="kl", label="kl", call=declines)]))
    assert {(one.answer, one.found) for one in found.tried} == {(Answer.NOT_TRIED, "there are no such batches")}
    assert found.exit_status == 3


@pytest.mark.parametrize(
    ("role", "returned", "text"),
    [
        ("kl", 0.5, "returned a float and not a tensor"),
        ("kl", torch.zeros(2), "The size of tensor"),
        ("sequence_logprobs", torch.zeros(7), "value has shape [7], should have [3]"),
        ("agrees", "yes", "returned a str and not a bool or None"),
        ("gae", torch.zeros(3, 5), "did not return two tensors"),
        ("completion_logprobs", torch.zeros(3, 1), "value has shape"),
        ("kl", torch.zeros(6, dtype=torch.complex64), "complex64, torch.strided, on cpu) that is not dense, real"),
        ("dual_clip_loss", torch.zeros((), device="meta"), "on meta) that is not dense, real and on the CPU"),
        ("constant_length", torch.zeros(1).to_sparse(), "torch.sparse_coo, on cpu) that is not dense"),
        ("agrees", torch.tensor([True], device="meta"), "on meta) that is not dense"),
        ("completion_mask", torch.full((3, 5), torch.nan), "mask"),
    ],
)
def test_an_answer_of_another_kind_is_wrong_and_says_what_came_back(role, returned, text):
    for one in answers(role, lambda *_: returned).values():
        assert one.answer is Answer.WRONG
        assert text in one.found


def test_bfloat16_and_integers_are_compared_as_numbers():
    found = answers("kl", lambda *pair: references.kl(*pair).to(torch.bfloat16))
    assert found["mean"].answer is Answer.WRONG
    found = answers("completion_mask", lambda *given: references.completion_mask(*given).int())
    assert {one.answer for one in found.values()} == {Answer.AGREES}


def test_a_mask_of_other_numbers_than_0_and_1_is_wrong():
    for marked in (torch.nan, -7.0):
        for one in answers(
            "completion_mask", lambda *given, m=marked: torch.where(references.completion_mask(*given), m, 0.0)
        ).values():
            assert (one.answer, one.found) == (Answer.WRONG, f"mask {marked:.4g} at [0, 0], should be True")


def reference_of(role, *, first):
    """The reference, after what is done to its arguments in place."""

    def call(*given):
        first(*given)
        return ROLES[role].reference(*given)

    return call


@pytest.mark.parametrize("role", [name for name, role in ROLES.items() if "loss_mask" in role.signature])
def test_a_mask_that_is_changed_in_place_is_the_functions_own(role):
    def drops(*given):
        for one in given:
            if isinstance(one, torch.Tensor) and not one.is_floating_point():
                one[:, 0] = 0

    if role not in (*STATEMENTS, "model_logprobs"):
        assert Answer.WRONG in {one.answer for one in answers(role, reference_of(role, first=drops)).values()}
    assert Answer.WRONG not in {one.answer for one in answers(role, ROLES[role].reference).values()}


def test_what_a_function_does_to_its_batch_is_not_seen_by_the_next():
    def spoils(values, loss_mask):
        found = references.whiten(values, loss_mask)
        values.zero_()
        loss_mask.zero_()
        return found

    assert {one.answer for one in answers("whiten", spoils).values()} == {Answer.AGREES}
    assert {one.answer for one in answers("whiten", references.whiten).values()} == {Answer.AGREES}


def no_gradients(*_):
    torch.set_grad_enabled(False)


def nowhere(*_):
    torch.set_default_device("meta")


def half(*_):
    torch.set_default_dtype(torch.bfloat16)


@pytest.mark.parametrize("sets", [no_gradients, nowhere, half])
def test_what_a_function_sets_in_torch_is_not_seen_by_the_next(sets):
    def state():
        return torch.is_grad_enabled(), torch.get_default_device(), torch.get_default_dtype()

    before = state()
    one = answers("policy_loss", reference_of("policy_loss", first=sets))
    assert sets is half or Answer.AGREES not in {each.answer for each in one.values()}
    assert state() == before


def test_a_function_without_a_gradient_is_wrong_wherever_gradients_were_switched_off():
    def detached(logprobs, *rest):
        return references.policy_loss(logprobs.detach(), *rest)

    with torch.inference_mode():
        found = answers("policy_loss", detached)
        assert {one.answer for one in answers("policy_loss", references.policy_loss).values()} == {Answer.AGREES}
    assert {one.answer for one in found.values()} == {Answer.WRONG}
    assert found["on policy"].found.startswith("gradient is 0 everywhere, should be ")
    assert found["one small step"].found.startswith("sign is 0 everywhere, should be ")
    for one in answers("kl_loss", lambda logprobs, reference: logprobs.detach() - reference).values():
        assert one.found.startswith("gradient is 0 everywhere, should be ")


def test_a_reference_that_does_not_work_any_more_decides_nothing(monkeypatch):
    def replaced(*_, **__):
        raise RuntimeError("replaced")

    with monkeypatch.context() as patch:
        patch.setattr(references.of_kl, "kl_value", replaced)
        with pytest.raises(EngineError, match="kl, mean: our own reference raised RuntimeError: replaced"):
            answers("kl", lambda *_: replaced())


class Unsayable(BaseException):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("multi\nline \x1b[31m"), "raised RuntimeError: multi line \\x1b[31m"),
        (ValueError("\ud800"), "raised ValueError: \\ud800"),
        (Unsayable(), "raised Unsayable: <exception str() failed>"),
        (KeyError(), "raised KeyError"),
    ],
)
def test_whatever_is_raised_is_said_in_one_line_that_json_keeps(error, said):
    def fails(*_):
        raise error

    one = run(Subject(name="x", functions=[Function(role="kl", label="kl", call=fails)]))
    assert {answer.found for answer in one.tried} == {said}
    assert type(one).model_validate_json(one.model_dump_json()) == one


def test_a_known_difference_explains_only_what_it_reproduces():
    known = [one for one in GENERAL if one.name == "epsilon of 0.0001 in the deviation"]
    found = answers("grpo_advantages", variants.epsilon_in_deviation(1e-4), differences=known)
    assert found["close rewards"].answer is Answer.DIFFERS
    assert found["close rewards"].explanation == known[0].name
    found = answers("grpo_advantages", variants.epsilon_in_deviation(1e-3), differences=known)
    assert (found["close rewards"].answer, found["close rewards"].explanation) == (Answer.WRONG, "")


def test_a_known_fault_is_explained_and_still_wrong():
    known = Difference(
        name="halved", role="kl", like=lambda *p: references.kl(*p) / 2, why="", example="", is_wrong=True
    )
    found = answers("kl", lambda *pair: references.kl(*pair) * 0.5, differences=[known])
    assert (found["mean"].answer, found["mean"].explanation) == (Answer.WRONG, "halved")


def test_a_difference_is_kept_to_its_functions_and_its_cases():
    def half(*pair):
        return references.kl(*pair) / 2

    for limits in ({"labels": ("another",)}, {"cases": ("far reference",)}):
        known = Difference(name="halved", role="kl", like=half, why="", example="", **limits)
        assert answers("kl", half, differences=[known])["mean"].answer is Answer.WRONG


def test_a_subject_says_of_which_role_it_has_nothing():
    found = run(Subject(name="x", functions=(), absent={"gae": "no value model"}))
    assert [(one.role, one.answer, one.found) for one in found.tried] == [("gae", Answer.NOT_TRIED, "no value model")]
    assert found.exit_status == 3


@pytest.mark.parametrize("known", GENERAL, ids=lambda one: f"{one.role}: {one.name}")
def test_the_examples_of_general_differences_print_what_they_say(known, capsys):
    exec(known.example, {})
    assert capsys.readouterr().out.strip() == known.prints


@pytest.mark.parametrize("known", GENERAL, ids=lambda one: f"{one.role}: {one.name}")
def test_every_general_difference_is_one(known):
    found = answers(known.role, known.like, differences=GENERAL)
    assert Answer.DIFFERS in {one.answer for one in found.values()}
    assert Answer.WRONG not in {one.answer for one in found.values()}

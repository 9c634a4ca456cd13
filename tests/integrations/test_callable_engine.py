"""A function that scores, as an engine."""

import sys

import numpy as np
import pytest
import torch
from scoring_functions import BATCH, NUMBERS, engine_of, error_of, score, sequences, spec_of

from onepolicy.engines.contract import Engine, Sampler, ScoreInput, Wanted
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations import open_engine, open_sampler
from onepolicy.integrations.callable.engine import CallableEngine
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.records.protocol import Meaning
from onepolicy.records.tokens import TokenState, digest_of_ids


def test_it_is_an_engine_and_no_sampler(tmp_path):
    spec = spec_of(tmp_path, "def score(token_ids): ...")
    engine = open_engine(spec)
    assert isinstance(engine, Engine)
    assert not isinstance(engine, Sampler)
    assert not engine.is_follower
    with pytest.raises(EngineError, match="cannot sample"):
        open_sampler(spec)


def test_entry_i_belongs_to_token_i_and_the_first_has_none():
    rows = score(lambda batch: [np.array([np.nan] + [-0.5] * (len(ids) - 1)) for ids in batch])
    assert [row.rollout_id for row in rows] == ["r-0", "r-1"]
    assert rows[0].logprobs[1:].tolist() == [-0.5, -0.5]
    assert rows[0].states.tolist() == [TokenState.ABSENT, TokenState.VALUE, TokenState.VALUE]
    assert rows[1].digest == digest_of_ids(np.int32(BATCH[1]))


def test_tokens_that_nobody_asked_for_are_masked():
    one = ScoreInput(rollout_id="r", token_ids=np.int32([1, 2, 3]), wanted=np.array([False, False, True]))
    row = engine_of(lambda batch: [[-1.0, -2.0, -3.0]]).score([one], NUMBERS)[0]
    assert row.states.tolist() == [TokenState.MASKED, TokenState.MASKED, TokenState.VALUE]
    assert np.isnan(row.logprobs[:2]).all()


def test_what_is_no_logprob_is_invalid():
    row = engine_of(lambda batch: [[0.0, np.nan, -np.inf, -9999.0, 0.5]]).score(sequences([1] * 5), NUMBERS)[0]
    assert row.states[1:].tolist() == [TokenState.INVALID] * 4
    assert np.isnan(row.logprobs).all()


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        np.float32,
        lambda values: np.array(values, dtype=np.float16),
        lambda values: torch.tensor(values, dtype=torch.bfloat16),
        lambda values: torch.tensor(values, requires_grad=True),
        lambda values: [None, *values[1:]],
    ],
)
def test_lists_arrays_and_tensors_of_any_dtype_are_taken(convert):
    rows = score(lambda batch: [convert([0.0] + [-0.5] * (len(ids) - 1)) for ids in batch])
    assert [row.logprobs[1:].tolist() for row in rows] == [[-0.5, -0.5], [-0.5]]


def test_it_scores_as_the_engine_behind_it_does():
    fake = FakeEngine()

    def through(batch):
        return [row.logprobs for row in fake.score(sequences(*batch), NUMBERS)]

    for own, theirs in zip(score(through), fake.score(sequences(*BATCH), NUMBERS), strict=True):
        assert np.array_equal(own.logprobs, theirs.logprobs, equal_nan=True)
        assert np.array_equal(own.states, theirs.states)


def test_one_array_too_few_is_refused():
    assert "my:score returned 1 arrays for 2 sequences (rollouts r-0 to r-1)" in error_of(lambda batch: [[0.0] * 3])


def test_one_logprob_too_few_is_refused_with_the_remedy():
    message = error_of(lambda batch: [[-1.0] * (len(ids) - 1) for ids in batch])
    assert "my:score, rollout r-0: 2 logprobs for 3 tokens, one too few." in message
    assert "put a NaN in front" in message


def test_padding_that_was_left_on_is_refused():
    message = error_of(lambda batch: [[-1.0] * 3 for _ in batch])
    assert "my:score, rollout r-1: 3 logprobs for 2 tokens." in message
    assert "padding cut off" in message


def test_full_logits_are_refused_with_the_remedy():
    message = error_of(lambda batch: [np.zeros((len(ids), 100)) for ids in batch])
    assert "my:score, rollout r-0: an array of shape (3, 100) instead of (3,). It looks like full logits" in message


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [((1, 3), "Drop the first axis"), ((1, 3, 9), "one 1-d array"), ((), "one 1-d array")],
)
def test_other_shapes_are_refused(shape, remedy):
    message = error_of(lambda batch: [np.zeros(shape), np.zeros(2)])
    assert f"shape {shape} instead of (3,)" in message
    assert remedy in message


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (None, "returned a NoneType for rollouts r-0 to r-1"),
        (np.zeros((2, 3)), "returned a ndarray for"),
        ([{"logprobs": []}, [0.0]], "rollout r-0: a dict. Return a 1-d numpy array"),
        ([["a", "b", "c"], [0.0]], "rollout r-0: a list that holds more than numbers"),
        ([[[0.0], [0.0, 1.0], 2.0], [0.0]], "rollout r-0: a list that holds more than numbers"),
    ],
)
def test_answers_of_the_wrong_type_are_refused(answer, found):
    assert found in error_of(lambda batch: answer)


def test_a_tensor_that_is_spread_over_ranks_is_refused_with_the_remedy():
    class DTensor(torch.Tensor):
        pass

    message = error_of(lambda batch: [torch.zeros(len(ids)).as_subclass(DTensor) for ids in batch])
    assert "Call .full_tensor() on every rank" in message


def test_an_exception_keeps_the_end_of_its_traceback(tmp_path):
    engine = open_engine(spec_of(tmp_path, "def score(token_ids):\n    return {}['logits']"))
    with pytest.raises(EngineError) as caught:
        engine.score(sequences([1, 2]), NUMBERS)
    message = str(caught.value)
    assert "scoring.py:score failed on rollout r-0:" in message
    assert f'File "{tmp_path}/scoring.py", line 2, in score' in message
    assert message.endswith("KeyError: 'logits'")
    assert "function.py" not in message


def test_a_temperature_is_passed_to_a_function_that_takes_one():
    got = []

    def scorer(token_ids, *, temperature):
        got.append(temperature)
        return [[-1.0] * len(ids) for ids in token_ids]

    score(scorer)
    score(scorer, Wanted(meaning=Meaning(temperature=0.7)))
    assert got == [1.0, 0.7]
    with pytest.raises(
        EngineError, match=r"can only score raw and temperature-scaled logprobs, and processed \(.*top_k 5\)"
    ):
        score(scorer, Wanted(meaning=Meaning(top_k=5)))


def test_a_function_without_temperature_scores_only_raw():
    with pytest.raises(EngineError, match=r"can only score raw logprobs, and processed \(temperature 0.7\)"):
        score(lambda token_ids: [], Wanted(meaning=Meaning(temperature=0.7)))


def test_a_dotted_target_is_found_in_the_working_directory(tmp_path, monkeypatch):
    package = tmp_path / "my_scoring_package"
    package.mkdir()
    code = '__version__ = "1.2"\ndef score(token_ids): return [[-1.0] * len(ids) for ids in token_ids]'
    (package / "logprobs.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = EngineSpec(engine="callable", target="my_scoring_package.logprobs:score", options={"dtype": "bfloat16"})
    info = open_engine(spec).info
    assert (info.name, info.version, info.dtype) == ("callable", "1.2", "bfloat16")
    assert info.model == "my_scoring_package.logprobs:score"


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("my_module", "callable:my_module names no function. Write callable:my_pkg.scoring:score"),
        ("absent.py:score", "there is no file absent.py in "),
        ("no_such_package:score", "callable:no_such_package:score: there is no module no_such_package in "),
        ("math:score", "math has no function 'score'"),
        ("math:pi", "math has no function 'pi'"),
    ],
)
def test_a_target_that_names_no_function_is_refused(target, found):
    with pytest.raises(UsageError) as caught:
        CallableEngine.open(EngineSpec(engine="callable", target=target))
    assert found in str(caught.value)


def test_an_absent_function_is_refused_with_those_that_are_there(tmp_path):
    with pytest.raises(UsageError, match=r"has no function 'score'. It has: scores, more\."):
        open_engine(spec_of(tmp_path, "def scores(): ...\ndef more(): ...\ndef _hidden(): ..."))


def test_a_module_that_fails_to_import_keeps_its_traceback(tmp_path):
    with pytest.raises(EngineError, match=r"importing .*scoring.py failed:(.|\n)*line 1(.|\n)*no_such_package"):
        open_engine(spec_of(tmp_path, "import no_such_package"))


def test_it_cannot_decode_token_by_token():
    engine = engine_of(len)
    assert engine.condition(path="prefill").batch_size == 8
    with pytest.raises(EngineError, match="all at once: it cannot decode"):
        engine.condition(path="decode")


def test_a_tokenizer_is_read_from_a_file_or_its_folder(tmp_path):
    content = FakeEngine().tokenizer_file()
    (tmp_path / "tokenizer.json").write_bytes(content)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        engine = open_engine(spec_of(tmp_path, "def score(token_ids): ...", tokenizer=str(path)))
        assert engine.tokenizer_file() == content
        assert engine.decode(np.int32([72, 105, 258])) == "Hi<|im_end|>"
        assert engine.info.tokenizer_hash == FakeEngine().info.tokenizer_hash
    without = open_engine(spec_of(tmp_path, "def score(token_ids): ..."))
    assert without.tokenizer_file() is without.decode(np.int32([72])) is None


@pytest.mark.parametrize(
    ("content", "found"), [(None, "there is no file"), ("{", "is not JSON"), ("{}", "has no key 'model'")]
)
def test_what_is_no_tokenizer_is_refused(tmp_path, content, found):
    path = tmp_path / "some.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(EngineError, match=found):
        open_engine(spec_of(tmp_path, "def score(token_ids): ...", tokenizer=str(path)))

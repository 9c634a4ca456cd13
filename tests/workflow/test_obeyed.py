"""A recording whose engine would not sample as its protocol says is refused before anything is sampled."""

import numpy as np
import pytest

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations.fake.vocabulary import VOCAB_SIZE
from onepolicy.records.protocol import SamplingProtocol, TemperatureSchedule
from onepolicy.workflow.obeyed import cut_prompt
from onepolicy.workflow.record import RecordRequest, record


def recorded(path, spec="fake:m", **fields):
    protocol = SamplingProtocol(**{"max_new_tokens": 8, **fields})
    return record(path, RecordRequest(engine=parse_spec(spec), protocol=protocol, budget=640))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"repetition_penalty": 1.1},
            r"fake: sampling.repetition_penalty = 1.1: .* not obey .* min_new_tokens, stop",
        ),
        ({"seed_policy": "none"}, "seed_policy = 'none'"),
        ({"padding_side": "left"}, "padding_side = 'left'"),
        ({"add_bos": True}, "add_bos = True"),
        ({"dtype": "bfloat16"}, r"sampling.dtype = bfloat16, and the engine's is float64.*\?dtype=bfloat16"),
        ({"prompt_truncation": "left"}, "Set max_prompt_tokens too"),
        (
            {"stop_token_ids": (32, VOCAB_SIZE, 151645)},
            f"fake: sampling.stop_token_ids = {VOCAB_SIZE}, 151645: the engine's model has {VOCAB_SIZE} ids, .* "
            "another model",
        ),
        (
            {"schedule": TemperatureSchedule(kind="linear", start=1.2, end=1.0, steps=9)},
            "schedule goes from 1.2 to 1, and a recording is of one step",
        ),
    ],
)
def test_what_the_engine_does_not_obey_is_refused_and_no_run_is_begun(tmp_path, fields, says):
    with pytest.raises(UsageError, match=says):
        recorded(tmp_path / "run", **fields)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        ({"max_new_tokens": 64, "stop": ("e",), "stop_token_ids": (32,)}, {"e", "32", "<|im_end|>"}),
        ({"max_new_tokens": 12, "min_new_tokens": 12, "stop_token_ids": (32,)}, {""}),
        ({"ignore_eos": True}, {""}),
        ({"stop_token_ids": (VOCAB_SIZE - 1,)}, {"", str(VOCAB_SIZE - 1), "<|im_end|>"}),
        ({"dtype": "float64"}, {"", "<|im_end|>"}),
        ({"logprobs": "processed", "temperature": 0.7}, {"", "<|im_end|>"}),
        (
            {"temperature": 0.7, "schedule": TemperatureSchedule(kind="constant", start=0.7, end=0.7, steps=9)},
            {"", "<|im_end|>"},
        ),
    ],
)
def test_what_it_obeys_is_recorded_with_the_reasons_in_the_spans(tmp_path, fields, reasons):
    run = recorded(tmp_path / "run", **fields)
    assert run.manifest.status == "complete"
    spans = list(run.spans())
    assert {span.stop_reason for span in spans} <= reasons
    assert ("e" in reasons) == ("e" in {span.stop_reason for span in spans})
    for span in spans:
        assert span.finish_reason == ("stop" if span.stop_reason else "length")


def test_a_prompt_is_cut_on_the_side_that_the_protocol_says():
    ids = np.arange(10, dtype=np.int32)
    left = SamplingProtocol(prompt_truncation="left", max_prompt_tokens=3)
    right = SamplingProtocol(prompt_truncation="right", max_prompt_tokens=3)
    assert cut_prompt(ids, left, rollout_id="r").tolist() == [7, 8, 9]
    assert cut_prompt(ids, right, rollout_id="r").tolist() == [0, 1, 2]
    assert cut_prompt(ids[:3], left, rollout_id="r").tolist() == [0, 1, 2]


def test_a_prompt_that_is_too_long_is_an_error_unless_a_side_is_cut(tmp_path):
    with pytest.raises(EngineError, match=r"rollout \S+: its prompt has \d+ tokens, and max_prompt_tokens = 5"):
        recorded(tmp_path / "run", max_prompt_tokens=5)
    run = recorded(tmp_path / "cut", max_prompt_tokens=5, prompt_truncation="left")
    assert run.manifest.status == "complete"

"""K13: a server fills what a request leaves out. Seen in the effective values before sampling, and in the samples."""

from __future__ import annotations

import pytest

from onepolicy.integrations import protocol_reader
from onepolicy.integrations.sglang.protocol import effective as of_sglang
from onepolicy.integrations.vllm.protocol import effective as of_vllm
from onepolicy.integrations.vllm.protocol import write_protocol
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.verdict import Status
from onepolicy.sampling.diff import differences
from onepolicy.workflow.audit import audit

MODEL = {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05, "eos_token_id": 2}
REQUEST = {"prompt": "x", "max_tokens": 32}
GROUPS = SamplingProtocol(max_new_tokens=48, samples_per_prompt=3)


def different(a: SamplingProtocol, b: SamplingProtocol) -> set[str]:
    return {one.field for one in differences(a, b)}


def test_b65_what_the_models_folder_fills_in_is_named_with_its_source():
    neutral = of_vllm(request=REQUEST, flags=["--generation-config", "vllm"], generation_config=MODEL)
    filled = of_vllm(request=REQUEST, generation_config=MODEL)
    assert different(neutral.protocol, filled.protocol) == {"temperature", "top_k", "repetition_penalty"}
    for name in ("temperature", "top_k", "repetition_penalty"):
        assert filled.sources[name] == "generation_config.json"
        assert neutral.sources[name] != "generation_config.json"


def test_b65_a_request_that_says_every_field_leaves_the_folder_nothing_to_fill():
    protocol = SamplingProtocol(temperature=1.0, max_new_tokens=32, seed_policy="none")
    sent = write_protocol(protocol).content["request"]
    read = of_vllm(request={**sent, "prompt": "x"}, generation_config=MODEL | {"eos_token_id": None})
    assert different(protocol, read.protocol) == set()


def test_b65_a_folder_that_was_not_looked_at_is_unknown_and_not_neutral():
    notes = of_vllm(request=REQUEST).ignored
    assert [(note.field, note.matters) for note in notes] == [("generation_config.json", True)]


def test_b65_a_run_that_says_plain_and_was_sampled_under_the_folders_values_fails(served, judged, verdict):
    judgement = judged(served(temperature=0.7, top_k=20))
    said = verdict(judgement, "sampled_as_reported")
    assert judgement.status is said.status is Status.FAIL
    assert "truncation, or a temperature below" in said.message


@pytest.mark.parametrize(
    ("framework", "source"),
    [
        *[
            ("vllm", {"request": REQUEST | {"top_k": value}, "flags": ["--generation-config", "vllm"]})
            for value in (0, -1)
        ],
        ("sglang", {"sampling_params": {"top_k": -1}}),
        ("sglang", {"sampling_params": {"top_k": 2**30}}),
        ("transformers", {"generation_config": {"do_sample": True, "top_k": 0}}),
        *[("llamacpp", {"request": {"top_k": value}}) for value in (0, -1)],
        ("trtllm", {"sampling_params": {"temperature": 1.0, "top_k": 0}}),
    ],
)
def test_b66_every_spelling_of_no_top_k_is_one_value(framework, source):
    assert protocol_reader(framework)(source).protocol.top_k == 0


def test_b66_a_default_of_one_is_named_before_anything_is_sampled():
    neutral = of_vllm(request=REQUEST, generation_config={})
    read = of_vllm(request=REQUEST, generation_config={"top_k": 1})
    assert (read.protocol.top_k, read.sources["top_k"]) == (1, "generation_config.json")
    assert different(neutral.protocol, read.protocol) == {"top_k"}


@pytest.mark.parametrize("changes", [{"top_k": 1}, {"temperature": 0.0}], ids=["b66", "b68"])
def test_a_server_that_is_greedy_is_seen_by_its_likely_and_by_its_equal_samples(served, judged, verdict, changes):
    path = served(GROUPS, **changes)
    found = verdict(audit(path), "duplicate_samples")
    assert found.status is Status.FAIL
    judgement = judged(path)
    assert judgement.status is verdict(judgement, "sampled_as_reported").status is Status.FAIL


def test_a_server_that_samples_as_asked_is_neither(served, judged, verdict):
    path = served(GROUPS)
    assert verdict(audit(path), "duplicate_samples").status is Status.PASS
    assert verdict(judged(path), "sampled_as_reported").status is Status.PASS


def test_b68_two_servers_of_one_folder_that_take_different_things_from_it_are_told_apart():
    """vLLM takes the sampling values of the folder, SGLang's own endpoint the end tokens alone."""
    vllm = of_vllm(request=REQUEST, generation_config=MODEL).protocol
    sglang = of_sglang(sampling_params={"max_new_tokens": 32}, generation_config=MODEL).protocol
    assert different(vllm, sglang) == {"temperature", "top_k", "repetition_penalty", "logprobs"}
    assert vllm.stop_token_ids == sglang.stop_token_ids == (2,)

"""A protocol that was written down, as one side of `onepolicy behave`."""

from pathlib import Path

import pytest

from onepolicy.cli.behave_protocol import texts_and_samples
from onepolicy.errors import UsageError
from onepolicy.workflow.behave_record import protocols


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("temperature: 0.7\nstop: ['=', 'b']\nseed_policy: each request\nsamples_per_prompt: 3\n")
    Path("b.yaml").write_text("temperature: 0.5\nsamples_per_prompt: 2\n")


def sides(a, b, samples=None):
    texts_a, texts_b, samples = texts_and_samples(a, b, samples=samples)
    return protocols(texts_a, texts_b, samples=samples)


def test_fields_of_the_file_are_the_sides_own_and_fields_that_are_given_go_over_it():
    a, b = sides(["a.yaml"], ["temperature=0.9", "a.yaml"])
    assert (a.temperature, a.stop, a.seed_policy, a.samples_per_prompt) == (0.7, ("=", "b"), "each request", 3)
    assert (b.temperature, b.stop, b.seed) == (0.9, ("=", "b"), a.seed + 1)


def test_without_a_file_all_is_as_it_was():
    assert sides([], ["temperature=0.9"]) == protocols([], ["temperature=0.9"], samples=4)


def test_sides_that_say_another_number_of_samples_are_refused_unless_one_is_given():
    with pytest.raises(UsageError, match=r"2 and 3 samples_per_prompt.* Give --samples"):
        sides(["a.yaml"], ["b.yaml"])
    assert [side.samples_per_prompt for side in sides(["a.yaml"], ["b.yaml"], samples=5)] == [5, 5]


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["temperature"], "--a 'temperature' is not NAME=VALUE, and no protocol"),
        (["none.yaml"], "none.yaml: there is no such file"),
        (["a.yaml", "b.yaml"], "--a names a.yaml and b.yaml: one side has one protocol"),
    ],
)
def test_what_is_no_protocol_is_refused(texts, says):
    with pytest.raises(UsageError) as refused:
        sides(texts, [])
    assert says in str(refused.value)

import importlib
import json
import sys

import pytest

from onepolicy.errors import UsageError
from onepolicy.records.verdict import Status
from onepolicy.workflow.reward import RewardRequest, check_reward
from onepolicy.workflow.reward_judge import judge_protocol

SOUND = """
import zlib
def score(conversations):
    return [zlib.crc32(repr(one).encode()) / 2**30 for one in conversations]
def of_prompt(conversations):
    return score([one[:-1] for one in conversations])
def prints(conversations):
    print("noise")
    return score(conversations)
def nan(conversations):
    return [float("nan") for one in conversations]
def refuses(conversations):
    from onepolicy.errors import EngineError
    if any(len(one[-1]["content"]) > 3000 for one in conversations):
        raise EngineError("the text is too long")
    return score(conversations)
def too_long_bug(conversations):
    if any(len(one[-1]["content"]) > 3000 for one in conversations):
        raise KeyError("length")
    return score(conversations)
"""


@pytest.fixture
def function(tmp_path):
    file = tmp_path / "rewards.py"
    file.write_text(SOUND)
    return lambda name: f"callable:{file}:{name}?dtype=float32"


@pytest.fixture
def asked(tmp_path):
    """The body of a request, as a source of `onepolicy protocol`."""

    def make(name, **fields):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"model": "judge", "messages": [], "max_tokens": 16, **fields}))
        return f"openai:{file}"

    return make


class Counting:
    def __init__(self):
        self.planned = self.done = 0

    def start(self, title, total, unit="rollouts"):
        self.planned = total

    def advance(self, count):
        self.done += count

    def note(self, message):
        """Nothing is shown."""


def test_a_sound_function_passes_and_the_answer_names_what_it_leaves_open(function):
    progress = Counting()
    found = check_reward(RewardRequest(model=function("score")), progress=progress)
    assert (found.status, found.exit_status) == (Status.PASS, 0)
    assert found.sentence.startswith("Pass: ")
    assert "Not decided: own_tokenizer, two_loads" in found.sentence
    assert progress.done == progress.planned
    assert found.spread > 0


def test_a_faulty_function_fails_with_the_first_check_that_says_so(function):
    found = check_reward(RewardRequest(model=function("of_prompt"), served=function("of_prompt")))
    assert found.exit_status == 1
    assert found.sentence.startswith("Fail: 12 of 12 pairs have one score")
    assert type(found).model_validate_json(found.model_dump_json()) == found


def test_what_a_function_prints_goes_to_stderr(function, capsys):
    found = check_reward(RewardRequest(model=function("prints")))
    assert found.exit_status == 0
    assert capsys.readouterr().out == ""


def test_without_finite_scores_there_is_no_spread(function):
    found = check_reward(RewardRequest(model=function("nan")))
    assert (found.exit_status, found.spread) == (1, None)
    assert 'NaN"' not in found.model_dump_json()


def test_a_text_that_a_function_refuses_is_refused_only_if_it_says_so_itself(function):
    def at_a_long_text(name):
        found = check_reward(RewardRequest(model=f"{function(name)}&max_length=300"))
        return next(one for one in found.verdicts if one.check == "truncation_side").status

    assert at_a_long_text("refuses") is Status.PASS
    assert at_a_long_text("too_long_bug") is Status.UNKNOWN


def test_pairs_of_a_file_are_used(function, tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"q{n}", "chosen": "a", "rejected": "b"}) for n in range(5)))
    assert check_reward(RewardRequest(model=function("score"), pairs=file)).pairs == 5


def test_a_judge_that_is_asked_as_its_protocol_says_passes(asked, function):
    request = RewardRequest(
        model=function("score"), judge=asked("a", temperature=0), protocol=asked("b", temperature=0)
    )
    found = check_reward(request)
    assert found.verdicts[0].check == "judge_protocol"
    assert found.exit_status == 0, found.sentence


def test_a_judge_with_another_limit_and_a_temperature_fails_with_both(asked):
    found = judge_protocol(asked("a", temperature=0.7, max_tokens=8), asked("b", temperature=0))
    assert found.status is Status.FAIL
    assert "max_new_tokens is 8 and should be 16" in found.message
    assert "temperature is 0.7 and should be 0" in found.message
    assert "it samples, so one answer gets several scores" in found.message


def test_a_judge_that_samples_fails_even_if_its_protocol_says_so(asked):
    found = judge_protocol(asked("a", temperature=1), asked("b", temperature=1))
    assert found.status is Status.FAIL
    assert found.value == 0


def test_one_side_of_a_judge_alone_is_a_mistake(function):
    with pytest.raises(UsageError, match="Give both, or neither"):
        check_reward(RewardRequest(model=function("score"), judge="x"))


def test_the_checks_of_a_function_load_no_torch(function):
    import subprocess  # noqa: PLC0415 - of this test alone

    code = (
        "import sys; from onepolicy.workflow.reward import RewardRequest, check_reward; "
        f"check_reward(RewardRequest(model={function('score')!r})); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert importlib.util.find_spec("torch")

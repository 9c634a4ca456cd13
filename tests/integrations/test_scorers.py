"""Reward models behind functions and URLs: what is asked, what is read, and what is refused."""

import json
import zlib

import numpy as np
import pytest
import reward_functions
from leg_models import one_thread  # noqa: F401 - torch, on a busy machine
from reward_models import llama, reconfigured
from scripted import Answer, Scripted

from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations.scorers import open_scorer, scorer_spec
from onepolicy.records.verdict import Status
from onepolicy.signal.reward.scorer import OpenScorer, TokenIds
from onepolicy.workflow.reward import RewardRequest, check_reward

TALK = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "answer"})
OTHER = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "b"})
MODELS = {"data": [{"id": "rm", "max_model_len": 512}]}


@pytest.fixture
def server():
    """Start a server that answers a request's path and body as a function says."""
    started = []

    def start(answer):
        def respond(_, request):
            found = answer(request.path, json.loads(request.body or b"{}"))
            return found if isinstance(found, Answer) else Answer(body=json.dumps(found).encode())

        started.append(Scripted(respond))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def opened():
    found = []

    def open_one(text):
        found.append(open_scorer(scorer_spec(text)))
        return found[-1]

    yield open_one
    for one in found:
        one.close()


def length_of(conversation):
    return float(len(conversation[-1]["content"]))


def vllm_of(path, body):
    if path == "/v1/models":
        return MODELS
    value = length_of(body["messages"]) if "messages" in body else float(len(body["input"]))
    return {"data": [{"index": 0, "label": "LABEL_0", "probs": [value], "num_classes": 1}]}


def test_a_folder_a_url_and_a_spec_are_told_apart():
    assert scorer_spec("./rm").engine == scorer_spec("owner/name?dtype=bfloat16").engine == "transformers"
    assert scorer_spec("http://127.0.0.1:1/score").engine == "json"
    assert scorer_spec("vllm:http://127.0.0.1:1").engine == "vllm"
    with pytest.raises(UsageError, match=r"no reward model is asked by 'llamacpp'"):
        open_scorer(scorer_spec("./rm").__class__(engine="llamacpp", target="x", options={}))
    with pytest.raises(UsageError, match="It knows: dtype"):
        open_scorer(scorer_spec("./rm?typo=1"))


@pytest.mark.parametrize("shape", ["scores", "data"])
def test_the_json_shape_is_asked_with_conversations_and_read_in_order(server, opened, shape):
    def answer(_, body):
        scores = [length_of(one) for one in body["input"]]
        return {"scores": scores} if shape == "scores" else {"data": [{"score": score} for score in scores]}

    found = server(answer)
    scorer = opened(f"{found.url}/reward")
    assert scorer.score([TALK, OTHER]).tolist() == [[6.0], [1.0]]
    (request,) = found.requests
    assert request.path == "/reward"
    assert json.loads(request.body)["input"][0] == list(TALK)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"scores": [1.0]}, "1 scores for 2 conversations"),
        ({"scores": ["a", "b"]}, "cannot be read"),
        ({"scores": [True, False]}, "cannot be read"),
        ({"result": 3}, "cannot be read.*neither"),
        ({"data": [{"score": 1.0, "index": 0}, {"score": 2.0, "index": 0}]}, "each index from 0"),
        (Answer(status=404, body=b'{"detail": "Not Found"}'), "404"),
    ],
)
def test_an_answer_that_is_none_is_an_error_with_the_url(server, opened, answer, said):
    found = server(lambda *_: answer)
    with pytest.raises(EngineError, match=said) as error:
        opened(f"{found.url}/reward").score([TALK, OTHER])
    assert found.url in str(error.value)


def test_scores_with_an_index_are_read_in_its_order(server, opened):
    found = server(lambda *_: {"data": [{"score": 2.0, "index": 1}, {"score": 1.0, "index": 0}]})
    assert opened(found.url).score([TALK, OTHER]).tolist() == [[1.0], [2.0]]


def test_a_failing_server_at_a_longer_text_is_no_refusal_and_one_that_names_the_length_is(server):
    def answer(said, status):
        def of(_, body):
            if len(json.dumps(body)) > 20_000:
                return Answer(status=status, body=said)
            return {"scores": [float(zlib.crc32(repr(one).encode())) / 2**30 for one in body["input"]]}

        return server(of)

    def status(said, code):
        url = f"{answer(said, code).url}?max_length=400&retries=0"
        return next(v for v in check_reward(RewardRequest(model=url)).verdicts if v.check == "truncation_side").status

    assert status(b"oom", 500) is Status.UNKNOWN
    assert status(b"oom", 400) is Status.UNKNOWN
    assert status(b"maximum context length is 400", 400) is Status.PASS
    assert status(b"`inputs` must have less than 400 tokens", 413) is Status.PASS


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% for", "{{ messages + 1 }}"])
def test_a_chat_template_that_raises_is_an_error_of_the_model(opened, tmp_path, template):
    folder = llama(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(EngineError, match="its chat template refuses a conversation"):
        opened(str(folder)).score([TALK])


def test_null_is_nan_and_no_zero(server, opened):
    assert np.isnan(opened(server(lambda *_: {"scores": [None]}).url).score([TALK])[0, 0])


def test_vllm_is_asked_for_messages_for_ids_and_for_its_longest_text(server, opened):
    found = server(vllm_of)
    scorer = opened(f"vllm:{found.url}?activation=false")
    assert scorer.info.max_length == 512
    assert scorer.score([TALK, OTHER]).tolist() == [[6.0], [1.0]]
    assert scorer.score_ids([TokenIds(ids=np.arange(4), tokenizer="")]).tolist() == [[4.0]]
    bodies = [json.loads(one.body) for one in found.requests if one.path == "/classify"]
    assert all(body["use_activation"] is False and body["model"] == "rm" for body in bodies)


def test_vllm_is_not_told_about_activation_unless_a_person_says_so(server, opened):
    found = server(vllm_of)
    opened(f"vllm:{found.url}").score([TALK])
    assert "use_activation" not in json.loads(found.requests[-1].body)


def test_a_vllm_with_other_models_is_refused_by_name(server, opened):
    found = server(vllm_of)
    with pytest.raises(EngineError, match="has no model 'x'; it has rm"):
        opened(f"vllm:{found.url}?model=x")
    two = server(lambda *_: {"data": [{"id": "a"}, {"id": "b"}]})
    with pytest.raises(EngineError, match=r"Name one with \?model="):
        opened(f"vllm:{two.url}")


def test_sglang_is_given_ids_of_the_tokenizer_here(server, opened, tokenizer_folder):
    found = server(lambda _, body: {"embedding": [float(len(body["input_ids"]))], "meta_info": {}})
    with pytest.raises(UsageError, match="tokenizer=FOLDER"):
        opened(f"sglang:{found.url}")
    scorer = opened(f"sglang:{found.url}?tokenizer={tokenizer_folder}")
    longer, shorter = scorer.score([TALK, OTHER])[:, 0].tolist()
    assert longer > shorter > 0
    assert scorer.score_ids([TokenIds(ids=np.arange(3), tokenizer="")]).tolist() == [[3.0]]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "no such reward"),
        ("too_few", r"shape \[1, 1\] for 2 conversations"),
        ("texts", "not one number for each"),
        ("not_counted", "NoneType"),
        ("by_name", "returned dict"),
        ("digits", "1 is no score"),
        ("bools", "True is no score"),
        ("endless", "too large"),
    ],
)
def test_a_function_that_breaks_its_contract_is_an_error(opened, name, said):
    with pytest.raises(EngineError, match=said):
        opened(f"callable:{reward_functions.__file__}:{name}").score([TALK, OTHER])


def test_a_function_is_given_messages_and_may_return_a_tensor(opened, tmp_path, monkeypatch):
    monkeypatch.setenv("REWARD_FOLDER", str(llama(tmp_path / "model")))
    scores = opened(f"callable:{reward_functions.__file__}:at_last").score([TALK, OTHER])
    own = opened(str(tmp_path / "model")).score([TALK, OTHER])
    assert scores == pytest.approx(own, abs=1e-5)


def test_ids_of_another_tokenizer_are_refused(opened, tmp_path):
    scorer = opened(str(llama(tmp_path / "model")))
    assert isinstance(scorer, OpenScorer)
    own = scorer.encode([TALK])
    assert scorer.score_ids(own) == pytest.approx(scorer.score([TALK]))
    with pytest.raises(EngineError, match="ids of the tokenizer 0123"):
        scorer.score_ids([TokenIds(ids=own[0].ids, tokenizer="0123")])


def test_a_model_without_a_padding_id_is_scored_one_by_one_and_said_to_be_wrong(opened, tmp_path):
    scorer = opened(str(reconfigured(llama(tmp_path / "model"), pad_token_id=None)))
    assert scorer.score([TALK, OTHER]).shape == (2, 1)
    with pytest.raises(EngineError, match=r"refuses a batch of shape \[2, "):
        scorer.score_together(scorer.encode([TALK, OTHER]), side="right")


def test_a_folder_that_is_no_reward_model_is_an_error_with_what_it_lacks(opened, tmp_path):
    folder = llama(tmp_path / "model")
    for file in folder.glob("token*"):
        file.unlink()
    with pytest.raises(EngineError, match="has no tokenizer"):
        opened(str(folder))
    with pytest.raises(EngineError, match="is no folder"):
        opened(str(tmp_path / "none"))
    with pytest.raises(EngineError, match="no PEFT adapter"):
        opened(f"{llama(tmp_path / 'other')}?adapter={tmp_path}")
    with pytest.raises(EngineError, match="device='gpux'"):
        opened(f"{tmp_path / 'other'}?device=gpux")
    reconfigured(tmp_path / "other", hidden_size=48, head_dim=12)
    with pytest.raises(EngineError, match="another shape"):
        opened(str(tmp_path / "other"))

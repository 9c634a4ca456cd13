"""`onepolicy probe` says what an engine is and can do, from its answers."""

import json
from contextlib import ExitStack

import pytest
from standin import Dialect, Faults, OpenAi, Sglang, StandIn, Vllm, standing_in


@pytest.fixture
def serve():
    with ExitStack() as servers:

        def start(dialect: Dialect) -> StandIn:
            return servers.enter_context(standing_in(dialect))

        yield start


@pytest.fixture
def probe(cli, serve):
    """Answers by question, of a spec or of a vLLM with these options."""

    def ask(spec="", query="retries=0", **options):
        ended = cli("probe", spec or f"vllm:{serve(Vllm(**options)).url}?{query}", "--json")
        assert ended.status == 0, ended
        found = json.loads(ended.out)
        answers = {fact["name"]: fact["answer"] for fact in found["abilities"]}
        return found, answers, {fact["name"]: fact["answer"] for fact in found["meanings"]}

    return ask


def test_a_plain_vllm(probe):
    found, answers, meanings = probe()
    assert meanings == {"sampled": "raw", "prompt": "raw"}
    assert found["engine"]["version"] == "0.32.0"
    assert found["engine"]["max_length"] == Vllm().max_length
    assert found["weight_version"] == ""
    assert answers == {
        "scores given ids": "yes",
        "logprobs of given ids": "no",
        "detokenise": "yes",
        "tokenise": "yes",
        "template": "yes",
        "ids in": "yes",
        "ids out": "yes",
        "prompt logprobs": "yes",
        "top-k limit": "20",
        "distributions": answers["distributions"],
        "cache proof": "no",
        "cache flush": "no",
        "trace replay": "no",
        "heeds temperature": "yes",
    }


def test_processed_logprobs_are_told_and_those_of_the_prompt_are_not(probe):
    assert probe(logprobs="processed")[2] == {"sampled": "processed", "prompt": "raw"}


def test_logprobs_that_are_divided_and_not_renormalised_are_told(probe):
    assert probe(logprobs="temperature")[2]["sampled"] == "temperature processed, truncation raw"


def test_a_server_in_developer_mode_names_its_weights_and_replays_a_trace(probe):
    found, answers, _ = probe(developer=True, scale_out=True, weight_version="step-3")
    assert found["weight_version"] == "step-3"
    assert answers["trace replay"] == "yes"
    assert found["engine"]["dtype"] == "bfloat16"


def test_a_count_that_is_always_zero_proves_no_cache(probe):
    _, answers, _ = probe(developer=True, cached_tokens=0)
    assert answers["cache proof"] == "unknown"
    assert answers["cache flush"] == "unknown"


def test_a_flush_that_leaves_the_cache_is_no_flush(probe):
    _, answers, _ = probe(developer=True, cached_tokens=512)
    assert answers["cache proof"] == "yes"
    assert answers["cache flush"] == "no"


@pytest.mark.parametrize("limit", [2, 5, 37])
def test_a_limit_that_the_refusal_names_wrongly_is_found_by_trying(limit, probe):
    assert probe(most_logprobs=limit, query=f"max_logprobs={limit}")[1]["top-k limit"] == str(limit)


def test_a_server_that_ignores_the_temperature_is_told(probe):
    assert probe(faults=Faults(ignores_temperature=True))[1]["heeds temperature"] == "no"


def test_a_server_without_prompt_logprobs_is_a_rollout_side(probe):
    _, answers, meanings = probe(faults=Faults(no_prompt_logprobs=True))
    assert answers["prompt logprobs"] == answers["scores given ids"] == "no"
    assert meanings["prompt"] == "unknown" or "unknown" in meanings["prompt"]
    assert meanings["sampled"] == "raw"


def test_another_prompt_than_was_sent_is_seen(probe):
    _, answers, _ = probe(faults=Faults(wrong_prompt_ids=True))
    assert answers["ids in"] == "no"
    assert answers["scores given ids"] == "no"


@pytest.mark.parametrize("after", [0, 5, 20])
def test_a_server_that_dies_while_it_is_asked_is_an_error_and_no_list_of_noes(after, cli, serve):
    server = serve(Vllm(faults=Faults(die_after=after)))
    ended = cli("probe", f"vllm:{server.url}?retries=0")
    assert ended.status == 2
    assert server.url in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_a_server_without_ids_is_not_said_to_ignore_what_could_not_be_asked(serve, probe):
    _, answers, meanings = probe(f"openai:{serve(OpenAi()).url}?retries=0")
    assert answers["ids out"] == "no"
    assert answers["top-k limit"] == answers["cache proof"] == "unknown"
    assert answers["heeds temperature"] == "yes", "by the texts of what it draws"
    assert meanings == {"sampled": "raw", "prompt": "unknown"}


def test_sglang_by_the_contract(serve, probe):
    found, answers, meanings = probe(f"sglang:{serve(Sglang()).url}")
    assert found["weight_version"] == "default"
    assert meanings == {"sampled": "temperature processed, truncation raw", "prompt": "raw"}
    assert answers["cache proof"] == "unknown"
    assert answers["heeds temperature"] == answers["scores given ids"] == "yes"


def test_the_table_fits_80_columns(cli, serve, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli("probe", f"vllm:{serve(Vllm(developer=True)).url}")
    assert ended.status == 0
    assert max(len(line) for line in ended.out.splitlines()) <= 80
    assert "what a logprob means" in ended.out


@pytest.mark.parametrize(("options", "meaning"), [("", "raw"), ("?logprobs=processed", "processed")])
def test_an_engine_without_questions_of_its_own_is_asked_by_the_contract(options, meaning, probe):
    found, answers, meanings = probe(f"fake:m{options}")
    assert meanings == {"sampled": meaning, "prompt": "as asked for"}
    assert answers["distributions"] == "yes"
    assert answers["logprobs of given ids"] == "yes"
    assert answers["heeds temperature"] == "yes"
    assert found["engine"]["name"] == "fake"


def test_an_engine_that_only_scores_is_asked_about_that_alone(probe, tmp_path, monkeypatch):
    (tmp_path / "probed_scoring.py").write_text(
        "def score(token_ids):\n    return [[-1.0] * len(ids) for ids in token_ids]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    _, answers, meanings = probe("callable:probed_scoring:score")
    assert answers == {"scores given ids": "yes", "logprobs of given ids": "no", "detokenise": "no"}
    assert meanings == {"prompt": "unknown"}


def test_a_spec_that_names_no_engine_is_a_usage_error(cli):
    ended = cli("probe", "nothing:m")
    assert ended.status == 2
    assert "Known engines" in ended.err

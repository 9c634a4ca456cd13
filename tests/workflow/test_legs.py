"""The ladder on the fake engine: what is read once, what is named, and what never passes."""

import json
from pathlib import Path

import pytest
from standin import Vllm, standing_in

import onepolicy
from onepolicy.engines.contract import ScoreInput
from onepolicy.engines.legs import CACHED, LegChange
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError, RunError, UsageError
from onepolicy.integrations import ENGINES, options_of
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.integrations.fake.options import FakeOptions
from onepolicy.integrations.transformers.options import TransformersOptions
from onepolicy.judgement.load import load_limits
from onepolicy.numerics.legs.ladder import Ladder
from onepolicy.records.run import Run
from onepolicy.workflow.calibrate import CalibrateRequest, calibrate
from onepolicy.workflow.judge import stored_judgement
from onepolicy.workflow.legs import LegsRequest, legs
from onepolicy.workflow.legs_table import LEGS, NAMES, Choice, plan_legs
from onepolicy.workflow.same_model import canary_ids

PLAIN = "fake:m?batch_size=4"


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Path:
    lines = [
        {"id": f"s{i:02}", "prompt": f"{i} of many: ", "completion": "the rain in spain, " * (1 + i % 3) + str(i)}
        for i in range(16)
    ]
    path = tmp_path_factory.mktemp("suite") / "suite.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture
def climb(suite, tmp_path):
    """The ladder of an engine in one run."""

    def climbed(engine: str = PLAIN, **options) -> Ladder:
        against = {name: parse_spec(spec) for name, spec in options.pop("against", {}).items()}
        run = tmp_path / "run"
        given = None if (run / "manifest.json").exists() else str(suite)
        request = LegsRequest(engine=parse_spec(engine), against=against, suite=given, **options)
        return legs(request, path=run)

    return climbed


@pytest.fixture
def scored(monkeypatch) -> list[str]:
    """The rollout ids of every batch that the fake engine scores."""
    seen: list[str] = []
    score = FakeEngine.score

    def counted(self, batch: list[ScoreInput], wanted):
        seen.extend(item.rollout_id for item in batch)
        return score(self, batch, wanted)

    monkeypatch.setattr(FakeEngine, "score", counted)
    return seen


def status_of(ladder: Ladder, name: str) -> str:
    return next(rung for rung in ladder.rungs if rung.name == name).status.value


# -- the ladder -------------------------------------------------------------------------------------------------


def test_an_engine_that_repeats_itself_holds_on_every_leg_that_it_has(climb):
    ladder = climb()
    assert [rung.name for rung in ladder.rungs] == ["repeat", "order", "batch"]
    assert {rung.bitwise_share for rung in ladder.rungs} == {1.0}
    assert ladder.status is onepolicy.Status.PASS
    assert ladder.sentence.startswith("Pass: all 3 legs hold")
    here = {leg.name for leg in ladder.not_here}
    assert here == set(NAMES) - {"repeat", "order", "batch"}


def test_the_first_leg_that_breaks_is_named(climb):
    ladder = climb("fake:m?batch_size=4&batch_noise=1e-3", limits=load_limits("bitwise"))
    assert ladder.breaks == "order"
    assert ladder.sentence.startswith("Fail: the leg 'order' breaks (another order, so other neighbours): ")
    assert status_of(ladder, "repeat") == "pass"


@pytest.mark.parametrize("limits", ["strict", "bf16", "bitwise"])
def test_an_offset_of_1e_5_on_every_token_breaks_its_leg_under_any_limits(climb, limits):
    ladder = climb(against={"server": "fake:m?batch_size=4&offset=-1e-5"}, limits=load_limits(limits))
    assert ladder.breaks == "server"
    (rung,) = [one for one in ladder.rungs if one.name == "server"]
    assert rung.bitwise_share == 0
    assert rung.mean_d == pytest.approx(-1e-5, rel=0.1)
    assert any(v.check == "signed_mean" and v.status.value == "fail" for v in rung.verdicts)


def test_a_leg_held_bitwise_breaks_on_what_the_ladders_limits_let_pass(climb):
    noisy = "fake:m?batch_size=4&batch_noise=1e-6"
    assert climb(noisy).status.value == "pass"
    ladder = climb(noisy, bitwise=("batch",))
    assert ladder.breaks == "batch"
    assert [rung.limits for rung in ladder.rungs] == ["", "", "bitwise"]


def test_the_trainers_prefill_is_the_last_rung(climb):
    ladder = climb(against={"trainer": "fake:m?temperature=1.1"})
    assert ladder.rungs[-1].name == ladder.breaks == "trainer"
    assert ladder.rungs[-1].what == "against fake:m?temperature=1.1"


def test_a_leg_that_only_another_server_has_is_given_as_one(climb):
    ladder = climb(only=("chunked",), against={"chunked": "fake:m?batch_size=2"})
    assert [rung.name for rung in ladder.rungs] == ["chunked"]
    assert ladder.not_here == ()


def test_what_was_sampled_by_the_engine_is_held_against_its_score(tmp_path):
    request = LegsRequest(engine=parse_spec("fake:m"), suite="quick", budget=1500, only=("sampled",))
    ladder = legs(request, path=tmp_path / "run")
    (rung,) = ladder.rungs
    assert (rung.name, rung.reading, rung.base) == ("sampled", "rollout", "legs-plain")
    assert rung.status.value == "pass"


def test_a_server_that_sampled_the_run_is_known_again_by_the_same_ids(tmp_path):
    with standing_in(Vllm()) as server:
        request = LegsRequest(
            engine=parse_spec(f"vllm:{server.url}?retries=0"), suite="quick", budget=200, only=("sampled",)
        )
        ladder = legs(request, path=tmp_path / "run")
    assert [rung.status.value for rung in ladder.rungs] == ["pass"]
    run = Run.open(tmp_path / "run")
    sampled, plain = (run.reading_info(name).canary for name in ("rollout", "legs-plain"))
    assert sampled.token_ids == plain.token_ids
    assert sampled.mean_abs_d(plain.model_copy(update={"token_ids": (1, *plain.token_ids)})) == float("inf")


def test_a_canary_that_holds_nothing_is_not_taken_over(tmp_path):
    with standing_in(Vllm()) as server:
        spec = parse_spec(f"vllm:{server.url}?retries=0")
        legs(LegsRequest(engine=spec, suite="quick", budget=200, only=("sampled",)), path=tmp_path / "run")
    run = Run.open(tmp_path / "run")
    for name in run.reading_names():
        file = tmp_path / "run" / "readings" / name / "reading.json"
        info = run.reading_info(name)
        empty = info.canary.model_copy(update={"token_ids": (1,), "logprobs": {}})
        file.write_text(info.model_copy(update={"canary": empty}).model_dump_json())
    first = next(rollout.token_ids for rollout in run.rollouts())
    assert canary_ids(run).tolist() == first.tolist()


# -- what is read -----------------------------------------------------------------------------------------------


def test_every_reading_is_computed_once_and_another_rung_computes_one_more(climb, scored):
    climb(without=("batch",))
    assert len(scored) == 3 * 16
    scored.clear()
    climb(without=("batch",))
    assert scored == []
    ladder = climb()
    assert len(scored) == 16
    assert [rung.name for rung in ladder.rungs] == ["repeat", "order", "batch"]


def test_the_readings_of_a_calibration_are_used_again(climb, scored, tmp_path, suite):
    request = CalibrateRequest(engine=parse_spec(PLAIN), output=tmp_path / "floor.json", suite=str(suite))
    calibrate(request, path=tmp_path / "run")
    scored.clear()
    ladder = climb()
    assert scored == []
    assert ladder.plain == "floor-base"
    assert [rung.reading for rung in ladder.rungs] == ["floor-repeat", "floor-order", "floor-batch"]


def test_the_repetition_is_never_the_plain_reading_itself(climb):
    ladder = climb(only=("repeat",))
    (rung,) = ladder.rungs
    assert (rung.base, rung.reading) == ("legs-plain", "legs-repeat")


def test_a_reading_that_was_cut_off_is_gone_on_with(climb, scored, tmp_path):
    climb(without=("batch",))
    parts = sorted((tmp_path / "run" / "readings" / "legs-order").glob("part-*"))
    parts[0].unlink()
    scored.clear()
    climb(without=("batch",))
    assert len(scored) == 4


def test_readings_of_another_environment_are_refused(climb, tmp_path):
    climb(without=("batch",))
    path = tmp_path / "run" / "readings" / "legs-order" / "reading.json"
    info = json.loads(path.read_text())
    info["environment"]["numpy"] = "1.26.0"
    path.write_text(json.dumps(info))
    with pytest.raises(RunError, match=r"'legs-order' is not of what answers now: numpy"):
        climb(without=("batch",))


def test_readings_of_weights_that_were_replaced_are_read_anew_under_another_name_alone(climb, scored, monkeypatch):
    climb(without=("batch",))
    before = FakeEngine.info.fget
    other = property(lambda engine: before(engine).model_copy(update={"weights_hash": "f" * 16}))
    monkeypatch.setattr(FakeEngine, "info", other)
    with pytest.raises(RunError, match=r"'legs-plain' is not of what answers now: weights_hash .* -> ffff"):
        climb(without=("batch",))
    scored.clear()
    ladder = climb(without=("batch",), name="later")
    assert ladder.rungs[0].base == "later-plain"
    assert len(scored) == 16 * 3


def test_a_leg_that_cannot_be_read_is_unknown_and_the_others_are_read(climb, monkeypatch):
    score = FakeEngine.score

    def failing(self, batch, wanted):
        if len(batch) == 1:
            raise EngineError("rollout s00: out of memory.")
        return score(self, batch, wanted)

    monkeypatch.setattr(FakeEngine, "score", failing)
    ladder = climb()
    assert status_of(ladder, "order") == "pass"
    assert status_of(ladder, "batch") == "unknown"
    assert ladder.status.value == "unknown"
    assert "it could not be read: rollout s00: out of memory." in ladder.sentence


def test_a_plain_reading_that_fails_ends_it(climb, monkeypatch):
    def failing(self, batch, wanted):
        raise EngineError("out of memory")

    monkeypatch.setattr(FakeEngine, "score", failing)
    with pytest.raises(EngineError, match="out of memory"):
        climb()


# -- proof of a cache -------------------------------------------------------------------------------------------


def caching(monkeypatch, *, warm: float | None, cold: float | None = None, cold_because: str = "") -> None:
    """A fake engine with a leg about a cache, which counts what it says that it took from there."""
    import numpy as np  # noqa: PLC0415

    change = LegChange(options={"delay": "0.0"}, cold_because=cold_because)
    monkeypatch.setattr(FakeOptions, "legs", lambda self, target: {"warm": change})
    score, made = FakeEngine.score, FakeEngine.open.__func__

    def opened(cls, spec):
        engine = made(cls, spec)
        engine.counts = warm if "delay" in spec.options else cold
        return engine

    def counted(self, batch, wanted):
        rows = score(self, batch, wanted)
        if self.counts is None:
            return rows
        for row in rows:
            row.statistics[CACHED] = np.where(row.states == 0, self.counts, np.nan).astype(np.float32)
        return rows

    monkeypatch.setattr(FakeEngine, "open", classmethod(opened))
    monkeypatch.setattr(FakeEngine, "score", counted)


@pytest.mark.parametrize(
    ("counts", "status", "said"),
    [
        ({"warm": 16, "cold": 0}, "pass", "all 1 legs hold"),
        ({"warm": 16, "cold_because": "nothing is kept"}, "pass", "all 1 legs hold"),
        ({"warm": 16}, "unknown", "nothing proves that it was cold"),
        ({"warm": None, "cold": 0}, "unknown", "nothing proves that a cache was used"),
        ({"warm": 0, "cold": 0}, "unknown", "0% of the tokens come after something from the cache"),
        ({"warm": 16, "cold": 3}, "unknown", "up to 3 tokens of 'legs-plain' came from the cache"),
    ],
)
def test_equal_numbers_pass_only_with_proof_of_a_hit_and_of_a_miss(climb, monkeypatch, counts, status, said):
    caching(monkeypatch, **counts)
    ladder = climb(only=("warm",))
    assert ladder.status.value == status
    assert said in ladder.sentence


# -- what is asked for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ("nope",)}, "there is no leg 'nope'. Legs: repeat, order"),
        ({"without": ("nope",)}, "there is no leg 'nope'"),
        ({"bitwise": ("nope",)}, "there is no leg 'nope'"),
        ({"against": {"order": "fake:m"}}, "there is a leg 'order' already"),
        ({"against": {"x": "fak:m"}}, "there is no engine 'fak'"),
        ({"engine": "fake:m?nope=1"}, "has no option 'nope'"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_runs(climb, tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        climb(**options)
    assert not (tmp_path / "run").exists()


def test_waivers_are_refused(climb, tmp_path):
    file = tmp_path / "limits.yaml"
    file.write_text("waivers: [{check: mean_kl, reason: known, until: 2020-01-01}]\n")
    with pytest.raises(UsageError, match="limits with waivers are for check and judge"):
        climb(limits=load_limits(str(file)))


def test_a_leg_asked_for_by_name_that_is_not_possible_is_unknown(climb):
    ladder = climb(only=("repeat", "packed"))
    assert ladder.status.value == "unknown"
    assert "the leg 'packed' was asked for and is not possible here" in ladder.sentence


def test_the_ladder_stays_in_the_run_as_a_judgement_and_in_full(climb, tmp_path):
    ladder = climb("fake:m?batch_size=4&batch_noise=1e-3", limits=load_limits("bitwise"))
    judgement = stored_judgement(tmp_path / "run", "legs")
    assert (judgement.status, judgement.sentence) == (ladder.status, ladder.sentence)
    assert [v.check for v in judgement.verdicts][:3] == ["leg.repeat", "leg.order", "leg.batch"]
    file = tmp_path / "run" / "judgements" / "legs" / "legs.json"
    assert Ladder.model_validate_json(file.read_text()) == ladder


def test_a_function_without_recorded_rollouts_is_told_to_give_a_run(tmp_path):
    (tmp_path / "f.py").write_text("def score(token_ids):\n    return [[-1.0] * len(one) for one in token_ids]\n")
    with pytest.raises(EngineError, match=r"cannot encode a suite's text\. Give --run DIR"):
        legs(LegsRequest(engine=parse_spec(f"callable:{tmp_path / 'f.py'}:score")), path=tmp_path / "run")


def test_ids_of_another_tokenizer_are_refused(climb, tmp_path):
    run = tmp_path / "run"
    onepolicy.check(rollout="fake:m", trainer="fake:m", run=run, budget=1600)
    tokenizer = json.loads(FakeEngine().tokenizer_file())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "f.py").write_text("def score(token_ids):\n    return [[-1.0] * len(one) for one in token_ids]\n")
    with pytest.raises(UsageError, match="recorded with another tokenizer"):
        climb(f"callable:{tmp_path / 'f.py'}:score?tokenizer={tmp_path / 'tokenizer.json'}")


# -- the table --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_every_leg_of_an_engine_is_in_the_table_and_changes_options_that_it_knows(engine):
    options = options_of(engine)()
    for name, change in options.legs("http://localhost:1").items():
        assert name in NAMES
        if not isinstance(change, str):
            assert options.model_validate(options.model_dump() | dict(change.options)) != options
            options.model_validate(options.model_dump() | dict(change.base))


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_leg_of_transformers_is_possible_or_says_why_not(batch_size, dtype):
    spec = parse_spec(f"transformers:m?dtype={dtype}&batch_size={batch_size}")
    plan = plan_legs(spec, Choice())
    possible = [planned.leg.name for planned in plan.legs]
    assert possible == [name for name in NAMES if name in possible], "in the order of the table"
    assert {*possible, *(leg.name for leg in plan.not_here), "sampled"} == set(NAMES)
    alone = {"rows", "packed"} if batch_size == 1 else set()
    same = {dtype} | ({"head"} if dtype == "float32" else set())
    assert {leg.name for leg in plan.not_here} == alone | same


def test_a_spec_that_says_itself_how_the_model_is_called_has_no_such_legs():
    options = TransformersOptions(cache="steps")
    assert {type(change) for change in options.legs("m").values()} == {str}


def test_names_are_alone_and_each_says_what_it_is():
    assert len({leg.name for leg in LEGS}) == len({leg.what for leg in LEGS}) == len(LEGS)


def test_no_reading_of_a_ladder_changes_one_that_was_there(climb, tmp_path):
    run = tmp_path / "run"
    onepolicy.check(rollout="fake:m", trainer="fake:m", run=run, budget=1600)
    before = {path: path.read_bytes() for path in run.rglob("*.parquet")}
    climb("fake:m")
    assert {path: path.read_bytes() for path in before} == before
    assert "legs-plain" in Run.open(run).reading_names()

"""The noise floor of an engine, against numbers worked out from the readings themselves."""

import json
import math
import shutil
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import onepolicy
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError, ForeignReadingError, RunError, UsageError
from onepolicy.integrations import ENGINES, options_of
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.integrations.transformers.options import TransformersOptions
from onepolicy.records.floor import Floor, read_floor
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.tokens.checks.same_text import same_text
from onepolicy.workflow.calibrate import CalibrateRequest, calibrate
from onepolicy.workflow.measure import measure_tokens
from onepolicy.workflow.record import RecordRequest, record

NOISY = "fake:m?batch_noise=1e-4&batch_size=4"
EDGES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0)


def calibrated(folder: Path, engine: str = NOISY, *, resume: bool = False, run: str = "run", **options) -> Floor:
    request = CalibrateRequest(engine=parse_spec(engine), output=folder / "floor.json", **options)
    return calibrate(request, path=folder / run, resume=resume)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory) -> Path:
    """A folder with a calibrated run and its floor; not to be changed."""
    folder = tmp_path_factory.mktemp("noisy")
    calibrated(folder, suite=str(suite_of(folder, 14)))
    return folder


@pytest.fixture
def noisy_copy(noisy, tmp_path) -> Path:
    shutil.copytree(noisy, tmp_path, dirs_exist_ok=True)
    return tmp_path


def suite_of(folder: Path, sequences: int) -> Path:
    """Fixed sequences of different lengths."""
    lines = [
        {"id": f"s{i:02}", "prompt": f"{i} of many: ", "completion": "the rain in spain, " * (1 + i % 5) + str(i)}
        for i in range(sequences)
    ]
    path = folder / "suite.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def rows_of(run: Path, reading: str) -> dict[str, list[float]]:
    """Rollout id -> its logprobs, the NaN of masked tokens left out."""
    parts = sorted((run / "readings" / reading).glob("part-*.parquet"))
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    return {row["rollout_id"]: [x for x in row["logprobs"] if not math.isnan(x)] for row in rows}


def batches_of(run: Path, reading: str) -> set[tuple[str, ...]]:
    parts = (run / "readings" / reading).glob("part-*.parquet")
    return {tuple(pq.read_table(part)["rollout_id"].to_pylist()) for part in parts}


# -- what is measured -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["repeat", "order", "batch"])
def test_each_variation_is_what_the_two_readings_say(noisy, name):
    found = next(v for v in read_floor(noisy / "floor.json").variations if v.name == name)
    base, other = rows_of(noisy / "run", "floor-base"), rows_of(noisy / "run", f"floor-{name}")
    d = {i: [q - p for p, q in zip(base[i], other[i], strict=True)] for i in base}
    k3 = {i: [math.expm1(x) - x for x in row] for i, row in d.items()}
    flat = [x for row in d.values() for x in row]
    assert (found.prompts, found.tokens, found.tokens_without) == (14, len(flat), 0)
    assert found.mean_k3 == pytest.approx(sum(map(sum, k3.values())) / len(flat), rel=1e-9)
    assert found.worst_rollout_k3 == pytest.approx(max(sum(row) / len(row) for row in k3.values()), rel=1e-9)
    assert found.mean_abs_d == pytest.approx(sum(map(abs, flat)) / len(flat), rel=1e-9)
    assert found.max_abs_d == max(map(abs, flat))
    assert found.bitwise_share == sum(x == 0 for x in flat) / len(flat)


@pytest.mark.parametrize("name", ["repeat", "order", "batch"])
def test_each_bucket_of_confidence_is_what_the_two_readings_say(noisy, name):
    found = next(v for v in read_floor(noisy / "floor.json").variations if v.name == name)
    base, other = rows_of(noisy / "run", "floor-base"), rows_of(noisy / "run", f"floor-{name}")
    pairs = [pair for i in base for pair in zip(base[i], other[i], strict=True)]
    expected = {}
    for low, high in pairwise(EDGES):
        d = [q - p for p, q in pairs if low <= math.exp(p) < high]
        if d:
            mean, square = sum(map(abs, d)) / len(d), sum(x * x for x in d) / len(d)
            expected[low, high] = (len(d), mean, math.sqrt(square), max(map(abs, d)))
    buckets = {(b.low, b.high): (b.tokens, b.mean_abs_d, b.rms_d, b.max_abs_d) for b in found.by_confidence}
    assert buckets.keys() == expected.keys()
    assert len(buckets) >= 2
    for edges, numbers in expected.items():
        assert buckets[edges] == pytest.approx(numbers, rel=1e-9)


def test_the_floors_are_the_largest_over_the_variations_and_say_which(noisy):
    floor = read_floor(noisy / "floor.json")
    for name, field in (("mean_kl", "mean_k3"), ("max_abs_d", "max_abs_d"), ("worst_rollout_kl", "worst_rollout_k3")):
        values = {v.name: getattr(v, field) for v in floor.variations}
        largest = getattr(floor, name)
        assert largest.value == values[largest.variation] == max(values.values()) > 0


def test_only_what_a_variation_changes_differs(noisy):
    floor = read_floor(noisy / "floor.json")
    repeat, order, batch = floor.variations
    assert [v.name for v in floor.variations] == ["repeat", "order", "batch"]
    assert floor.absent == ("padding",)
    assert (repeat.bitwise_share, repeat.max_abs_d) == (1.0, 0.0)
    assert order.bitwise_share < 0.1
    assert batch.bitwise_share < 0.1
    assert (repeat.changes, order.changes, batch.changes) == ({}, {}, {"batch_size": "1"})
    run = Run.open(noisy / "run")
    requests = {name: run.reading_info(name).request for name in run.reading_names()}
    shuffles = {name: request.shuffle for name, request in requests.items()}
    assert shuffles == {"floor-base": None, "floor-repeat": None, "floor-order": 1, "floor-batch": None}
    assert parse_spec(requests["floor-batch"].engine).options == {"batch_noise": "1e-4", "batch_size": "1"}


def test_another_order_is_of_the_same_sequences_in_other_batches(noisy):
    base, order = (batches_of(noisy / "run", f"floor-{name}") for name in ("base", "order"))
    flat = {tuple(sorted(i for batch in batches for i in batch)) for batches in (base, order)}
    assert len(flat) == 1
    assert sorted(map(len, base)) == sorted(map(len, order)) == [2, 4, 4, 4]
    assert {frozenset(batch) for batch in base} != {frozenset(batch) for batch in order}


def test_an_engine_that_repeats_to_the_last_bit_has_a_floor_of_zero(tmp_path):
    floor = calibrated(tmp_path, "fake:m", budget=2000)
    assert {v.bitwise_share for v in floor.variations} == {1.0}
    assert (floor.mean_kl.value, floor.max_abs_d.value, floor.worst_rollout_kl.value) == (0, 0, 0)


def test_the_floor_says_what_it_is_of(noisy):
    floor = read_floor(noisy / "floor.json")
    info = Run.open(noisy / "run").reading_info("floor-base")
    assert (floor.engine, floor.environment, floor.meaning) == (info.engine, info.environment, info.meaning)
    assert {"numpy", "python", "onepolicy", "system", "cpus"} <= floor.environment.keys()
    assert (floor.suite, floor.base) == ("suite", "floor-base")
    assert floor.command("fake:x y").endswith(f"--output {noisy / 'floor.json'}")
    assert "'fake:x y' --suite" in floor.command("fake:x y")


def test_a_budget_is_kept(tmp_path):
    floor = calibrated(tmp_path, budget=1500)
    assert 0 < floor.variations[0].tokens <= 1500
    assert "--budget 1500" in floor.command("fake:m")


def test_tokens_without_a_logprob_are_counted(tmp_path):
    suite = str(suite_of(tmp_path, 12))
    floor = calibrated(tmp_path, f"{NOISY}&max_length=60", suite=suite)
    whole = calibrated(tmp_path, NOISY, suite=suite, run="whole")
    for cut, full in zip(floor.variations, whole.variations, strict=True):
        assert cut.tokens_without > 0
        assert cut.tokens + cut.tokens_without == full.tokens


# -- what each engine varies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_every_variation_is_of_options_that_the_engine_knows_and_changes_something(engine):
    options = options_of(engine)()
    for changes in options.variations().values():
        assert options.model_validate(options.model_dump() | changes) != options


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_transformers_pads_the_other_side_in_batches_that_are_padded(batch_size, side):
    options = TransformersOptions(batch_size=batch_size, padding_side=side)
    padding = TransformersOptions.model_validate(options.model_dump() | options.variations()["padding"])
    assert padding.padding_side == ("right" if side == "left" else "left")
    assert padding.batch_size > 1
    assert options.variations()["batch"]["batch_size"] != batch_size


# -- where the tokens come from ---------------------------------------------------------------------------------

RANDOM = """
import random


def score(token_ids):
    return [[-1 - 0.1 * random.random() for _ in ids] for ids in token_ids]
"""


def function(folder: Path, code: str = RANDOM) -> str:
    (folder / "scoring.py").write_text(code)
    return f"callable:{folder / 'scoring.py'}:score"


def test_a_function_that_does_not_repeat_is_measured_on_recorded_rollouts(tmp_path):
    onepolicy.check(rollout="fake:m", trainer="fake:m", run=tmp_path / "run", budget=1600)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.parquet")}
    floor = calibrated(tmp_path, function(tmp_path))
    assert [v.name for v in floor.variations] == ["repeat", "order", "batch"]
    assert floor.variations[0].bitwise_share < 0.1
    assert floor.variations[0].tokens == sum(int(r.compared.sum()) for r in Run.open(tmp_path / "run").rollouts())
    assert floor.suite == "quick"
    assert f"--run {tmp_path / 'run'}" in floor.command("callable:m:f")
    assert {path: path.read_bytes() for path in before} == before


def test_an_engine_that_samples_can_also_be_measured_on_rollouts_that_are_there(tmp_path):
    onepolicy.check(rollout="fake:m", trainer="fake:m", run=tmp_path / "run", budget=1600)
    assert calibrated(tmp_path).suite == "quick"
    assert calibrated(tmp_path, name="again").base == "again-base"


@pytest.mark.parametrize("options", [{}, {"budget": 500}, {"suite": "fixed-quick"}])
def test_a_function_without_recorded_rollouts_is_told_to_give_a_run(tmp_path, options):
    if options:
        record(tmp_path / "run", RecordRequest(engine=parse_spec("fake:m"), suite="fixed-quick", budget=1000))
    with pytest.raises(EngineError, match=r"cannot encode a suite's text\. Give --run DIR"):
        calibrated(tmp_path, function(tmp_path), **options)


def test_a_suite_of_prompts_is_refused_before_anything_is_recorded(tmp_path):
    with pytest.raises(UsageError, match="'quick' is of prompts, and calibrate samples nothing"):
        calibrated(tmp_path, suite="quick")
    assert not (tmp_path / "run").exists()


def test_an_engine_that_cannot_score_is_refused_before_anything_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeEngine, "scores", False)
    with pytest.raises(EngineError, match="cannot score yet, so it has no noise floor"):
        calibrated(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_ids_of_another_tokenizer_are_refused(tmp_path):
    record(tmp_path / "run", RecordRequest(engine=parse_spec("fake:m"), suite=str(suite_of(tmp_path, 12))))
    tokenizer = json.loads(FakeEngine().tokenizer_file())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UsageError, match="recorded with another tokenizer"):
        calibrated(tmp_path, f"{function(tmp_path)}?tokenizer={tmp_path / 'tokenizer.json'}")
    assert not (tmp_path / "floor.json").exists()


def test_rollouts_whose_text_lacks_special_tokens_alone_are_calibrated_on(tmp_path):
    """As a server gives it that leaves them out; same_text says so, and decides nothing."""
    suite = suite_of(tmp_path, 12)
    suite.write_text(suite.read_text().replace('"}', '<|im_end|>"}'))
    record(tmp_path / "run", RecordRequest(engine=parse_spec("fake:m"), suite=str(suite)))
    for part in (tmp_path / "run" / "rollouts").glob("part-*"):
        table = pq.read_table(part)
        texts = pa.array([text.replace("<|im_end|>", "") for text in table["text"].to_pylist()])
        pq.write_table(table.set_column(table.schema.get_field_index("text"), table.schema.field("text"), texts), part)
    (tmp_path / "tokenizer.json").write_bytes(FakeEngine().tokenizer_file())
    floor = calibrated(tmp_path, f"{function(tmp_path)}?tokenizer={tmp_path / 'tokenizer.json'}")
    verdict = same_text(measure_tokens(Run.open(tmp_path / "run"), Run.open(tmp_path / "run"), floor.base, rollouts=12))
    assert (verdict.status, verdict.required) == (Status.FAIL, False)


def test_a_run_that_is_not_recorded_to_its_end_is_no_run_to_score(tmp_path):
    record(tmp_path / "run", RecordRequest(engine=parse_spec("fake:m"), suite="fixed-quick", budget=2000))
    for part in (tmp_path / "run" / "rollouts").glob("part-*"):
        part.unlink()
    with pytest.raises(RunError, match="rollouts are recorded"):
        calibrated(tmp_path, function(tmp_path))


# -- what an engine gives ---------------------------------------------------------------------------------------


def test_an_engine_that_gives_no_logprobs_has_no_floor(tmp_path):
    with pytest.raises(EngineError, match=r"no logprob in \d+ rollouts.*at position \d+ \(floor-base nan"):
        calibrated(tmp_path, "fake:m?offset=50", budget=2000)
    assert not (tmp_path / "floor.json").exists()


def test_an_engine_that_scores_no_token_has_no_floor(tmp_path):
    with pytest.raises(EngineError, match="there is nothing to compare"):
        calibrated(tmp_path, "fake:m?max_length=1", budget=2000)


# -- going on ---------------------------------------------------------------------------------------------------


def test_a_calibrated_run_is_gone_on_with_only_when_asked_and_nothing_is_scored_again(noisy_copy, monkeypatch):
    suite = str(noisy_copy / "suite.jsonl")
    with pytest.raises(RunError, match="--resume"):
        calibrated(noisy_copy, suite=suite)
    before = read_floor(noisy_copy / "floor.json")
    (noisy_copy / "floor.json").unlink()
    monkeypatch.setattr(FakeEngine, "score", lambda *_: pytest.fail("scored again"))
    again = calibrated(noisy_copy, suite=suite, resume=True)
    assert again.variations == before.variations
    assert read_floor(noisy_copy / "floor.json") == again


def test_resume_without_a_run_is_refused(tmp_path):
    request = CalibrateRequest(engine=parse_spec(NOISY), output=tmp_path / "floor.json")
    with pytest.raises(UsageError, match="--resume needs --run DIR"):
        calibrate(request, resume=True)


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("fake:other?batch_noise=1e-4&batch_size=4", {}, "started with engine = "),
        ("fake:m?seed=3", {}, "started with engine = "),
        (NOISY, {"suite": "fixed-quick"}, "started with planned_rollouts = 14"),
        (NOISY, {"budget": 1000}, "started with planned_rollouts = 14"),
    ],
)
def test_a_run_of_another_request_is_not_gone_on_with(noisy_copy, engine, options, message):
    (noisy_copy / "floor.json").unlink()
    with pytest.raises(RunError, match=message):
        calibrated(noisy_copy, engine, resume=True, **options)
    assert not (noisy_copy / "floor.json").exists()


def with_reading_of(run: Path, reading: str, folder: Path, suite: Path) -> None:
    """Put the reading of a run of another suite, calibrated in `folder`, in the place of this run's."""
    calibrated(folder, suite=str(suite))
    shutil.rmtree(run / "readings" / reading)
    shutil.copytree(folder / "run" / "readings" / reading, run / "readings" / reading)


@pytest.mark.parametrize("reading", ["floor-base", "floor-order"])
def test_a_reading_of_other_ids_is_scored_anew(noisy_copy, tmp_path_factory, reading):
    before, other = read_floor(noisy_copy / "floor.json"), tmp_path_factory.mktemp("other")
    suite = other / "suite.jsonl"
    suite.write_text((noisy_copy / "suite.jsonl").read_text().replace("the rain", "The rain"))
    with_reading_of(noisy_copy / "run", reading, other, suite)
    assert calibrated(noisy_copy, resume=True).variations == before.variations


def test_a_reading_of_rollouts_that_the_run_does_not_have_is_refused(noisy_copy, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    with_reading_of(noisy_copy / "run", "floor-order", other, suite_of(other, 16))
    (noisy_copy / "floor.json").unlink()
    with pytest.raises(ForeignReadingError, match="'floor-order' has 2 rows for rollouts that the run does not have"):
        calibrated(noisy_copy, resume=True)
    assert not (noisy_copy / "floor.json").exists()


@pytest.mark.parametrize("reading", ["floor-base", "floor-repeat", "floor-batch"])
def test_a_reading_that_was_begun_in_another_environment_is_not_gone_on_with(noisy_copy, reading):
    path = noisy_copy / "run" / "readings" / reading / "reading.json"
    info = json.loads(path.read_text())
    info["environment"] |= {"numpy": "1.0", "cpu": "8086"}
    path.write_text(json.dumps(info))
    with pytest.raises(RunError, match=rf"{reading}.* another environment: numpy 1\.0 -> .*; cpu 8086 -> "):
        calibrated(noisy_copy, resume=True)


# -- in Python --------------------------------------------------------------------------------------------------


def test_two_runs_and_two_columns_are_held_against_a_floor_only_if_it_holds(noisy_copy, tmp_path_factory):
    limits = noisy_copy / "limits.yaml"
    limits.write_text("floor: floor.json\nmean_kl: 3 x floor\nmax_abs_d: 3 x floor\n")
    copied = shutil.copytree(noisy_copy / "run", tmp_path_factory.mktemp("copied") / "run")
    base = onepolicy.StoredReading(run=Run.open(noisy_copy / "run"), name="floor-base")
    batch = onepolicy.StoredReading(run=Run.open(copied), name="floor-batch")
    assert onepolicy.compare(rollout=base, trainer=batch, limits=str(limits)).exit_status == 0
    for run, name in ((noisy_copy / "run", "floor-base"), (copied, "floor-batch")):
        path = run / "readings" / name / "reading.json"
        info = json.loads(path.read_text())
        info["environment"]["numpy"] = "1.0"
        path.write_text(json.dumps(info))
    with pytest.raises(UsageError, match=r"numpy .* -> 1\.0"):
        onepolicy.compare(rollout=base, trainer=batch, limits=str(limits))
    with pytest.raises(UsageError, match="columns of logprobs do not say"):
        onepolicy.compare(rollout=[-1.0, -2.0], trainer=[-1.0, -2.0], limits=str(limits))

"""Snapshots of the fake engine: the same checkpoint, another one, and what is named before a number."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError, RunError, UsageError
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.judgement.limits import Limits
from onepolicy.records.join import TopJoin
from onepolicy.records.reading import TopLists
from onepolicy.records.run import Run
from onepolicy.records.tokens import digest_of_ids
from onepolicy.records.verdict import Status
from onepolicy.workflow.record import ROLLOUT, RecordRequest, record
from onepolicy.workflow.snapshot import SnapshotRequest, compare_engine, compare_snapshots, take
from onepolicy.workflow.snapshot_lists import list_kl

MADE_WITH = ["versions", "configuration", "tokenizer", "weights"]


def suite_of(folder: Path, sequences: int = 14) -> Path:
    lines = [
        {"id": f"s{i:02}", "prompt": f"{i} of many: ", "completion": "the rain in spain, " * (1 + i % 3) + str(i)}
        for i in range(sequences)
    ]
    path = folder / "suite.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def taken(path: Path, engine: str = "fake:m", **request) -> Path:
    take(SnapshotRequest(engine=parse_spec(engine), **request), path)
    return path


@pytest.fixture(scope="module")
def shots(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("snapshots")
    suite = str(suite_of(folder))
    engines = {"first": "fake:m", "again": "fake:m", "noisy": "fake:m?noise=0.3", "other": "fake:m?seed=1"}
    return {name: taken(folder / name, engine, suite=suite) for name, engine in engines.items()}


@pytest.fixture
def copy(shots, tmp_path) -> Path:
    return shutil.copytree(shots["again"], tmp_path / "copy")


def compared(before: Path, after: Path):
    judgement = compare_snapshots(before, after, limits=Limits())
    return judgement, {verdict.check: verdict for verdict in judgement.verdicts}


def edited(path: Path, edit) -> None:
    file = path / "readings" / ROLLOUT / "reading.json"
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def test_a_snapshot_is_a_run_with_the_logprobs_the_lists_and_what_made_them(shots):
    run = Run.open(shots["first"])
    info = run.reading_info(ROLLOUT)
    engine = FakeEngine()
    assert (run.manifest.kind, run.manifest.status, info.request.top) == ("fixed", "complete", 20)
    assert info.engine.weights_hash == engine.info.weights_hash
    assert info.engine.tokenizer_hash == engine.info.tokenizer_hash[:16]
    lists = TopJoin(run, ROLLOUT)
    for rollout in run.rollouts():
        kept = lists.get(rollout.rollout_id)
        assert kept.positions.tolist() == np.flatnonzero(rollout.loss_mask).tolist()
        assert kept.ids.shape[1] == 20


def test_one_checkpoint_twice_passes_with_a_difference_of_exactly_nothing(shots):
    judgement, verdicts = compared(shots["first"], shots["again"])
    assert judgement.status is Status.PASS
    assert [v.check for v in judgement.verdicts][:4] == MADE_WITH
    assert all(verdicts[name].status is Status.PASS for name in MADE_WITH)
    assert judgement.metrics["bitwise_share"] == 1.0
    assert (verdicts["kept_lists"].value, verdicts["kept_lists"].required) == (0.0, False)


def test_another_checkpoint_fails_and_its_weights_are_named(shots):
    judgement, verdicts = compared(shots["first"], shots["other"])
    assert judgement.status is Status.FAIL
    assert verdicts["weights"].message.startswith("weights ")
    assert judgement.sentence.startswith(
        "Fail: look first at configuration (option seed absent -> 1), weights (weights "
    )
    assert verdicts["kept_lists"].status is Status.FAIL


def test_on_a_mismatch_versions_configuration_and_tokenizer_come_before_any_number(shots, tmp_path):
    path = shutil.copytree(shots["noisy"], tmp_path / "noisy")
    edited(path, lambda info: info["environment"].update(numpy="1.26.0"))
    sentence = compared(shots["first"], path)[0].sentence
    places = [sentence.index(word) for word in ("versions (numpy", "configuration (option noise", "mean k3")]
    assert places == sorted(places)
    edited(path, lambda info: info["engine"].update(options={}))
    edited(path, lambda info: info.update(environment=Run.open(shots["first"]).reading_info(ROLLOUT).environment))
    sentence = compared(shots["first"], path)[0].sentence
    assert sentence.startswith("Fail: versions, configuration, tokenizer and weights are the same. mean k3")


@pytest.mark.parametrize(
    ("edit", "check", "words"),
    [
        (lambda info: info["environment"].update(absent_package="2.9"), "versions", "absent_package absent -> 2.9"),
        (lambda info: info["environment"].pop("numpy"), "versions", "-> absent"),
        (lambda info: info["engine"].update(version="2"), "versions", "engine version 1 -> 2"),
        (lambda info: info["engine"].update(dtype="bfloat16"), "configuration", "dtype float64 -> bfloat16"),
        (lambda info: info["engine"].update(max_length=9), "configuration", "longest sequence not said -> 9"),
        (lambda info: info["engine"].update(vocab_size=7), "tokenizer", "vocabulary 259 -> 7"),
        (lambda info: info["engine"].update(weights_hash=""), "weights", "-> not said"),
    ],
)
def test_what_differs_is_named_and_numbers_that_agree_still_pass(shots, copy, edit, check, words):
    edited(copy, edit)
    judgement, verdicts = compared(shots["first"], copy)
    assert judgement.status is Status.PASS
    assert (verdicts[check].status, verdicts[check].required) == (Status.UNKNOWN, False)
    assert words in verdicts[check].message
    assert all(verdicts[name].status is Status.PASS for name in MADE_WITH if name != check)


def test_other_ids_fail_without_a_number(shots, copy, rewrite):
    """As after a tokenizer that encodes one text otherwise."""
    new = {}

    def other(rows):
        for name in {"s03"} & rows.keys():
            rows[name]["token_ids"][-1] += 1
            new[name] = digest_of_ids(np.array(rows[name]["token_ids"]))

    rewrite(copy / "rollouts", other)
    rewrite(
        copy / "readings" / ROLLOUT, lambda rows: [rows[name].update(digest=digest) for name, digest in new.items()]
    )
    judgement, verdicts = compared(shots["first"], copy)
    assert (judgement.status, judgement.metrics) == (Status.FAIL, {})
    assert list(verdicts) == [*MADE_WITH, "fixed_ids"]
    assert verdicts["fixed_ids"].value == 1
    assert verdicts["fixed_ids"].evidence[0].rollout_id == "s03"


def test_a_live_engine_is_held_against_a_snapshot_which_does_not_change(shots, tmp_path):
    before = {path: path.read_bytes() for path in shots["first"].rglob("*") if path.is_file()}
    same = compare_engine(shots["first"], parse_spec("fake:m?batch_size=3"), limits=Limits())
    assert same.status is Status.PASS
    other = compare_engine(
        shots["first"], parse_spec("fake:m?temperature=1.1"), limits=Limits(), keep=tmp_path / "serving"
    )
    assert other.status is Status.FAIL
    assert "option temperature absent -> 1.1" in other.sentence
    assert {path: path.read_bytes() for path in before} == before
    assert compared(shots["first"], tmp_path / "serving")[0].sentence == other.sentence


def test_a_snapshot_like_another_one_has_its_ids_and_can_be_gone_on_with(shots, tmp_path):
    path = taken(tmp_path / "like", "fake:m?seed=1", like=shots["first"])
    assert compared(shots["other"], path)[0].status is Status.PASS
    with pytest.raises(RunError, match="--resume, or give another --output"):
        taken(path, "fake:m?seed=1", like=shots["first"])
    request = SnapshotRequest(engine=parse_spec("fake:m?seed=1"), like=shots["first"])
    assert take(request, path, resume=True).reading_rollout_ids(ROLLOUT) == set(Run.open(path).rollout_ids())


def test_an_engine_of_a_shorter_context_is_unknown_by_what_it_covers_from_either_side(shots, tmp_path):
    short = tmp_path / "short"
    judgement = compare_engine(shots["first"], parse_spec("fake:m?max_length=40"), limits=Limits(), keep=short)
    backwards, _ = compared(short, shots["first"])
    for one in (judgement, backwards):
        verdicts = {verdict.check: verdict for verdict in one.verdicts}
        assert (one.status, verdicts["coverage"].status) == (Status.UNKNOWN, Status.UNKNOWN)
        assert verdicts["kept_lists"].value == 0.0, "where both have lists they are the same"


def test_without_lists_nothing_is_said_of_them(shots, tmp_path):
    path = taken(tmp_path / "bare", like=shots["first"], top=0)
    verdict = compared(shots["first"], path)[1]["kept_lists"]
    assert (verdict.status, verdict.required) == (Status.UNKNOWN, False)


def test_what_cannot_be_compared_is_an_error(shots, tmp_path):
    (tmp_path / "small").mkdir()
    small = taken(tmp_path / "less", suite=str(suite_of(tmp_path / "small", 5)))
    with pytest.raises(UsageError, match="is of the suite suite"):
        compared(shots["first"], small)
    with pytest.raises(UsageError, match="compared with itself"):
        compared(shots["first"], shots["first"])
    with pytest.raises(RunError, match=r"manifest\.json"):
        compared(shots["first"], tmp_path / "nothing")
    fresh = tmp_path / "fresh"
    record(fresh, RecordRequest(engine=parse_spec("fake:m"), budget=256))
    with pytest.raises(RunError, match="and no snapshot"):
        compared(shots["first"], fresh)


def test_what_cannot_be_taken_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="a snapshot samples nothing"):
        taken(tmp_path / "a", suite="quick")
    (tmp_path / "score.py").write_text("def score(ids):\n    return [-1.0] * len(ids)\n")
    with pytest.raises(EngineError, match="Give --like DIR"):
        taken(tmp_path / "b", f"callable:{tmp_path / 'score.py'}:score")


# -- lists ------------------------------------------------------------------------------------------------------


def lists(positions, ids, probabilities) -> TopLists:
    return TopLists(
        positions=np.array(positions, dtype=np.int32),
        ids=np.array(ids, dtype=np.int32),
        logprobs=np.log(np.array(probabilities, dtype=np.float32)),
    )


def test_the_kl_of_the_lists_is_that_of_the_tokens_both_have_and_of_the_rest():
    p, q = {1: 0.5, 2: 0.3, 3: 0.1}, {2: 0.4, 1: 0.4, 4: 0.15}
    before = lists([7, 9], [list(p), list(p)], [list(p.values())] * 2)
    after = lists([9, 11], [list(q), list(q)], [list(q.values())] * 2)
    by_hand = 0.5 * np.log(0.5 / 0.4) + 0.3 * np.log(0.3 / 0.4) + 0.2 * np.log(0.2 / 0.2)
    assert list_kl(before, after) == pytest.approx([by_hand], rel=1e-5)
    assert len(list_kl(before, lists([1], [[1, 2, 3]], [[0.5, 0.3, 0.1]]))) == 0


def test_the_kl_of_the_lists_is_never_above_that_of_whole_distributions():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(50), 200), rng.dirichlet(np.ones(50), 200)
    exact = (p * np.log(p / q)).sum(axis=1)
    order = [np.argsort(-side, axis=1)[:, :20] for side in (p, q)]
    kept = [
        lists(range(200), ids, np.take_along_axis(side, ids, axis=1)) for side, ids in zip((p, q), order, strict=True)
    ]
    bound = list_kl(*kept)
    assert (bound <= exact + 1e-5).all()
    assert bound.mean() > 0.05

"""A run against an earlier one: what changed is named, and what moved is worked out from the readings by hand."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import onepolicy
from onepolicy.records.past import Against
from onepolicy.records.tokens import digest_of_ids
from onepolicy.workflow.against import against
from onepolicy.workflow.against_changes import changes_between
from onepolicy.workflow.history import past_run

SEQUENCES = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("against")


@pytest.fixture(scope="module")
def suites(folder) -> dict[str, str]:
    fixed = [
        {"id": f"s{i:02}", "prompt": f"{i} of many: ", "completion": "the rain in spain, " * (1 + i % 3) + str(i)}
        for i in range(SEQUENCES)
    ]
    fresh = [{"id": f"p{i:02}", "messages": [{"role": "user", "content": f"say {i}"}]} for i in range(SEQUENCES)]
    for name, lines in (("fixed", fixed), ("fresh", fresh)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return {name: str(folder / f"{name}.jsonl") for name in ("fixed", "fresh")}


@pytest.fixture(scope="module")
def made(folder, suites):
    """A run of the fake engine, made once for each way that it is asked for."""

    def make(name: str, *, rollout="fake:m", trainer="fake:m", suite="fixed", **options) -> Path:
        path = folder / name
        if not path.exists():
            protocol = onepolicy.SamplingProtocol(max_new_tokens=12, **options)
            onepolicy.check(rollout=rollout, trainer=trainer, suite=suites[suite], run=path, protocol=protocol)
        return path

    return make


@pytest.fixture(scope="module")
def green(made) -> Path:
    return made("green", trainer="fake:m?noise=0.003")


def held(run: Path, green: Path) -> Against:
    return against(run, past_run(green))


def edited(path: Path, reading: str, edit) -> Path:
    file = path / "readings" / reading / "reading.json"
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))
    return path


def d_of(path: Path) -> dict[str, np.ndarray]:
    """Rollout id -> d of its compared tokens, from the part files."""
    sides = {}
    for name in ("rollout", "trainer"):
        rows = [row for part in (path / "readings" / name).glob("part-*") for row in pq.read_table(part).to_pylist()]
        sides[name] = {row["rollout_id"]: np.array(row["logprobs"], dtype=np.float64) for row in rows}
    d = {key: sides["trainer"][key] - sides["rollout"][key] for key in sides["rollout"]}
    return {key: values[~np.isnan(values)] for key, values in d.items()}


def test_the_same_again_is_equal_bit_for_bit_and_nothing_changed(made, green):
    found = held(made("again", trainer="fake:m?noise=0.003"), green)
    assert (found.changed, found.unsaid, found.checks) == ((), (), ())
    assert (found.rollouts, found.same_ids) == (SEQUENCES, SEQUENCES)
    assert found.is_bitwise
    assert [(one.difference, one.low, one.high) for one in found.moved] == [(0.0, 0.0, 0.0)] * 3
    assert not any(one.is_significant for one in found.moved)
    assert found.sentence.startswith("Nothing changed. All ")
    assert "bit for bit on both sides" in found.sentence


def test_what_moved_is_the_difference_of_the_means_over_all_tokens(made, green):
    path = made("worse", trainer="fake:m?noise=0.3")
    found = held(path, green)
    then, now = (np.concatenate(list(d_of(one).values())) for one in (green, path))
    by_name = {one.quantity: one for one in found.moved}
    for name, quantity in (("mean_abs_d", np.abs), ("k3", lambda d: np.exp(d) - 1 - d), ("mean_d", lambda d: d)):
        one = by_name[name]
        assert (one.then, one.now) == pytest.approx((quantity(then).mean(), quantity(now).mean()), rel=1e-6)
        assert one.difference == pytest.approx(one.now - one.then, rel=1e-9)
    assert by_name["mean_abs_d"].is_significant
    assert by_name["k3"].is_significant
    assert found.tokens == len(now)


def test_the_side_that_moved_is_named_and_so_are_the_checks(made, green):
    found = held(made("worse", trainer="fake:m?noise=0.3"), green)
    rollout, trainer = found.sides
    assert (rollout.equal, trainer.equal < found.tokens) == (found.tokens, True)
    assert "The rollout side's logprobs are those of then, bit for bit." in found.sentence
    assert found.changed[0] == "configuration: trainer option noise 0.003 -> 0.3"
    assert found.sentence.startswith("Look first at configuration: trainer option noise 0.003 -> 0.3.")
    mean_kl = next(check for check in found.checks if check.check == "mean_kl")
    assert (mean_kl.then_status, mean_kl.now_status) == ("pass", "fail")


def test_an_engine_version_is_the_first_thing_to_look_at(made, green, tmp_path):
    path = shutil.copytree(made("worse", trainer="fake:m?noise=0.3"), tmp_path / "newer")
    edited(path, "rollout", lambda info: info["engine"].update(version="2"))
    found = held(path, green)
    assert found.changed[0] == "versions: rollout engine version 1 -> 2"
    assert found.sentence.startswith("Look first at versions: rollout engine version 1 -> 2; configuration: trainer")


def test_what_changed_on_both_sides_is_said_once(green, tmp_path):
    path = shutil.copytree(green, tmp_path / "moved")
    for reading in ("rollout", "trainer"):
        edited(path, reading, lambda info: info["environment"].update(cpu="another"))
    (only,) = held(path, green).changed
    assert only.startswith("versions: both sides' cpu ")
    assert only.endswith("-> another")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda info: info["environment"].update(driver="550.1"), "versions: trainer driver absent -> 550.1"),
        (lambda info: info["engine"].update(dtype="bfloat16"), "configuration: trainer dtype float64 -> bfloat16"),
        (lambda info: info["engine"].update(vocab_size=7), "tokenizer: trainer vocabulary 259 -> 7"),
        (lambda info: info["engine"].update(weights_hash="ab" * 8), "weights: trainer weights "),
        (lambda info: info["engine"].update(options={"flag": "on"}), "configuration: trainer option flag absent -> on"),
    ],
)
def test_each_kind_of_change_is_named(green, tmp_path, edit, words):
    path = edited(shutil.copytree(green, tmp_path / "edited"), "trainer", edit)
    assert any(change.startswith(words) for change in held(path, green).changed)


def test_a_package_that_only_one_of_them_had_loaded_is_no_change(green, tmp_path):
    path = edited(
        shutil.copytree(green, tmp_path / "x"), "trainer", lambda info: info["environment"].update(vllm="0.9")
    )
    assert held(path, green).changed == ()
    other = edited(
        shutil.copytree(path, tmp_path / "y"), "trainer", lambda info: info["environment"].update(vllm="0.10")
    )
    assert held(other, path).changed == ("versions: trainer vllm 0.9 -> 0.10",)


def test_weights_that_nobody_names_are_not_said_to_be_the_same(green, tmp_path):
    path = shutil.copytree(green, tmp_path / "silent")
    edited(path, "trainer", lambda info: info["engine"].update(weights_hash=""))
    found = held(
        path,
        edited(shutil.copytree(green, tmp_path / "then"), "trainer", lambda i: i["engine"].update(weights_hash="")),
    )
    assert found.unsaid == ("the trainer side's weights",)
    assert found.sentence.startswith("Nothing changed that is recorded; not said: the trainer side's weights.")


def test_limits_that_changed_are_named(green, made, suites, tmp_path):
    path = tmp_path / "looser"
    onepolicy.check(
        rollout="fake:m",
        trainer="fake:m?noise=0.003",
        suite=suites["fixed"],
        run=path,
        limits=onepolicy.Limits(mean_kl=1e-3),
    )
    assert "limits: mean_kl 0.0001 -> 0.001" in held(path, green).changed


# -- fresh rollouts -----------------------------------------------------------------------------------------------


def test_fresh_rollouts_of_one_seed_have_the_ids_of_then(made):
    found = held(made("fresh-again", suite="fresh"), made("fresh", suite="fresh"))
    assert found.is_bitwise
    assert found.changed == ()


def test_another_seed_is_named_and_no_token_is_paired(made):
    found = held(made("reseeded", suite="fresh", seed=1), made("fresh", suite="fresh"))
    assert found.changed == ("protocol: seed 0 -> 1",)
    assert found.same_ids < SEQUENCES
    assert found.sentence.startswith("Look first at protocol: seed 0 -> 1.")
    if not found.same_ids:
        assert (found.tokens, found.moved) == (0, ())
        assert "No token can be paired" in found.sentence


def test_prompts_that_became_other_ids_point_to_the_template(made):
    bos = "fake:m?chat_bos=1"
    found = held(made("templated", suite="fresh", rollout=bos, trainer=bos), made("fresh", suite="fresh"))
    assert f"template: {SEQUENCES} of {SEQUENCES} prompts became other ids, the first is p00" in found.changed
    assert found.same_ids == 0


def test_only_rollouts_with_the_ids_of_then_are_paired(made, tmp_path, rewrite):
    """One rollout that was sampled otherwise is left out, and that is said."""
    then = made("fresh", suite="fresh")
    path = shutil.copytree(made("fresh-again", suite="fresh"), tmp_path / "partly")
    new = {}

    def other(rows):
        for name in [name for name in rows if name.startswith("p03")]:
            rows[name]["token_ids"][-1] = (rows[name]["token_ids"][-1] + 1) % 200
            new[name] = digest_of_ids(np.array(rows[name]["token_ids"]))

    rewrite(path / "rollouts", other)
    for reading in ("rollout", "trainer"):
        rewrite(
            path / "readings" / reading,
            lambda rows: [rows[name].update(digest=new[name]) for name in rows if name in new],
        )
    found = held(path, then)
    assert (found.same_ids, found.rollouts) == (SEQUENCES - 1, SEQUENCES)
    assert f"Only {SEQUENCES - 1} of {SEQUENCES} rollouts have the ids of then" in found.sentence
    assert found.is_bitwise


def test_changes_come_in_the_order_in_which_a_cause_is_looked_for():
    areas = ("limits", "weights", "suite", "protocol", "tokenizer", "configuration", "versions")
    then, now = ({area: {"": {"x": value}} for area in areas} for value in ("1", "2"))
    found = [change.partition(":")[0] for change in changes_between(then, now)]
    assert found == ["versions", "configuration", "tokenizer", "protocol", "suite", "weights", "limits"]

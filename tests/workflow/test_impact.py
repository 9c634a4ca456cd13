"""What a recorded run's mismatch does to training, from the run to the terminal."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import onepolicy
from onepolicy.cli.app import app
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import RunError, UsageError
from onepolicy.records.impact import Impact
from onepolicy.records.run import Run
from onepolicy.report.impact import impact_section, show_impact
from onepolicy.workflow.impact import ImpactRequest, impact
from onepolicy.workflow.score import ScoreRequest, score


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, rewrite) -> Path:
    """Completions of the fake engine, scored by one whose weights are a little off, and by one off elsewhere."""
    path = tmp_path_factory.mktemp("impact") / "run"
    protocol = onepolicy.SamplingProtocol(max_new_tokens=64, samples_per_prompt=4)
    onepolicy.check(rollout="fake:m", trainer="fake:m?noise=0.1", run=path, protocol=protocol, suite="quick")
    score(path, ScoreRequest(engine=parse_spec("fake:m?noise=0.5&dtype=bfloat16"), name="later"))

    def reward(rows: dict[str, dict]) -> None:
        for i, row in enumerate(rows.values()):
            row["reward"] = float(i % 3 == 0)

    rewrite(path / "rollouts", reward)
    return path


@pytest.fixture
def copy(recorded, tmp_path) -> Path:
    return shutil.copytree(recorded, tmp_path / "run")


def logprobs_of(folder: Path) -> dict[str, np.ndarray]:
    rows = (row for part in folder.glob("part-*.parquet") for row in pq.read_table(part).to_pylist())
    return {row["rollout_id"]: np.array(row["logprobs"], dtype=np.float64) for row in rows}


def test_the_numbers_are_those_of_the_run(recorded):
    found = impact(recorded)
    p, q = (logprobs_of(recorded / "readings" / name) for name in ("rollout", "trainer"))
    rollouts = list(Run.open(recorded).rollouts())
    ds = [(q[r.rollout_id] - p[r.rollout_id])[r.sampled] for r in rollouts]
    every = np.concatenate(ds)
    assert (found.tokens, found.rollouts, found.tokens_missing) == (len(every), len(ds), 0)
    assert found.is_sampled
    assert found.mean_ratio.value == pytest.approx(np.exp(every).mean())
    assert found.kl_k1.value == pytest.approx(-every.mean())
    assert found.kl_k2.value == pytest.approx((every**2).mean() / 2)
    assert found.kl_k3.value == pytest.approx((np.expm1(every) - every).mean())
    assert found.clipping.above.value == pytest.approx(np.mean(every > np.log(1.2)))
    assert found.correct == sum(r.reward > 0 for r in rollouts)
    product = np.exp([d.sum() for d in ds])
    assert found.sequence_weights.effective_share == pytest.approx(product.sum() ** 2 / len(ds) / (product**2).sum())
    assert found.sequences.product_outside.value == pytest.approx(np.mean((product < 0.5) | (product > 2)))
    lost = next(one for one in found.corrections if one.name == "sequence_mis")
    outside = [not 0.5 <= ratio <= 2 for ratio in product]
    assert lost.correct_lost == sum(out for out, r in zip(outside, rollouts, strict=True) if r.reward > 0)


def test_a_run_whose_sides_agree_has_no_impact(tmp_path):
    protocol = onepolicy.SamplingProtocol(max_new_tokens=8, samples_per_prompt=2)
    onepolicy.check(rollout="fake:m", trainer="fake:m", run=tmp_path / "run", protocol=protocol)
    found = impact(tmp_path / "run")
    assert found.clipping.above.value == found.clipping.below.value == found.kl_k3.value == 0
    assert found.token_weights.effective_share == found.sequence_weights.effective_share == 1
    assert {(one.kept.value, one.token_distance, one.correct_lost) for one in found.corrections} == {(1.0, 0.0, None)}
    assert "no rewards" in " ".join(found.notes)


def test_what_is_let_through_is_not_known_without_a_reading_of_the_updated_policy(recorded):
    found = impact(recorded)
    assert found.updated is None
    assert any("--updated" in note for note in found.notes)
    found = impact(recorded, ImpactRequest(updated="later"))
    assert found.updated.tokens == found.tokens
    assert not any("--updated" in note for note in found.notes)
    p, q, c = (logprobs_of(recorded / "readings" / name) for name in ("rollout", "trainer", "later"))
    through = tokens = 0
    groups: dict[str, list] = {}
    for r in Run.open(recorded).rollouts():
        groups.setdefault(r.group or r.prompt_id, []).append(r)
    for group in groups.values():
        mean = np.mean([r.reward for r in group])
        for r in group:
            if r.reward > mean:
                true, seen = (np.exp(c[r.rollout_id] - x[r.rollout_id])[r.sampled] for x in (q, p))
                tokens += len(true)
                through += np.sum((true > 1.2) & (seen <= 1.2))
    above = next(side for side in found.updated.sides if side.is_above)
    assert above.wrongly_let_through.value == pytest.approx(through / tokens)
    assert through > 0


def test_the_off_policy_mask_needs_all_rewards(copy, rewrite):
    assert "off_policy_mask" in {one.name for one in impact(copy).corrections}

    def forget(rows: dict[str, dict]) -> None:
        next(iter(rows.values()))["reward"] = None

    rewrite(copy / "rollouts", forget)
    found = impact(copy)
    assert "off_policy_mask" not in {one.name for one in found.corrections}
    assert found.clipping.tokens_by_advantage["no_reward"] > 0
    assert "some groups lack a reward" in " ".join(found.notes)


def test_fixed_sequences_say_that_they_were_not_sampled(tmp_path):
    onepolicy.check(rollout="fake:m", trainer="fake:m?noise=0.03", run=tmp_path / "run", suite="fixed-quick")
    found = impact(tmp_path / "run")
    assert not found.is_sampled
    assert "not sampled" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (ImpactRequest(epsilon=0.0), UsageError, "--epsilon 0"),
        (ImpactRequest(epsilon=1.0), UsageError, "--epsilon 1"),
        (ImpactRequest(epsilon=float("nan")), UsageError, "--epsilon nan"),
        (ImpactRequest(epsilon_high=float("inf")), UsageError, "--epsilon-high inf"),
        (ImpactRequest(trainer="rollout"), UsageError, "compared with itself"),
        (ImpactRequest(updated="trainer"), UsageError, "compared with itself"),
        (ImpactRequest(trainer="nowhere"), RunError, "nowhere"),
        (ImpactRequest(updated="nowhere"), RunError, "nowhere"),
    ],
)
def test_what_is_no_request_is_refused(recorded, request_, error, words):
    with pytest.raises(error, match=words):
        impact(recorded, request_)


def test_a_reading_without_a_row_is_refused_where_nothing_is_left(copy):
    for part in (copy / "readings" / "trainer").glob("part-*.parquet"):
        part.unlink()
    with pytest.raises(UsageError, match="nothing to train on"):
        impact(copy)


def test_the_command_shows_it_in_80_columns_and_changes_nothing(copy, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert app.main(["impact", str(copy), "--updated", "later"], standalone_mode=False) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for words in (
        "Before any update",
        "IcePop, 0.5-5",
        "wrongly let through",
        "rollout_rs=seq_mean_k1",
        "token_mask",
    ):
        assert words in out
    assert "…" not in out
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_the_json_is_the_value(recorded, capsys):
    assert app.main(["impact", str(recorded), "--epsilon-high", "0.28", "--json"], standalone_mode=False) == 0
    found = Impact.model_validate(json.loads(capsys.readouterr().out))
    assert found.clipping.epsilon_high == 0.28
    assert found == impact(recorded, ImpactRequest(epsilon_high=0.28))


def test_the_section_of_a_page_escapes_and_holds_every_table(recorded):
    found = impact(recorded).model_copy(update={"notes": ("<b>x</b>",)})
    section = impact_section(found)
    assert "&lt;b&gt;x" in section
    assert section.count("<table>") == 5
    console = Console(width=80, record=True, file=None)
    with console.capture() as shown:
        show_impact(found, console)
    assert "sequence ratio" in shown.get()

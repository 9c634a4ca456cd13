"""What a real vLLM recorded, against Transformers computed here.

Expected numbers: `benchmarks/data/README.md` and docs/pairs.md; they were measured once on another machine.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from recording import recorded, write_run

pytestmark = pytest.mark.real

ONEPOLICY = [sys.executable, "-m", "onepolicy"]
PROMPTS = 12
EXPECTED = {
    "float32": {"mean_abs_d": (0.0324, 0.0015), "k3": (1.16e-3, 0.08e-3)},
    "bfloat16": {"mean_abs_d": (0.0402, 0.0019), "k3": (1.91e-3, 0.12e-3)},
}
"""value and standard error over prompts"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ONEPOLICY, *arguments], capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """Trainer dtype -> the judgement of the recorded run, as the command prints it."""
    path = str(write_run(tmp_path_factory.mktemp("recorded") / "run", recorded()).path)
    found = {}
    for dtype in EXPECTED:
        done = run("score", path, "--engine", f"transformers:smollm2?dtype={dtype}", "--name", dtype)
        assert done.returncode == 0, done.stderr
        done = run("judge", path, "--trainer", dtype, "--limits", "bf16", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        found[dtype] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def held() -> tuple[dict, dict]:
    """With tokens drawn here against the exact KL, and with vLLM's own."""
    from estimators import scored, tables  # noqa: PLC0415 - loads torch, which the fast tests do without

    return tables(scored(PROMPTS))


@pytest.mark.parametrize("dtype", EXPECTED)
def test_the_recorded_pair_gives_the_numbers_that_it_gave_before(judged: dict[str, dict], dtype: str) -> None:
    for name, (value, error) in EXPECTED[dtype].items():
        assert judged[dtype]["metrics"][name] == pytest.approx(value, abs=3 * error)
    assert judged[dtype]["counts"]["tokens_compared"] == 2716


@pytest.mark.parametrize("dtype", EXPECTED)
def test_it_is_judged_by_the_hybrid_kl_of_the_recorded_lists(judged: dict[str, dict], dtype: str) -> None:
    verdicts = {verdict["check"]: verdict for verdict in judged[dtype]["verdicts"]}
    assert verdicts["mean_kl"]["quantity"] == "kl_hybrid"
    assert verdicts["mean_ratio"]["status"] == "pass"


@pytest.mark.parametrize("name", ["hybrid-20", "hybrid-100", "k3", "k1"])
def test_an_estimate_from_drawn_tokens_is_the_exact_kl_within_its_error(held: tuple[dict, dict], name: str) -> None:
    row = held[0][name]
    assert abs(row.z) <= 3
    assert row.error < {"hybrid-20": 0.03, "hybrid-100": 0.02, "k3": 0.05, "k1": 0.6}[name], "too blunt to show a bias"


@pytest.mark.parametrize("name", ["hybrid-20", "k3", "k1"])
def test_the_estimates_from_the_recorded_tokens_and_lists_agree(held: tuple[dict, dict], name: str) -> None:
    assert abs(held[1][name].z) <= 3


@pytest.mark.parametrize("name", ["bucket-20", "bucket-100"])
def test_the_bucket_bound_lies_below_the_exact_kl_and_below_the_estimate(held: tuple[dict, dict], name: str) -> None:
    assert held[0][name].share < 1
    assert held[1][name].share < 1


def test_the_first_twenty_entries_as_vllm_orders_them_would_depend_on_the_sampled_token() -> None:
    """So the reader puts them in order: no more than its share of sampled tokens stands first."""
    rows = recorded()
    first = sum(int((row.top_ids[:, 0] == row.completion_ids).sum()) for row in rows)
    assert 0.4 < first / sum(len(row.completion_ids) for row in rows) < 0.8
    assert all((row.top_logprobs[:, :-1] >= row.top_logprobs[:, 1:]).all() for row in rows)

"""Oracle: verl's own functions and TRL's own lines, run in a process of their own on the same tokens."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onepolicy.numerics.native import NativeSums

PEERS = Path(__file__).parents[2] / ".peers"

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not PEERS.exists(), reason="verl and TRL are not in .peers: run make bench once"),
]

VERL = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, torch
from verl.protocol import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_corr_metrics_from_logprobs
from verl.utils.debug.metrics import calculate_debug_metrics

arrays = np.load(sys.argv[2])
p, q, mask = (torch.from_numpy(arrays[name]) for name in ("p", "q", "mask"))
columns = {"rollout_log_probs": p, "old_log_probs": q, "response_mask": mask, "responses": torch.zeros_like(mask)}
metrics = compute_rollout_corr_metrics_from_logprobs(q, p, mask)
metrics.update(calculate_debug_metrics(DataProto.from_dict(tensors=columns)))
print(json.dumps(metrics))
"""

TRL = """
import json, sys, textwrap
from pathlib import Path
import numpy as np, torch

source = Path(sys.argv[1], "trl/trainer/grpo_trainer.py").read_text()
first = source.index("            delta = torch.abs(old_per_token_logps - sampling_per_token_logps)")
last = source.index("            self._metrics", first)
arrays = np.load(sys.argv[2])
p, q, mask = (torch.from_numpy(arrays[name]) for name in ("p", "q", "mask"))
names = {"torch": torch, "old_per_token_logps": q, "sampling_per_token_logps": p, "completion_mask": mask,
         "tool_mask": None, "device": "cpu"}
exec(textwrap.dedent(source[first:last]), names)
print(json.dumps({kind: names[f"{kind}_delta"].item() for kind in ("mean", "max")}))
"""


def theirs(script, rows, path, dtype):
    """What the peer says of the rollouts, padded as trainers pad them."""
    shape = len(rows), max(len(row["p"]) for row in rows)
    arrays = {"p": np.zeros(shape, dtype), "q": np.zeros(shape, dtype), "mask": np.zeros(shape, np.int64)}
    for i, row in enumerate(rows):
        n = len(row["p"])
        arrays["p"][i, :n], arrays["q"][i, :n] = np.float32(row["p"]), np.float32(row["q"])
        arrays["mask"][i, :n] = 1
    np.savez(path, **arrays)
    command = [sys.executable, "-W", "ignore", "-c", script, str(PEERS), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=[0.03, 1.0, 12.0], ids="noise of {}".format)
def rows(request, rollout):
    """Forty rollouts of all lengths; with the largest noise every clamp acts."""
    rng = np.random.default_rng(7)
    result = []
    for i, n in enumerate([0, 1, *rng.integers(2, 80, 38)]):
        p = -rng.exponential(1.0, n) - 0.01
        q = np.minimum(p + request.param * rng.standard_normal(n), 0)
        result.append(rollout(p, q, name=f"r-{i}"))
    return result


@pytest.fixture
def ours(pair, rows):
    sums = NativeSums()
    for part in (rows[:17], rows[17:]):
        sums.add(pair(part))
    return sums.values()


def test_every_number_of_verl_is_ours(ours, rows, tmp_path):
    metrics = theirs(VERL, rows, tmp_path / "arrays.npz", np.float64)
    assert metrics.pop("training/rollout_probs_diff_valid") == 1
    assert ours["verl"] == pytest.approx(metrics, rel=1e-12, abs=1e-15)


def test_every_number_of_verl_is_ours_up_to_its_float32(ours, rows, tmp_path):
    metrics = theirs(VERL, rows, tmp_path / "arrays.npz", np.float32)
    assert metrics.pop("training/rollout_probs_diff_valid") == 1
    assert ours["verl"] == pytest.approx(metrics, rel=1e-3, abs=1e-6)  # chi2_token is 1.0001 - 1 in float32


@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-12), (np.float32, 1e-6)])
def test_every_number_of_trl_is_ours(ours, rows, tmp_path, dtype, error):
    metrics = theirs(TRL, rows, tmp_path / "arrays.npz", dtype)
    assert {name.rpartition("/")[2]: value for name, value in ours["TRL"].items()} == pytest.approx(metrics, rel=error)

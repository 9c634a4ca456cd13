"""Oracle: verl's own functions and TRL's own lines, given the options that stand beside each correction."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onepolicy.numerics.impact.choices import CHOICES, OFF_POLICY
from onepolicy.numerics.impact.corrections import Correction, Rejection, Weight, by_ratio, kept_by, weights_of
from onepolicy.numerics.impact.piece import pieces_of
from onepolicy.numerics.impact.replay import Replay
from onepolicy.numerics.pair import Pair, pair_up
from onepolicy.records.parquet import ReadingBlock, RolloutBlock
from onepolicy.records.tokens import TokenState

PEERS = Path(__file__).parents[2] / ".peers"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not PEERS.exists(), reason="verl and TRL are not in .peers: run make .peers/.ready"),
]

VERL = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, torch
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

arrays = np.load(sys.argv[2])
p, q, mask = (torch.from_numpy(arrays[name]) for name in ("p", "q", "mask"))
found, metrics = {}, {}
for name, options in json.loads(sys.argv[3]).items():
    config = RolloutCorrectionConfig(**{"rollout_is": None, **options})
    proto, kept, metrics[name] = compute_rollout_correction_and_rejection_mask(
        old_log_prob=q, rollout_log_prob=p, response_mask=mask, rollout_is=config.rollout_is,
        rollout_is_threshold=config.rollout_is_threshold, rollout_rs=config.rollout_rs,
        rollout_rs_threshold=config.rollout_rs_threshold)
    weights = torch.ones_like(q) if proto is None else proto.batch["rollout_is_weights"]
    found[name + " weights"], found[name + " kept"] = weights.numpy(), kept.numpy()
np.savez(sys.argv[4], **found)
presets = {name: vars(getattr(RolloutCorrectionConfig, name)()) for name in sys.argv[5:]}
print(json.dumps({"metrics": metrics, "presets": presets}))
"""

TRL = """
import json, math, sys, textwrap
sys.path.insert(0, sys.argv[1])
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
import numpy as np, torch
from trl import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

source = Path(sys.argv[1], "trl/trainer/grpo_trainer.py").read_text()
start = "            if self.use_vllm and self.vllm_importance_sampling_correction:\\n                mask = "
first = source.index(start)
last = source.index("            # Compute the per-token log probabilities for the reference model", first)
lines = textwrap.dedent(source[first:last])
defaults = {one.name: one.default for one in fields(GRPOConfig)}
arrays = np.load(sys.argv[2])
p, q, mask, signs = (torch.from_numpy(arrays[name]) for name in ("p", "q", "mask", "signs"))
found = {}
for name, options in json.loads(sys.argv[3]).items():
    unknown = set(options) - set(defaults)
    assert not unknown, unknown
    settings = {**defaults, **options}
    weights = torch.ones_like(q)
    if settings["vllm_importance_sampling_correction"] and settings["off_policy_mask_threshold"] is None:
        names = {"self": SimpleNamespace(**{**settings, "use_vllm": True}), "completion_mask": mask, "tool_mask": None,
                 "old_per_token_logps": q, "sampling_per_token_logps": p, "torch": torch, "math": math}
        exec(lines, names)
        weights = names["vllm_importance_sampling_ratio"].expand_as(q)
    if settings["off_policy_mask_threshold"] is not None:
        weights = GRPOTrainer.get_off_policy_mask(
            signs.unsqueeze(1), q, p, mask, settings["off_policy_mask_threshold"]).expand_as(q)
    found[name] = weights.numpy()
np.savez(sys.argv[4], **found)
"""

OTHERS = {  # what is in verl and not among the choices; thresholds at which something is kept at each noise
    "token_k3": (Rejection(statistic="token_k3", high=0.3), 0.3),
    "seq_sum_k1": (by_ratio("seq_sum_k1", 0.2, 1.5), "0.2_1.5"),
    "seq_sum_k3": (Rejection(statistic="seq_sum_k3", high=0.02), 0.02),
    "seq_mean_k3": (Rejection(statistic="seq_mean_k3", high=0.5), 0.5),
    "seq_max_k2": (Rejection(statistic="seq_max_k2", high=2.0), 2.0),
    "seq_max_k3": (Rejection(statistic="seq_max_k3", high=0.002), 0.002),
}
PRESETS = {
    "token_tis": "decoupled_token_is",
    "sequence_tis": "decoupled_seq_is",
    "icepop": "decoupled_token_icepop",
    "sequence_mis": "decoupled_seq_is_rs",
    "geometric": "decoupled_geo_rs",
    "geometric_token_tis": "decoupled_geo_rs_token_tis",
    "sequence_mean_k3": "decoupled_k3_rs",
}


def options_in(text):
    """`a=1.0 b="x_y"` -> what a configuration file gives."""
    found = dict(part.split("=", 1) for part in shlex.split(text))
    return {key: {"null": None, "False": False}.get(value, _number(value)) for key, value in found.items()}


def _number(text):
    try:
        return float(text)
    except ValueError:
        return text


def run(script, *arguments):
    command = [sys.executable, "-W", "ignore", "-c", script, str(PEERS), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(params=[0.0005, 0.03, 1.0, 12.0], ids="noise of {}".format)
def padded(request):
    """Left and right padding, holes as tool calls leave them, and an empty rollout; junk under the mask.

    With the largest noise every clamp acts; with the smallest the geometric band keeps some.
    """
    rng = np.random.default_rng(11)
    shape = 60, 90
    mask = np.zeros(shape, np.int64)
    for row in mask[1:]:
        start, stop = sorted(rng.choice(np.arange(shape[1] + 1), 2, replace=False))
        row[start:stop] = rng.random(stop - start) < 0.9
    p = np.float32(-rng.exponential(1.0, shape) - 60.0)
    q = np.float32(np.minimum(p + request.param * rng.standard_normal(shape), 0))
    signs = np.sign(rng.integers(-1, 2, shape[0])).astype(np.float64)
    return {"p": p.astype(np.float64), "q": q.astype(np.float64), "mask": mask, "signs": signs}


@pytest.fixture
def stored(padded, tmp_path):
    np.savez(tmp_path / "arrays.npz", **padded)
    return tmp_path / "arrays.npz"


def pair_of(padded) -> Pair:
    """The same as a run keeps it: all positions stored, those under the mask not sampled."""
    rows, length = padded["mask"].shape
    names, size = [f"r-{i}" for i in range(rows)], rows * length
    sampled = padded["mask"].ravel() > 0
    offsets = np.arange(rows + 1, dtype=np.int64) * length
    rollouts = RolloutBlock(
        rollout_ids=names, prompt_ids=names, tags=["{}"] * rows, offsets=offsets,
        token_ids=np.zeros(size, np.int32), sampled=sampled, loss_mask=sampled,
    )  # fmt: skip
    readings = [
        ReadingBlock(
            rollout_ids=names, digests=names, offsets=offsets, logprobs=padded[side].ravel().astype(np.float32),
            states=np.full(size, TokenState.VALUE, np.uint8), top1=None,
        )
        for side in ("p", "q")
    ]  # fmt: skip
    return pair_up(rollouts, names, *readings)


def ours(padded, correction, *, bound):
    """[M] weight and kept flag of each token under the mask, and the replay's own sums."""
    signs = padded["signs"].astype(np.int8)
    pieces = [piece for _, piece in pieces_of(pair_of(padded), signs, signs > 0)]
    weights = np.concatenate([weights_of(correction.weight, one, bound=bound) for one in pieces])
    kept = np.concatenate([kept_by(correction.rejection, one, bound=bound) for one in pieces])
    replay = Replay(correction=correction)
    for one in pieces:
        replay.add(one)
    return weights, kept, replay


def same(found, expected):
    """Exactly the same zeros; other weights up to the rounding of a sum of 90 numbers and of two libraries' exp."""
    assert np.array_equal(found == 0, expected == 0)
    np.testing.assert_allclose(found, expected, rtol=3e-14, atol=0)


def test_every_correction_is_verls_own(padded, stored, tmp_path):
    of_verl = {one.name: one for one in CHOICES if one.verl}
    options = {name: options_in(one.verl) for name, one in of_verl.items()}
    for name, (rejection, threshold) in OTHERS.items():
        of_verl[f"other {name}"] = Correction(name=name, label=name, rejection=rejection)
        options[f"other {name}"] = {"rollout_rs": name, "rollout_rs_threshold": threshold}
    of_verl["sequence icepop"] = Correction(
        name="x", label="x", weight=Weight(of_sequence=True, low=0.25, high=4.0, masks=True)
    )
    options["sequence icepop"] = {"rollout_is": "sequence", "rollout_is_threshold": "0.25_4.0"}
    said = json.loads(run(VERL, stored, json.dumps(options), tmp_path / "found.npz", *PRESETS.values()))
    theirs, mask = np.load(tmp_path / "found.npz"), padded["mask"] > 0
    for name, correction in of_verl.items():
        weights, kept, replay = ours(padded, correction, bound=20.0)
        same(weights, theirs[f"{name} weights"][mask])
        assert np.array_equal(kept, theirs[f"{name} kept"][mask] > 0)
        check_metrics(said["metrics"][name], correction, replay)
    for name, preset in PRESETS.items():
        check_preset(options[name], said["presets"][preset])


def check_metrics(metrics, correction, replay):
    """What verl logs of the same choice."""
    if correction.rejection is None and correction.weight is not None:
        mean = replay.weights / replay.tokens
        assert mean == pytest.approx(metrics["rollout_corr/rollout_is_mean"], rel=1e-9)
        if replay.squares:
            effective = (mean + 1e-8) ** 2 * replay.tokens / replay.squares  # the 1e-8 is verl's
            assert effective == pytest.approx(metrics["rollout_corr/rollout_is_eff_sample_size"], rel=1e-9)
    if correction.rejection is not None:
        rejected = metrics["rollout_corr/rollout_rs_masked_fraction"]
        assert 1 - replay.tokens_kept / replay.tokens == pytest.approx(rejected, abs=1e-9)


def check_preset(options, preset):
    """The options that we print are what verl's preset of that name sets."""
    for key in ("rollout_is", "rollout_rs"):
        assert options.get(key) == preset[key]
        if preset[key] is not None:
            assert str(options[f"{key}_threshold"]) == str(preset[f"{key}_threshold"])


def test_every_correction_is_trls_own(padded, stored, tmp_path):
    of_trl = {one.name: one for one in (*CHOICES, OFF_POLICY) if one.trl}
    options = {name: options_in(one.trl) for name, one in of_trl.items()}
    of_trl["default"] = of_trl["sequence_mis_3"]
    of_trl["clipped on both sides"] = Correction(name="x", label="x", weight=Weight(low=0.8, high=1.2))
    of_trl["no upper bound"] = Correction(name="x", label="x", weight=Weight(of_sequence=True, low=0.9, masks=True))
    options["default"] = {}
    prefix = "vllm_importance_sampling_"
    options["clipped on both sides"] = {
        f"{prefix}mode": "token_truncate", f"{prefix}clip_min": 0.8, f"{prefix}clip_max": 1.2
    }  # fmt: skip
    options["no upper bound"] = {
        f"{prefix}mode": "sequence_mask", f"{prefix}clip_min": 0.9, f"{prefix}clip_max": None
    }  # fmt: skip
    run(TRL, stored, json.dumps(options), tmp_path / "found.npz")
    theirs, mask = np.load(tmp_path / "found.npz"), padded["mask"] > 0
    for name, correction in of_trl.items():
        weights, kept, _ = ours(padded, correction, bound=None)
        same(weights * kept, theirs[name][mask])

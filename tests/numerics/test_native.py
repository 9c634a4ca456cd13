"""Oracle: the frameworks' documented formulas, worked by hand on two tiny batches.

`ONE`: rollout a has tokens with probabilities 0.5 -> 0.25 and 0.8 -> 0.8 (rollout -> trainer), rollout b one with
0.2 -> 0.6. So d is -ln 2, 0 and ln 3; ln 2 = 0.69314718, ln 3 = 1.09861229.
`FAR`: one rollout whose only token has d = 30, beyond every clamp, and one with d = 0.
"""

import math
from pathlib import Path

import numpy as np
import pytest

from onepolicy.numerics.native import NATIVE, SOURCES, NativeSums, reconcile_page
from onepolicy.numerics.native import sums as sums_module
from onepolicy.numerics.table import REDUCTIONS, reductions
from onepolicy.records.tokens import TokenState

PAGE = Path(__file__).parents[2] / "docs" / "reconcile.md"
ONE = [([0.5, 0.8], [0.25, 0.8]), ([0.2], [0.6])]

ON_ONE = {
    "verl": {
        "rollout_corr/kl": -0.13515504,  # -(-0.69314718 + 0 + 1.09861229) / 3
        "rollout_corr/k3_kl": 0.36484496,  # (0.5 - 1 + 0.69314718  +  0  +  3 - 1 - 1.09861229) / 3
        "rollout_corr/log_ppl_diff": -0.37601935,  # (0.34657359 - 1.09861229) / 2
        "rollout_corr/log_ppl_abs_diff": 0.72259294,  # (0.34657359 + 1.09861229) / 2
        "rollout_corr/log_ppl_diff_max": 0.34657359,
        "rollout_corr/log_ppl_diff_min": -1.09861229,
        "rollout_corr/ppl_ratio": 0.87377345,  # (sqrt 2 + 1/3) / 2
        "rollout_corr/chi2_token": 2.41666667,  # (1/4 + 1 + 9) / 3 - 1
        "rollout_corr/chi2_seq": 3.625,  # (1/4 + 9) / 2 - 1
        "rollout_corr/training_ppl": 1.95136733,  # (sqrt(1 / (0.25 * 0.8)) + 1/0.6) / 2 = (2.23606798 + 1.66666667) / 2
        "rollout_corr/training_log_ppl": 0.65777229,  # (0.80471896 + 0.51082562) / 2
        "rollout_corr/rollout_ppl": 3.29056942,  # (sqrt(1 / 0.4) + 5) / 2 = (1.58113883 + 5) / 2
        "rollout_corr/rollout_log_ppl": 1.03379164,  # (0.45814537 + 1.60943791) / 2
        "training/rollout_probs_diff_mean": 0.21666667,  # (0.25 + 0 + 0.4) / 3
        "training/rollout_probs_diff_max": 0.4,
        "training/rollout_probs_diff_std": 0.20207259,  # sqrt((0.0625 + 0.16 - 3 * 0.21666667^2) / 2)
        # p - mean: 0, 0.3, -0.3; q - mean: -0.3, 0.25, 0.05: 0.06 / sqrt(0.18 * 0.155)
        "training/rollout_actor_probs_pearson_corr": 0.35921060,
    },
    "TRL": {
        "sampling/sampling_logp_difference/mean": 0.59725316,  # (0.69314718 + 0 + 1.09861229) / 3
        "sampling/sampling_logp_difference/max": 1.09861229,
    },
    "NeMo-RL": {
        "train/token_mult_prob_error": 2.0,  # (2 + 1 + 3) / 3
        "train/gen_kl_error": 0.36484496,
        "train/policy_kl_error": 0.24626615,  # (2 - 1 - 0.69314718  +  0  +  1/3 - 1 + 1.09861229) / 3
        # M is 0.375, 0.8, 0.4: (k3(q to M) + k3(p to M)) / 2 with k3 of ratio r = r - 1 - ln r, so that each token has
        # -ln(q p / M^2) / 2: ln(0.140625 / 0.125) / 2 = 0.05889152, 0, ln(0.16 / 0.12) / 2 = 0.14384104
        "train/js_divergence_error": 0.06757752,
        "train/sampling_importance_ratio": 1.5,  # (1/2 + 1 + 3) / 3
    },
    "slime": {"train/train_rollout_logprob_abs_diff": 0.72259294},  # (0.69314718 / 2 + 1.09861229) / 2
    "miles": {
        "train/train_rollout_logprob_abs_diff": 0.72259294,
        "train/train_rollout_kl": 0.49898065,  # (0.19314718 / 2 + 0.90138771) / 2
    },
    "prime-rl": {
        "mismatch_kl/all/mean": 0.36484496,
        "mismatch_kl/all/std": 0.47458937,  # sqrt((0.03730583 + 0.81249981 - 3 * 0.36484496^2) / 2)
        "mismatch_kl/all/max": 0.90138771,
    },
    "AReaL": {"behave_approx_kl": 0.13515504, "behave_imp_weight": 1.5},
    "OpenRLHF": {"vllm_kl": -0.13515504},
    "torchtitan": {
        "bit_wise/logprob_diff/mean": 0.13515504,
        "bit_wise/logprob_diff/max": 1.09861229,
        "bit_wise/ratio_tokens_different/mean": 0.66666667,
    },
    "Tinker": {
        "optim/kl_sample_train_v1": -0.13515504,
        "optim/kl_sample_train_v2": 0.28123367,  # (0.48045301 + 0 + 1.20694896) / 6
    },
}

ON_FAR = {
    ("verl", "rollout_corr/chi2_token"): math.exp(40) / 2 - 0.5,
    ("verl", "rollout_corr/chi2_seq"): math.exp(40) / 2 - 0.5,
    ("verl", "rollout_corr/k3_kl"): (math.exp(30) - 31) / 2,
    ("NeMo-RL", "train/token_mult_prob_error"): (math.exp(30) + 1) / 2,
    ("NeMo-RL", "train/policy_kl_error"): 29 / 2,
    ("NeMo-RL", "train/js_divergence_error"): (15 - math.log(2)) / 2,
    ("miles", "train/train_rollout_kl"): 10 / 2,
    ("prime-rl", "mismatch_kl/all/max"): math.exp(30) - 31,
}


@pytest.fixture(scope="module")
def native(pair):
    def build(*blocks):
        result = NativeSums()
        for rows in blocks:
            result.add(pair(rows))
        return result

    return build


@pytest.fixture(scope="module")
def of_probabilities(rollout):
    def build(rollouts):
        return [rollout(np.log(p), np.log(q), name=f"r-{i}") for i, (p, q) in enumerate(rollouts)]

    return build


def flat(values):
    return {(framework, name): value for framework, metrics in values.items() for name, value in metrics.items()}


def test_every_number_is_what_its_framework_would_show_for_two_hand_worked_rollouts(native, of_probabilities):
    assert flat(native(of_probabilities(ONE)).values()) == pytest.approx(flat(ON_ONE), rel=1e-6, abs=1e-7)


def test_the_hand_worked_numbers_cover_the_whole_table():
    assert {framework: set(metrics) for framework, metrics in ON_ONE.items()} == {
        framework: set(metrics) for framework, metrics in NATIVE.items()
    }


def test_a_token_beyond_the_clamps_is_clamped_where_the_framework_does_and_nowhere_else(native, rollout):
    values = flat(native([rollout([-31.0], [-1.0], name="a"), rollout([-1.0], [-1.0], name="b")]).values())
    assert {key: values[key] for key in ON_FAR} == pytest.approx(ON_FAR, rel=1e-12)


def test_a_large_negative_d_is_clamped_too(native, rollout):
    values = native([rollout([-1.0], [-31.0])]).values()
    assert values["verl"]["rollout_corr/chi2_token"] == pytest.approx(math.exp(-40) - 1, rel=1e-12)
    assert values["NeMo-RL"]["train/policy_kl_error"] == pytest.approx(math.exp(30) - 31, rel=1e-12)
    assert values["miles"]["train/train_rollout_kl"] == 10.0


SIGNED = [
    ("verl", "rollout_corr/kl", -1),
    ("verl", "rollout_corr/log_ppl_diff", -1),
    ("OpenRLHF", "vllm_kl", -1),
    ("Tinker", "optim/kl_sample_train_v1", -1),
    ("AReaL", "behave_approx_kl", +1),
    ("torchtitan", "bit_wise/logprob_diff/mean", +1),
]


@pytest.mark.parametrize(("framework", "name", "sign"), SIGNED)
def test_a_trainer_that_gives_more_shows_with_the_sign_of_the_framework(native, rollout, framework, name, sign):
    more = native([rollout([-1.0, -2.0], [-0.5, -1.0])]).values()[framework][name]
    less = native([rollout([-0.5, -1.0], [-1.0, -2.0])]).values()[framework][name]
    assert (more, less) == (sign * 0.75, -sign * 0.75)


def test_numbers_that_have_no_sign_do_not_change_when_the_roles_do(native, of_probabilities):
    there = flat(native(of_probabilities(ONE)).values())
    back = flat(native(of_probabilities([(q, p) for p, q in ONE])).values())
    swapped = {
        ("NeMo-RL", "train/gen_kl_error"): ("NeMo-RL", "train/policy_kl_error"),
        ("NeMo-RL", "train/js_divergence_error"): ("NeMo-RL", "train/js_divergence_error"),
        ("NeMo-RL", "train/token_mult_prob_error"): ("NeMo-RL", "train/token_mult_prob_error"),
        ("TRL", "sampling/sampling_logp_difference/mean"): ("TRL", "sampling/sampling_logp_difference/mean"),
        ("verl", "training/rollout_probs_diff_std"): ("verl", "training/rollout_probs_diff_std"),
    }
    assert {one: there[one] for one in swapped} == pytest.approx({a: back[b] for a, b in swapped.items()}, rel=1e-12)


@pytest.mark.parametrize("run_tokens", [1, 7, 64, 1 << 15])
def test_blocks_add_up_to_the_whole_however_they_are_cut(native, rollout, many, monkeypatch, run_tokens):
    monkeypatch.setattr(sums_module, "_RUN_TOKENS", run_tokens)
    rows = [*many(9, scale=0.4), rollout([], [], name="empty"), *many(3, scale=3.0, length=7, seed=1)]
    whole = flat(native(rows).values())
    for blocks in ([rows[:1], rows[1:]], [rows[:10], [], rows[10:]], [[row] for row in rows]):
        assert flat(native(*blocks).values()) == pytest.approx(whole, rel=1e-11)


def test_a_formula_that_begins_with_one_of_our_names_has_our_value(native, measured, many):
    rows = many(15, scale=0.3)
    ours, values = reductions(measured(rows)), flat(native(rows).values())
    same = {
        (framework, name): formula.split("`")[1]
        for framework, metrics in NATIVE.items()
        for name, (formula, _, _) in metrics.items()
        if formula.startswith("`")
    }
    assert set(same.values()) <= set(REDUCTIONS)
    # the summary takes the larger probability in float32
    assert {key: values[key] for key in same} == pytest.approx({k: ours[name] for k, name in same.items()}, rel=1e-7)


def test_a_rollout_with_nothing_to_compare_counts_as_no_difference_in_rollout_means(native, rollout):
    rows = [rollout([-1.0], [-2.0], name="a"), rollout([], [], name="empty")]
    values = native(rows).values()
    assert values["slime"]["train/train_rollout_logprob_abs_diff"] == 0.5
    assert values["verl"]["rollout_corr/ppl_ratio"] == pytest.approx((math.e + 1) / 2)
    assert values["TRL"]["sampling/sampling_logp_difference/mean"] == 1.0


def test_tokens_and_rollouts_without_a_logprob_on_one_side_count_nowhere(native, rollout):
    absent = TokenState.ABSENT
    rows = [
        rollout([-1.0, -5.0], [-2.0, -1.0], name="a", q_states=[TokenState.VALUE, absent]),
        rollout([-4.0], [-1.0], name="b", p_states=[absent]),
    ]
    assert flat(native(rows).values()) == flat(native([rollout([-1.0], [-2.0], name="a")]).values())


def test_without_a_token_there_is_no_number(native):
    assert native().values() == {framework: {} for framework in NATIVE}
    assert native([]).values() == {framework: {} for framework in NATIVE}


def test_one_token_has_neither_deviation_nor_correlation(native, rollout):
    values = flat(native([rollout([-1.0], [-2.0])]).values())
    missing = {
        ("verl", "training/rollout_probs_diff_std"),
        ("verl", "training/rollout_actor_probs_pearson_corr"),
        ("prime-rl", "mismatch_kl/all/std"),
    }
    assert {(f, name) for f, metrics in NATIVE.items() for name in metrics} - set(values) == missing


def test_a_column_of_probabilities_that_does_not_vary_has_no_correlation(native, rollout):
    values = native([rollout([-0.1] * 1000, [-0.2 - i / 1000 for i in range(1000)])], []).values()
    assert "training/rollout_actor_probs_pearson_corr" not in values["verl"]


def test_a_ratio_beyond_float64_is_infinite_and_spoils_no_other_number(native, rollout, many):
    rows = [rollout([-900.0], [-1.0], name="far"), *many(3, scale=0.1)]
    values = flat(native(rows, many(2, scale=0.1)).values())
    infinite = {key for key, value in values.items() if math.isinf(value)}
    assert infinite == {
        ("verl", "rollout_corr/k3_kl"),
        ("verl", "rollout_corr/rollout_ppl"),
        ("NeMo-RL", "train/token_mult_prob_error"),
        ("NeMo-RL", "train/gen_kl_error"),
        ("NeMo-RL", "train/sampling_importance_ratio"),
        ("prime-rl", "mismatch_kl/all/mean"),
        ("prime-rl", "mismatch_kl/all/max"),
        ("AReaL", "behave_imp_weight"),
    }
    assert ("prime-rl", "mismatch_kl/all/std") not in values
    assert 0.9 < values["verl", "training/rollout_actor_probs_pearson_corr"] < 1
    assert values["miles", "train/train_rollout_kl"] == pytest.approx(10 / 6, rel=0.01)


@pytest.mark.parametrize("d", [1e-7, 1e-3, 1.0, 50.0, 900.0])
def test_the_closed_form_of_nemos_js_is_its_formula(native, rollout, d):
    s, t = np.float64(np.float32(-1.0 - d)), np.float64(-1.0)
    log_mixture = np.logaddexp(s, t) - math.log(2)
    to_mixture = [math.exp(x - log_mixture) - (x - log_mixture) - 1 for x in (t, s)]
    value = native([rollout([s], [t])]).values()["NeMo-RL"]["train/js_divergence_error"]
    assert value == pytest.approx(sum(to_mixture) / 2, rel=1e-9, abs=1e-15)


def test_the_page_is_up_to_date_and_names_every_metric():
    text = PAGE.read_text(encoding="utf-8")
    assert text == reconcile_page(), "write onepolicy.numerics.native.reconcile_page() to docs/reconcile.md"
    for framework, metrics in NATIVE.items():
        assert framework in SOURCES
        for name, (_, caveat, _) in metrics.items():
            assert f"| {framework} | `{name}` |" in text
            assert caveat


def test_the_worked_example_of_the_page_is_right(native, of_probabilities):
    values = native(of_probabilities(ONE)).values()
    rows = [line.split("|") for line in PAGE.read_text(encoding="utf-8").partition("## Worked example")[2].splitlines()]
    shown = [(row[3], row[4].strip()) for row in rows if len(row) == 6 and "`" in row[3]]
    assert len(shown) == 6
    for names, value in shown:
        for framework, name in (one.strip().split(" ") for one in names.split(",")):
            assert f"{values[framework][name.strip('`')]:.4f}" == value

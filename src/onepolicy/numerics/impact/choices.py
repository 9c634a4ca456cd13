"""The corrections that are replayed, each with the bounds that a framework or its documentation names."""

from __future__ import annotations

from onepolicy.numerics.impact.corrections import Correction, Rejection, Weight, by_ratio

_TRL = "vllm_importance_sampling_"

NONE = Correction(
    name="none",
    label="no correction",
    verl="rollout_is=null rollout_rs=null",
    trl=f"{_TRL}correction=False",
)

CHOICES = (
    NONE,
    Correction(  # verl's preset decoupled_token_is
        name="token_tis",
        label="TIS, token, 2",
        weight=Weight(high=2.0),
        verl="rollout_is=token rollout_is_threshold=2.0",
        trl=f"{_TRL}mode=token_truncate {_TRL}clip_max=2.0",
    ),
    Correction(  # verl's preset decoupled_seq_is
        name="sequence_tis",
        label="TIS, sequence, 2",
        weight=Weight(of_sequence=True, high=2.0),
        verl="rollout_is=sequence rollout_is_threshold=2.0",
        trl=f"{_TRL}mode=sequence_truncate {_TRL}clip_max=2.0",
    ),
    Correction(  # verl's preset decoupled_token_icepop; the bounds of the IcePop paper
        name="icepop",
        label="IcePop, 0.5-5",
        weight=Weight(low=0.5, high=5.0, masks=True),
        verl='rollout_is=token rollout_is_threshold="0.5_5.0"',
        trl=f"{_TRL}mode=token_mask {_TRL}clip_min=0.5 {_TRL}clip_max=5.0",
    ),
    Correction(  # TRL's default; verl's lower bound lies below exp(-20), where it cuts, and so masks nothing
        name="sequence_mis_3",
        label="MIS, sequence, 3",
        weight=Weight(of_sequence=True, high=3.0, masks=True),
        verl='rollout_is=sequence rollout_is_threshold="1e-9_3.0"',
        trl=f"{_TRL}mode=sequence_mask {_TRL}clip_max=3.0",
    ),
    Correction(  # verl's preset decoupled_seq_is_rs
        name="sequence_mis",
        label="MIS, sequence, 0.5-2",
        weight=Weight(of_sequence=True, high=2.0),
        rejection=by_ratio("seq_sum_k1", 0.5, 2.0),
        verl='rollout_is=sequence rollout_is_threshold=2.0 rollout_rs=seq_sum_k1 rollout_rs_threshold="0.5_2.0"',
        trl=f"{_TRL}mode=sequence_mask {_TRL}clip_min=0.5 {_TRL}clip_max=2.0",
    ),
    Correction(  # verl's preset decoupled_geo_rs
        name="geometric",
        label="geometric, 0.1 %",
        rejection=by_ratio("seq_mean_k1", 0.999, 1.001),
        verl='rollout_rs=seq_mean_k1 rollout_rs_threshold="0.999_1.001"',
    ),
    Correction(  # verl's preset decoupled_geo_rs_token_tis
        name="geometric_token_tis",
        label="geometric + token TIS",
        weight=Weight(high=2.0),
        rejection=by_ratio("seq_mean_k1", 0.999, 1.001),
        verl='rollout_is=token rollout_is_threshold=2.0 rollout_rs=seq_mean_k1 rollout_rs_threshold="0.999_1.001"',
    ),
    Correction(  # the bounds of sequence_mis, on a token
        name="token_k1",
        label="token k1, 0.5-2",
        rejection=by_ratio("token_k1", 0.5, 2.0),
        verl='rollout_rs=token_k1 rollout_rs_threshold="0.5_2.0"',
    ),
    Correction(  # verl's documentation: 1.5 to 3
        name="token_k2",
        label="token k2, 1.5",
        rejection=Rejection(statistic="token_k2", high=1.5),
        verl="rollout_rs=token_k2 rollout_rs_threshold=1.5",
    ),
    Correction(  # verl's documentation: 2 to 2.5
        name="sequence_mean_k2",
        label="mean k2, 2",
        rejection=Rejection(statistic="seq_mean_k2", high=2.0),
        verl="rollout_rs=seq_mean_k2 rollout_rs_threshold=2.0",
    ),
    Correction(  # verl's documentation: 2.5 to 4
        name="sequence_sum_k2",
        label="sum k2, 2.5",
        rejection=Rejection(statistic="seq_sum_k2", high=2.5),
        verl="rollout_rs=seq_sum_k2 rollout_rs_threshold=2.5",
    ),
    Correction(  # verl's preset decoupled_k3_rs
        name="sequence_mean_k3",
        label="mean k3, 0.01",
        rejection=Rejection(statistic="seq_mean_k3", high=0.01),
        verl="rollout_rs=seq_mean_k3 rollout_rs_threshold=0.01",
    ),
    Correction(  # verl's documentation: 0.001 to 0.01
        name="sequence_mean_k3_tight",
        label="mean k3, 0.001",
        rejection=Rejection(statistic="seq_mean_k3", high=0.001),
        verl="rollout_rs=seq_mean_k3 rollout_rs_threshold=0.001",
    ),
)

OFF_POLICY = Correction(  # TRL's documentation: "a positive value (e.g., 0.5)"; DeepSeek-V3.2, equation 9
    name="off_policy_mask",
    label="off-policy mask, 0.5",
    rejection=Rejection(statistic="seq_mean_k1", high=0.5, only_negative=True),
    trl="off_policy_mask_threshold=0.5",
)
"""needs the sign of the advantage"""

from importlib.resources import files

import pytest

from onepolicy.errors import UsageError
from onepolicy.judgement.limits import Limits, MetricLimit
from onepolicy.judgement.load import PRESETS, load_limits


def written(tmp_path, text: str) -> str:
    path = tmp_path / "limits.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_loads_and_says_where_its_numbers_come_from(preset):
    assert load_limits(preset).mean_kl > 0
    text = (files("onepolicy.judgement") / "presets" / f"{preset}.yaml").read_text()
    assert text.startswith("#")
    assert "Measured" in text or "exactly equal" in text


def test_the_strict_preset_is_the_default():
    assert load_limits("strict") == Limits()


def test_presets_grow_looser_from_bitwise_to_quantised():
    limits = [load_limits(name).mean_kl for name in ("bitwise", "strict", "bf16", "quantised")]
    assert limits == sorted(limits)


def test_a_file_starts_from_a_preset_and_options_go_over_the_file(tmp_path):
    source = written(tmp_path, "preset: bf16\nmax_abs_d: 3\nmetrics:\n  abs_d_p99: {at_most: 2e-1}\n")
    limits = load_limits(source, changes={"coverage": 0.9})
    assert (limits.mean_kl, limits.max_abs_d, limits.coverage) == (load_limits("bf16").mean_kl, 3.0, 0.9)
    assert limits.metrics == {"abs_d_p99": MetricLimit(at_most=0.2)}


def test_an_empty_file_is_the_defaults(tmp_path):
    assert load_limits(written(tmp_path, "# nothing yet\n")) == Limits()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mean_k1: 1e-4", "there is no limit 'mean_k1'. Known: preset, mean_kl, max_abs_d"),
        ("preset: fp8", "there is no preset 'fp8'. Presets: strict, bf16"),
        ("mean_kl: -1", "mean_kl = -1"),
        ("mean_kl: .inf", "mean_kl = inf"),
        ("mean_kl: [", "is no YAML"),
        ("mean_kl: 1e-3\nmean_kl: 2e-3", "the key 'mean_kl' stands twice"),
        ("waivers: [{check: mean_kl, reason: x, until: 2026-13-41}]", "is no YAML"),
        ("- mean_kl", "limits are a YAML mapping"),
        ("metrics: {k3: {}}", "say either at_most or at_least"),
        ("metrics: {k3: {at_most: 1, at_least: 0}}", "say either at_most or at_least"),
        ("metrics: {k3: {at_most: .nan}}", "metrics.k3.at_most"),
        ("waivers: [{check: max_abs_d, until: 2030-01-01}]", "waivers.0.reason"),
        ("waivers: [{check: max_abs_d, reason: x, until: soon}]", "waivers.0.until"),
        ("!!python/object/apply:os.system ['true']", "is no YAML"),
    ],
)
def test_a_bad_file_is_refused_with_what_is_wrong(tmp_path, text, message):
    with pytest.raises(UsageError, match=r"limits\.yaml") as refused:
        load_limits(written(tmp_path, text))
    assert message in str(refused.value)


def test_an_absent_file_and_one_that_is_not_utf_8_are_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no preset and no file 'nope'"):
        load_limits("nope")
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"mean_kl: 1e-3 # \xe9")
    with pytest.raises(UsageError, match="is not UTF-8"):
        load_limits(str(path))


@pytest.mark.parametrize(
    "text", ["mean_kl: true", "max_abs_d: yes", "coverage: on", "metrics: {k3: {at_most: true}}", "mean_kl: 1:30"]
)
def test_what_yaml_takes_for_a_number_is_none_that_a_limit_can_be(tmp_path, text):
    """true is 1.0 to Python, and 1:30 is 90 to YAML 1.1: either would let pass what must fail."""
    file = tmp_path / "limits.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"are no numbers|another one than it looks"):
        load_limits(str(file))


def test_a_value_that_is_no_limit_is_shown_shortened(tmp_path):
    file = tmp_path / "limits.yaml"
    file.write_text(f"mean_kl: [{', '.join(['1'] * 5000)}]")
    with pytest.raises(UsageError) as caught:
        load_limits(str(file))
    assert len(str(caught.value)) < 300

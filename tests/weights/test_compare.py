import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from onepolicy.cli import main
from onepolicy.errors import DumpError, UsageError
from onepolicy.records.verdict import Status
from onepolicy.weights.compare import compare_weights
from onepolicy.weights.digest import digest_tensors
from onepolicy.weights.files import weights_in


@pytest.fixture
def saved(tmp_path):
    def save(name, **changes):
        torch.manual_seed(0)
        state = {f"layers.{n}.w": torch.randn(8, 8) for n in range(4)}
        state.update({key.replace("__", "."): value for key, value in changes.items()})
        path = tmp_path / f"{name}.safetensors"
        save_file(state, path)
        return path

    return save


def first() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(8, 8)


def test_equal_weights_pass(saved):
    found = compare_weights(saved("a"), saved("b"))
    assert (found.status, found.same, found.differing) == (Status.PASS, 4, ())
    assert found.sentence.startswith("Pass: all 4 tensors have the same values; digest ")


def test_the_tensors_that_differ_are_named_the_farthest_first(saved):
    near, far = first(), torch.full((8, 8), 3.0)
    near[0, 0] += 0.5
    found = compare_weights(saved("a"), saved("b", layers__0__w=near, layers__2__w=far))
    assert found.status is Status.FAIL
    assert [one.name for one in found.differing] == ["layers.2.w", "layers.0.w"]
    worst, least = found.differing
    assert (least.differing, least.count) == (1, 64)
    assert least.largest == pytest.approx(0.5)
    assert least.relative_rms == pytest.approx(0.5 / float(first().norm()))
    assert worst.differing == 64
    assert found.sentence.startswith("Fail: 2 of 4 tensors differ. Most in layers.2.w: largest difference")


def test_another_dtype_is_a_difference_that_rounding_takes_away(saved):
    served = {f"layers__{n}__w": None for n in range(4)}
    a = saved("a")
    for name, tensor in weights_of(a).items():
        served[name.replace(".", "__")] = tensor.to(torch.bfloat16)
    b = saved("b", **served)
    found = compare_weights(a, b)
    assert found.status is Status.FAIL
    assert "--as DTYPE rounds both sides" in found.sentence
    assert found.differing[0].relative_rms == pytest.approx(0.002, abs=0.002)
    assert compare_weights(a, b, rounded_to="bfloat16").status is Status.PASS


def weights_of(path):
    return load_file(path)


def test_a_tensor_on_one_side_alone_fails(saved):
    found = compare_weights(saved("a"), saved("b", bias=torch.ones(3)))
    assert (found.status, found.only_b) == (Status.FAIL, ("bias",))


def test_nothing_in_common_is_unknown_and_what_moved_is_said(saved, tmp_path):
    a = saved("a")
    save_file({f"base.{name}": tensor for name, tensor in weights_of(a).items()}, tmp_path / "b.safetensors")
    found = compare_weights(a, tmp_path / "b.safetensors")
    assert found.status is Status.UNKNOWN
    assert "4 of the 4 are there under another name" in found.sentence


def test_a_digest_from_elsewhere_stands_for_its_weights(saved, tmp_path):
    a, b = saved("a"), saved("b", layers__1__w=torch.zeros(8, 8))
    stored = tmp_path / "a.json"
    stored.write_text(digest_tensors(weights_in(a).values(), source="a").model_dump_json())
    assert compare_weights(stored, a).status is Status.PASS
    found = compare_weights(stored, b)
    assert [(one.name, one.largest) for one in found.differing] == [("layers.1.w", None)]
    with pytest.raises(UsageError, match="cannot be rounded any more"):
        compare_weights(stored, b, rounded_to="bfloat16")
    stored.write_text("{}")
    with pytest.raises(DumpError, match="is no digest of weights"):
        compare_weights(stored, b)


def status_of(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["onepolicy", "weights", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().out


def test_the_commands_say_the_same_and_end_with_it(saved, tmp_path, monkeypatch, capsys):
    a, b = saved("a"), saved("b", layers__1__w=torch.zeros(8, 8))
    status, out = status_of(monkeypatch, capsys, "digest", a, "--json")
    assert status == 0
    (tmp_path / "a.json").write_text(out)
    assert status_of(monkeypatch, capsys, "compare", tmp_path / "a.json", a)[0] == 0
    status, out = status_of(monkeypatch, capsys, "compare", a, b)
    assert status == 1
    assert "layers.1.w" in out
    assert "64 of 64" in out
    status, out = status_of(monkeypatch, capsys, "compare", a, b, "--json")
    assert (status, json.loads(out)["status"]) == (1, "fail")
    assert status_of(monkeypatch, capsys, "digest", tmp_path / "absent")[0] == 2
    status, out = status_of(monkeypatch, capsys, "digest", a, "--tensors")
    assert out.count("layers.") == 4

"""What a folder of a model may hold: an adapter, what is wrong with it, and what is built once."""

import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_model import asked, copied, exact_logprobs, opened, sequences

from onepolicy.engines.contract import Wanted
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations.transformers.convert import built_once, cache_folder
from onepolicy.integrations.transformers.load import refuse_unusable

# adapters


@pytest.fixture(scope="module")
def adapter(folder, tmp_path_factory):
    """A LoRA adapter with random weights on both sides."""
    path = tmp_path_factory.mktemp("adapter") / "lora"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    with warnings.catch_warnings(action="ignore"):
        wrapped = get_peft_model(model, config)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.2)
    wrapped.save_pretrained(path)
    return path


def test_an_adapter_is_part_of_the_policy(folder, adapter, engine, plain):
    (ids,) = sequences(12)
    with_adapter = opened(folder, adapter=adapter)
    (row,) = with_adapter.score([asked(ids)], Wanted())
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with warnings.catch_warnings(action="ignore"):
        merged = PeftModel.from_pretrained(base, adapter).merge_and_unload().double().eval()
    exact = exact_logprobs(merged, ids)[np.arange(11), ids[1:]]
    np.testing.assert_allclose(row.logprobs[1:], exact, atol=5e-5)
    assert np.abs(row.logprobs[1:] - engine.score([asked(ids)], Wanted())[0].logprobs[1:]).max() > 0.01
    assert with_adapter.info.weights_hash != engine.info.weights_hash
    assert with_adapter.info.options["adapter"] == str(adapter)


def test_an_adapter_computes_in_the_dtype_of_the_spec(folder, adapter):
    model = opened(folder, adapter=adapter, dtype="bfloat16")._loaded.model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_an_adapter_folder_without_an_adapter_is_named(folder, tmp_path):
    with pytest.raises(EngineError, match=r"is no PEFT adapter: it has no adapter_config.json"):
        opened(folder, adapter=tmp_path)


def test_an_adapter_for_another_model_is_refused(folder, adapter, tmp_path):
    other = copied(adapter, tmp_path / "other")
    weights = load_file(other / "adapter_model.safetensors")
    renamed = {name.replace("layers.1", "layers.9"): values for name, values in weights.items()}
    save_file(renamed, other / "adapter_model.safetensors")
    with pytest.raises(EngineError, match=r"does not fit the model: 4 of its weights have no place .*layers.9"):
        opened(folder, adapter=other)


# what can be wrong with a folder


def test_a_target_that_is_nothing_lists_what_it_could_be(tmp_path):
    with pytest.raises(EngineError, match=r"is no folder, no .gguf file and no packaged model.*smollm2"):
        opened(tmp_path / "absent")


def test_a_gguf_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(EngineError, match=r"there is no file .*absent.gguf"):
        opened(tmp_path / "absent.gguf")


def test_a_file_that_is_no_gguf_is_named_and_leaves_nothing_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    with pytest.raises(EngineError, match=r"bad.gguf: Transformers cannot read this GGUF file"):
        opened(tmp_path / "bad.gguf")
    assert [entry.suffix for entry in cache_folder().iterdir()] == [".lock"]


def test_a_folder_without_a_config_says_what_it_holds(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(EngineError, match=r"has no config.json; it holds notes.txt"):
        opened(tmp_path)


def test_a_folder_without_weights_says_which_files_were_looked_for(folder, tmp_path):
    model = copied(folder, tmp_path / "empty")
    (model / "model.safetensors").unlink()
    with pytest.raises(EngineError, match=r"looked for model.safetensors and model.safetensors.index.json"):
        opened(model)


def test_a_config_that_is_no_model_is_an_engine_error(folder, tmp_path):
    model = copied(folder, tmp_path / "odd")
    (model / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(EngineError, match=r"Transformers cannot load this model: .*no-such-model"):
        opened(model)


def test_damaged_weights_are_named(folder, tmp_path):
    model = copied(folder, tmp_path / "cut")
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(EngineError, match="a safetensors file is damaged or incomplete"):
        opened(model)


def test_weights_that_would_be_random_are_an_error(folder, tmp_path):
    model = copied(folder, tmp_path / "lacking")
    weights = load_file(model / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match=r"1 weights that the model needs .*layers.1.mlp.up_proj.weight"):
        opened(model)


def test_weights_without_a_place_are_an_error(folder, tmp_path):
    model = copied(folder, tmp_path / "more")
    weights = load_file(model / "model.safetensors") | {"model.layers.7.odd.weight": torch.zeros(1)}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match=r"1 weights that the model has no place for: model.layers.7.odd.weight"):
        opened(model)


def test_weights_of_another_shape_are_an_error(folder, tmp_path):
    model = copied(folder, tmp_path / "narrow")
    weights = load_file(model / "model.safetensors") | {"model.norm.weight": torch.zeros(7)}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match=r"narrow.*model.norm.weight"):
        opened(model)


def test_many_wrong_weights_are_counted_and_three_named():
    info = {"missing_keys": {f"w{n}" for n in range(9)}}
    with pytest.raises(EngineError, match=r"has 9 weights .*: w0, w1, w2 and 6 more"):
        refuse_unusable(Path("m"), info)


def test_an_unknown_dtype_lists_the_known_ones(folder):
    with pytest.raises(UsageError, match=r"dtype='float8'.*'float32', 'bfloat16' or 'float16'"):
        opened(folder, dtype="float8")


def test_a_gpu_that_is_not_there_is_an_error(folder):
    with pytest.raises(EngineError, match=r"device='cuda:7' is not available: torch .* sees \d+ CUDA devices"):
        opened(folder, device="cuda:7")


def test_a_device_that_torch_does_not_know_is_an_error(folder):
    with pytest.raises(EngineError, match="device='abacus' is no device"):
        opened(folder, device="abacus")


def test_a_hub_id_that_cannot_be_reached_says_so(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EngineError, match="'no-one/no-model' is no folder here, and the Hugging Face hub"):
        opened("no-one/no-model")


def test_a_hub_id_is_the_folder_that_was_downloaded_for_it(folder, tmp_path, monkeypatch):
    repository = tmp_path / "models--some-one--some-model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("a" * 40)
    copied(folder, repository / "snapshots" / ("a" * 40))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert opened("some-one/some-model").info.weights_hash == opened(folder).info.weights_hash


def test_without_the_package_the_extra_is_named():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from onepolicy.errors import MissingExtraError\n"
        "try: import onepolicy.integrations.transformers.engine\n"
        "except MissingExtraError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "'torch', which is not installed" in said
    assert "onepolicy[transformers]" in said


# conversion


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def failing(into):
        (into / "half").write_text("x")
        raise EngineError("no")

    with pytest.raises(EngineError, match="no"):
        built_once(tmp_path / "model", build=failing)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.lock"]


def test_what_a_killed_build_left_is_swept_by_the_next(tmp_path):
    (tmp_path / ".model-abc" / "model").mkdir(parents=True)
    built_once(tmp_path / "model", build=lambda into: (into / "done").write_text("x"))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model", "model.lock"]


def build_slowly(folder, log):
    def build(into):
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.3)
        (into / "done").write_text("x")

    built_once(folder, build=build)


def test_two_processes_at_once_build_once(tmp_path):
    spawn = multiprocessing.get_context("fork")
    workers = [spawn.Process(target=build_slowly, args=(tmp_path / "model", tmp_path / "log")) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert (tmp_path / "model" / "done").is_file()

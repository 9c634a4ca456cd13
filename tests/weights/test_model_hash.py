import json

import torch
from safetensors.torch import save_file

from onepolicy.weights.model import model_hash


def model(folder, *, files=1, version="5.0", theta=10000.0):
    folder.mkdir()
    torch.manual_seed(0)
    state = {f"w{n}": torch.randn(4, 4) for n in range(4)}
    for n in range(files):
        name = "model.safetensors" if files == 1 else f"model-{n}.safetensors"
        save_file({key: state[key] for key in sorted(state)[n::files]}, folder / name)
    config = {"rope_theta": theta, "transformers_version": version}
    (folder / "config.json").write_text(json.dumps(dict(sorted(config.items(), reverse=files > 1))))
    return folder


def test_saving_again_does_not_change_the_hash_and_another_use_of_the_weights_does(tmp_path):
    one = model_hash([model(tmp_path / "one")])
    assert len(one) == 16
    assert model_hash([model(tmp_path / "many", files=3, version="5.1")]) == one
    assert model_hash([model(tmp_path / "rope", theta=1e6)]) != one
    assert model_hash([tmp_path / "one", tmp_path / "many"]) != one

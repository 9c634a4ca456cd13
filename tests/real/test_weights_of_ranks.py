"""The digest of a module that is sharded over two gloo ranks is that of its file."""

import os
import subprocess
import sys

import pytest
import torch
import transformers

from onepolicy.weights.digest import digest_tensors
from onepolicy.weights.files import weights_in

pytestmark = pytest.mark.real

RANK = """
import os
import sys
import torch
import transformers
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from onepolicy.integrations.transformers.parallel_plan import tensor_parallel_plan
from onepolicy.weights import digest_of

def said(*words):
    os.write(1, (" ".join(words) + chr(10)).encode())  # at once: the other rank writes to the same pipe

def loaded():
    return transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])

distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
sharded = loaded()
for layer in sharded.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(sharded, mesh=mesh)
split = loaded()
parallelize_module(split, mesh, tensor_parallel_plan(split, 2).styles)
for name, module in (("whole", loaded()), ("fsdp", sharded), ("tp", split)):
    digest = digest_of(module, rounded_to="bfloat16")
    said(name, digest.whole, digest_of(module).whole)
with torch.no_grad():  # one rank's shard of one weight
    sharded.model.layers[1].mlp.up_proj.weight.to_local()[0, 0] += distributed.get_rank()
said("changed", digest_of(sharded).whole)
distributed.destroy_process_group()
"""


def test_shards_of_fsdp_and_of_tensor_parallel_have_the_digest_of_the_file(tmp_path):
    config = transformers.LlamaConfig(
        vocab_size=51,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    (tmp_path / "rank.py").write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, tmp_path / "rank.py", tmp_path / "model"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = weights_in(tmp_path / "model")
    file = [digest_tensors(found.values(), source="", rounded_to=to).whole for to in ("bfloat16", None)]
    lines = [line.split() for line in done.stdout.splitlines()]
    same = [line for line in lines if line[0] != "changed"]
    assert sorted(line[0] for line in same) == ["fsdp", "fsdp", "tp", "tp", "whole", "whole"]
    assert {tuple(line[1:]) for line in same} == {tuple(file)}
    changed = {line[1] for line in lines if line[0] == "changed"}
    assert len(changed) == 1
    assert changed.isdisjoint(file)

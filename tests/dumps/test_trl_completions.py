"""TRL's table of completions, written by the lines of TRL that write it where it is installed."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onepolicy.dumps.file import DumpFile
from onepolicy.errors import DumpError
from onepolicy.integrations.trl.completions import TRL_COMPLETIONS

PEERS = Path(__file__).parents[2] / ".peers"
PROMPTS = {
    "strings": (["2 + 2 =", "2 + 3 ="], [" four", " five"]),
    "conversations": (
        [[{"role": "user", "content": "2 + 2"}], [{"role": "user", "content": "2 + 3"}]],
        [[{"role": "assistant", "content": "four"}], [{"role": "assistant", "content": "five"}]],
    ),
}


def table(prompts, completions, **further):
    rewards = {"accuracy_reward": [1.0, 0.0], "format_reward": [0.5, 0.5]}
    return {"step": [3, 3], "prompt": prompts, "completion": completions, **rewards, "advantage": [0.7, -0.7]} | further


def written(path, columns):
    pq.write_table(pa.table(columns), path)
    return DumpFile(path)


@pytest.mark.parametrize("kind", PROMPTS)
def test_the_completions_of_trl_are_recognised_and_say_what_they_are_good_for(tmp_path, kind):
    file = written(tmp_path / "completions_00003.parquet", table(*PROMPTS[kind]))
    assert TRL_COMPLETIONS.recognises(file)
    with pytest.raises(DumpError, match=r"completions_00003\.parquet: .*no token ids and no logprobs.*roundtrip"):
        list(TRL_COMPLETIONS.rows(file))


@pytest.mark.parametrize("ids", ["token_ids", "completion_ids"])
def test_a_table_with_ids_is_another_format(tmp_path, ids):
    file = written(tmp_path / "dump.parquet", table(*PROMPTS["strings"], **{ids: [[1, 2], [3]]}))
    assert not TRL_COMPLETIONS.recognises(file)


def test_other_files_are_not_recognised(tmp_path):
    assert not TRL_COMPLETIONS.recognises(written(tmp_path / "a.parquet", {"prompt": ["a"], "completion": ["b"]}))
    (tmp_path / "b.jsonl").write_text(json.dumps({"step": 1, "prompt": "a", "completion": "b", "advantage": 0.5}))
    assert not TRL_COMPLETIONS.recognises(DumpFile(tmp_path / "b.jsonl"))


TRL_WRITES = """
import json, os, sys, textwrap
from pathlib import Path
from types import SimpleNamespace as Of
sys.path.insert(0, sys.argv[1])
import pandas as pd

source = Path(sys.argv[1], "trl/trainer/grpo_trainer.py").read_text()
first = source.index('            table = {\\n                "step": [self.state.global_step]')
last = source.index("            images_raw", first)
logs = json.loads(sys.argv[3]) | {"rewards": {"accuracy_reward": [1.0, 0.0]}, "extra": {}, "advantages": [0.7, -0.7]}
trainer = Of(state=Of(global_step=3), args=Of(output_dir=sys.argv[2]), _logs=logs)
os.makedirs(os.path.join(sys.argv[2], "completions"))
names = {"self": trainer, "pd": pd, "os": os, "strip_images_from_messages": lambda messages: messages}
exec(textwrap.dedent(source[first:last]), names)
"""


@pytest.mark.full
@pytest.mark.skipif(not PEERS.exists(), reason="TRL is not in .peers: run make bench once")
@pytest.mark.parametrize("kind", PROMPTS)
def test_the_lines_of_trl_that_write_its_completions(tmp_path, kind):
    logs = json.dumps(dict(zip(("prompt", "completion"), PROMPTS[kind], strict=True)))
    command = [sys.executable, "-W", "ignore", "-c", TRL_WRITES, str(PEERS), str(tmp_path), logs]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert TRL_COMPLETIONS.recognises(DumpFile(tmp_path / "completions/completions_00003.parquet"))

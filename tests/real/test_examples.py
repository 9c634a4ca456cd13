"""The examples, as a reader runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.real


def test_the_weights_that_never_arrive_are_blocked_named_sent_and_pass(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(EXAMPLES / "weights_that_never_arrive.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    blocked, fixed = done.stdout.split("\n== fixed: ")
    assert "onepolicy: training halted, the rollout and the trainer policy are not the same." in blocked
    assert re.search(r"^  limit: step \d: mean k3 0\.\d+ nats per token", blocked, re.MULTILINE)
    assert re.search(r"^Fail: KL 0\.\d+ nats per token", blocked, re.MULTILINE)
    assert "\nCause: the rollout side has the weights of step 0; corrected, mean |d| is" in blocked
    assert "100.0% explained on prompts not used for fitting" in blocked
    assert "halted" not in fixed
    assert re.search(r"^Pass: KL \S+ nats per token", fixed, re.MULTILINE)
    assert "Fail" not in fixed

"""A function that scores on several ranks: started here, or under torchrun."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from scoring_functions import BATCH, NUMBERS, file_with, sequences, spec_of

from onepolicy.engines.contract import Wanted
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations.callable.engine import CallableEngine
from onepolicy.integrations.callable.process import free_port
from onepolicy.records.protocol import Meaning


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process_id}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def ends_soon(process_ids: list[int], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, process_ids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, process_ids))


PLAIN = """
    import os
    __version__ = "3"
    RANK = int(os.environ["RANK"])
    def score(token_ids, temperature=1.0):
        if RANK > 0:
            return None
        return [[None] + [-temperature] * (len(ids) - 1) for ids in token_ids]
"""


def test_started_ranks_answer_as_one_and_are_gone_after_close(tmp_path):
    engine = CallableEngine.open(spec_of(tmp_path, PLAIN, ranks="2"))
    with closing(engine):
        processes = engine._caller.process_ids
        rows = engine.score(sequences(*BATCH), NUMBERS)
        warm = engine.score(sequences([1, 2]), Wanted(meaning=Meaning(temperature=0.5)))
        assert engine.info.version == "3"
    assert [row.logprobs[1:].tolist() for row in rows] == [[-1.0, -1.0], [-1.0]]
    assert warm[0].logprobs[1] == -0.5
    assert len(processes) == 2
    assert not any(map(is_alive, processes))


def test_started_ranks_run_in_lock_step(tmp_path):
    code = """
        import torch
        from torch import distributed
        distributed.init_process_group("gloo")
        def score(token_ids):
            share = torch.full((len(token_ids[0]),), -1.0 - distributed.get_rank())
            distributed.all_reduce(share)
            return [share]
    """
    with closing(CallableEngine.open(spec_of(tmp_path, code, ranks="2"))) as engine:
        for _ in range(3):
            assert engine.score(sequences([1, 2, 3]), NUMBERS)[0].logprobs[1:].tolist() == [-3.0, -3.0]


STUCK = """
    import os, sys, time
    RANK = int(os.environ["RANK"])
    def score(token_ids):
        print("rank", RANK, "was here", file=sys.stderr)
        wait_for_ever()
    def wait_for_ever():
        time.sleep(1000)
"""


def test_a_rank_that_is_killed_in_mid_batch_ends_all_and_is_named(tmp_path):
    engine = CallableEngine.open(spec_of(tmp_path, STUCK, ranks="2"))
    processes = engine._caller.process_ids
    killer = threading.Timer(0.8, os.kill, (processes[1], signal.SIGKILL))
    killer.start()
    with pytest.raises(EngineError) as caught:
        engine.score(sequences([1, 2]), NUMBERS)
    killer.join()
    message = str(caught.value)
    assert "rank 1 of 2 was killed by SIGKILL" in message
    assert "while scoring rollout r-0" in message
    assert "rank 1 was here" in message
    assert message.endswith("All ranks have been ended.")
    assert not any(map(is_alive, processes))
    with pytest.raises(EngineError, match="its ranks have ended"):
        engine.score(sequences([1, 2]), NUMBERS)
    engine.close()


def test_a_rank_that_raises_ends_all_and_is_named(tmp_path):
    code = """
        import os, time
        def score(token_ids):
            if os.environ["RANK"] == "1":
                raise ValueError("no such layer")
            time.sleep(1000)
    """
    engine = CallableEngine.open(spec_of(tmp_path, code, ranks="2"))
    processes = engine._caller.process_ids
    with pytest.raises(EngineError, match=r"rank 1 of 2: .*failed on rollout r-0:(.|\n)*no such layer"):
        engine.score(sequences([1, 2]), NUMBERS)
    assert not any(map(is_alive, processes))


def test_a_rank_that_exits_is_named_with_its_status(tmp_path):
    code = "import os\ndef score(token_ids): print('bye') or os._exit(7)"
    engine = CallableEngine.open(spec_of(tmp_path, code, ranks="1"))
    with pytest.raises(EngineError, match=r"rank 0 of 1 exited with status 7 .*It printed last:\n  bye"):
        engine.score(sequences([1, 2]), NUMBERS)


def test_ranks_that_hang_are_ended_and_it_is_said_where(tmp_path):
    engine = CallableEngine.open(spec_of(tmp_path, STUCK, ranks="2", timeout="3"))
    processes = engine._caller.process_ids
    with pytest.raises(EngineError) as caught:
        engine.score(sequences([1, 2]), NUMBERS)
    message = str(caught.value)
    assert "no answer from rank 0, 1 of 2 within 3 s of scoring rollout r-0" in message
    assert "in wait_for_ever" in message
    assert not any(map(is_alive, processes))


def test_a_broken_answer_of_rank_0_is_refused_as_in_this_process(tmp_path):
    engine = CallableEngine.open(spec_of(tmp_path, "def score(token_ids): return [[-1.0]]", ranks="1"))
    with pytest.raises(EngineError, match=r"rank 0 of 1: .*rollout r-0: 1 logprobs for 2 tokens, one too few"):
        engine.score(sequences([1, 2]), NUMBERS)


def test_ranks_that_cannot_load_the_function_say_why(tmp_path):
    with pytest.raises(EngineError, match=r"rank \d of 2: callable:.*has no function 'score'"):
        CallableEngine.open(spec_of(tmp_path, "def scores(): ...", ranks="2"))


def test_no_rank_is_left_when_the_tokenizer_is_absent(tmp_path, monkeypatch):
    with pytest.raises(EngineError, match="there is no file"):
        CallableEngine.open(spec_of(tmp_path, PLAIN, ranks="1", tokenizer="absent.json"))


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_when_their_parent_does(tmp_path, ending):
    target = f"{file_with(tmp_path, STUCK)}:score"
    code = f"""
        import numpy as np
        from onepolicy.engines.contract import ScoreInput, Wanted
        from onepolicy.engines.spec import EngineSpec
        from onepolicy.integrations.callable.engine import CallableEngine
        spec = EngineSpec(engine="callable", target={target!r}, options={{"ranks": "2"}})
        engine = CallableEngine.open(spec)
        print(*engine._caller.process_ids, flush=True)
        one = ScoreInput(rollout_id="r", token_ids=np.int32([1, 2]), wanted=np.ones(2, bool))
        engine.score([one], Wanted())
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        processes = [int(number) for number in parent.stdout.readline().split()]
        time.sleep(0.3)
        assert len(processes) == 2
        assert all(map(is_alive, processes))
        parent.send_signal(ending)
    assert ends_soon(processes)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more}


def run_under_torchrun(folder: Path, code: str, *, timeout: str = "60") -> subprocess.CompletedProcess[str]:
    """Two ranks that do what the command line does: follow or score, close, exit 2 with the message."""
    target = f"{file_with(folder, code)}:score"
    script = folder / "main.py"
    script.write_text(
        textwrap.dedent(f"""
            import sys
            import numpy as np
            from onepolicy.engines.contract import ScoreInput, Wanted
            from onepolicy.engines.spec import EngineSpec
            from onepolicy.errors import EngineError
            from onepolicy.integrations.callable.engine import CallableEngine

            options = {{"timeout": {timeout!r}}}
            engine = CallableEngine.open(EngineSpec(engine="callable", target={target!r}, options=options))
            try:
                if engine.is_follower:
                    engine.follow()
                    print("followed")
                else:
                    one = ScoreInput(rollout_id="r-0", token_ids=np.int32([1, 2, 3]), wanted=np.ones(3, bool))
                    for _ in range(2):
                        print(engine.score([one], Wanted())[0].logprobs[1:].tolist())
            except EngineError as error:
                print(f"error: {{error}}", file=sys.stderr)
                sys.exit(2)
            finally:
                engine.close()
        """)
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        str(script),
    ]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, check=False)


@pytest.mark.parametrize("makes_group", [True, False])
def test_under_torchrun_rank_0_scores_and_the_others_follow(tmp_path, makes_group):
    own = 'distributed.init_process_group("gloo")' if makes_group else ""
    code = f"""
        import torch
        from torch import distributed
        {own}
        def score(token_ids):
            share = torch.full((len(token_ids[0]),), -1.0 - distributed.get_rank())
            distributed.all_reduce(share)
            return [share]
    """
    done = run_under_torchrun(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "[-3.0, -3.0]", "[-3.0, -3.0]", "followed"]


def test_under_torchrun_a_follower_that_raises_is_named(tmp_path):
    code = """
        import os
        def score(token_ids):
            if os.environ["RANK"] == "1":
                raise ValueError("no such layer")
            return [[-1.0] * len(ids) for ids in token_ids]
    """
    done = run_under_torchrun(tmp_path, code)
    assert done.returncode == 1
    assert "rollout r-0: rank 1 of 2: " in done.stderr
    assert "ValueError: no such layer" in done.stderr


def test_under_torchrun_a_follower_that_raises_frees_rank_0_from_a_collective(tmp_path):
    code = """
        import os, torch
        from torch import distributed
        distributed.init_process_group("gloo")
        def score(token_ids):
            if os.environ["RANK"] == "1":
                raise ValueError("no such layer")
            distributed.all_reduce(torch.zeros(1))
    """
    done = run_under_torchrun(tmp_path, code, timeout="1")
    assert done.returncode == 1
    assert "rollout r-0: rank 1 of 2: " in done.stderr
    assert "ValueError: no such layer" in done.stderr


def test_under_torchrun_a_follower_that_hangs_is_an_error(tmp_path):
    code = """
        import os, time
        def score(token_ids):
            if os.environ["RANK"] == "1":
                time.sleep(1000)
            return [[-1.0] * len(ids) for ids in token_ids]
    """
    done = run_under_torchrun(tmp_path, code, timeout="1")
    assert done.returncode == 1
    assert "rollout r-0: rank 1 of 2 is gone, or not through in time" in done.stderr
    assert "exitcode  : 2" in done.stderr


def test_a_peer_that_is_killed_is_an_error_on_rank_0(tmp_path):
    """Without torchrun, which would end rank 0 too."""
    code = """
        import os, signal
        def score(token_ids):
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            return [[-1.0] * len(ids) for ids in token_ids]
    """
    target = f"{file_with(tmp_path, code)}:score"
    script = f"""
        import numpy as np
        from onepolicy.engines.contract import ScoreInput, Wanted
        from onepolicy.engines.spec import EngineSpec
        from onepolicy.errors import EngineError
        from onepolicy.integrations.callable.engine import CallableEngine
        engine = CallableEngine.open(EngineSpec(engine="callable", target={target!r}))
        try:
            if engine.is_follower:
                engine.follow()
            one = ScoreInput(rollout_id="r-0", token_ids=np.int32([1, 2]), wanted=np.ones(2, bool))
            engine.score([one], Wanted())
        except EngineError as error:
            print(error)
        finally:
            engine.close()
    """
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            env=environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=30)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, -signal.SIGKILL]
    assert "rollout r-0: rank 1 of 2 is gone" in printed[0]


def test_ranks_inside_a_rank_of_torchrun_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="ranks=2 would start ranks inside a rank of torchrun"):
        CallableEngine.open(spec_of(tmp_path, PLAIN, ranks="2"))

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from onepolicy.engines.contract import Engine, Sampler, ScoreInput, Wanted
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations import open_engine, open_sampler
from onepolicy.integrations.callable.engine import CallableEngine
from onepolicy.integrations.callable.function import UserFunction
from onepolicy.integrations.callable.process import free_port
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.records.protocol import Meaning
from onepolicy.records.tokens import TokenState, digest_of_ids

NUMBERS = Wanted()
BATCH = [[5, 6, 7], [8, 9]]


def sequences(*many: list[int]) -> list[ScoreInput]:
    return [
        ScoreInput(rollout_id=f"r-{number}", token_ids=np.int32(ids), wanted=np.ones(len(ids), bool))
        for number, ids in enumerate(many)
    ]


def engine_of(call) -> CallableEngine:
    return CallableEngine(UserFunction(name="my:score", call=call), target="my:score")


def score(call, wanted: Wanted = NUMBERS):
    return engine_of(call).score(sequences(*BATCH), wanted)


def error_of(call) -> str:
    with pytest.raises(EngineError) as caught:
        score(call)
    return str(caught.value)


def file_with(folder: Path, code: str) -> str:
    path = folder / "scoring.py"
    path.write_text(textwrap.dedent(code))
    return str(path)


def spec_of(folder: Path, code: str, **options: str) -> EngineSpec:
    return EngineSpec(engine="callable", target=f"{file_with(folder, code)}:score", options=options)


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


def test_it_is_an_engine_and_no_sampler(tmp_path):
    spec = spec_of(tmp_path, "def score(token_ids): ...")
    engine = open_engine(spec)
    assert isinstance(engine, Engine)
    assert not isinstance(engine, Sampler)
    assert not engine.is_follower
    with pytest.raises(EngineError, match="cannot sample"):
        open_sampler(spec)


def test_entry_i_belongs_to_token_i_and_the_first_has_none():
    rows = score(lambda batch: [np.array([np.nan] + [-0.5] * (len(ids) - 1)) for ids in batch])
    assert [row.rollout_id for row in rows] == ["r-0", "r-1"]
    assert rows[0].logprobs[1:].tolist() == [-0.5, -0.5]
    assert rows[0].states.tolist() == [TokenState.ABSENT, TokenState.VALUE, TokenState.VALUE]
    assert rows[1].digest == digest_of_ids(np.int32(BATCH[1]))


def test_tokens_that_nobody_asked_for_are_masked():
    one = ScoreInput(rollout_id="r", token_ids=np.int32([1, 2, 3]), wanted=np.array([False, False, True]))
    row = engine_of(lambda batch: [[-1.0, -2.0, -3.0]]).score([one], NUMBERS)[0]
    assert row.states.tolist() == [TokenState.MASKED, TokenState.MASKED, TokenState.VALUE]
    assert np.isnan(row.logprobs[:2]).all()


def test_what_is_no_logprob_is_invalid():
    row = engine_of(lambda batch: [[0.0, np.nan, -np.inf, -9999.0, 0.5]]).score(sequences([1] * 5), NUMBERS)[0]
    assert row.states[1:].tolist() == [TokenState.INVALID] * 4
    assert np.isnan(row.logprobs).all()


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        np.float32,
        lambda values: np.array(values, dtype=np.float16),
        lambda values: torch.tensor(values, dtype=torch.bfloat16),
        lambda values: torch.tensor(values, requires_grad=True),
        lambda values: [None, *values[1:]],
    ],
)
def test_lists_arrays_and_tensors_of_any_dtype_are_taken(convert):
    rows = score(lambda batch: [convert([0.0] + [-0.5] * (len(ids) - 1)) for ids in batch])
    assert [row.logprobs[1:].tolist() for row in rows] == [[-0.5, -0.5], [-0.5]]


def test_it_scores_as_the_engine_behind_it_does():
    fake = FakeEngine()

    def through(batch):
        return [row.logprobs for row in fake.score(sequences(*batch), NUMBERS)]

    for own, theirs in zip(score(through), fake.score(sequences(*BATCH), NUMBERS), strict=True):
        assert np.array_equal(own.logprobs, theirs.logprobs, equal_nan=True)
        assert np.array_equal(own.states, theirs.states)


def test_one_array_too_few_is_refused():
    assert "my:score returned 1 arrays for 2 sequences (rollouts r-0 to r-1)" in error_of(lambda batch: [[0.0] * 3])


def test_one_logprob_too_few_is_refused_with_the_remedy():
    message = error_of(lambda batch: [[-1.0] * (len(ids) - 1) for ids in batch])
    assert "my:score, rollout r-0: 2 logprobs for 3 tokens, one too few." in message
    assert "put a NaN in front" in message


def test_padding_that_was_left_on_is_refused():
    message = error_of(lambda batch: [[-1.0] * 3 for _ in batch])
    assert "my:score, rollout r-1: 3 logprobs for 2 tokens." in message
    assert "padding cut off" in message


def test_full_logits_are_refused_with_the_remedy():
    message = error_of(lambda batch: [np.zeros((len(ids), 100)) for ids in batch])
    assert "my:score, rollout r-0: an array of shape (3, 100) instead of (3,). It looks like full logits" in message


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [((1, 3), "Drop the first axis"), ((1, 3, 9), "one 1-d array"), ((), "one 1-d array")],
)
def test_other_shapes_are_refused(shape, remedy):
    message = error_of(lambda batch: [np.zeros(shape), np.zeros(2)])
    assert f"shape {shape} instead of (3,)" in message
    assert remedy in message


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (None, "returned a NoneType for rollouts r-0 to r-1"),
        (np.zeros((2, 3)), "returned a ndarray for"),
        ([{"logprobs": []}, [0.0]], "rollout r-0: a dict. Return a 1-d numpy array"),
        ([["a", "b", "c"], [0.0]], "rollout r-0: a list that holds more than numbers"),
        ([[[0.0], [0.0, 1.0], 2.0], [0.0]], "rollout r-0: a list that holds more than numbers"),
    ],
)
def test_answers_of_the_wrong_type_are_refused(answer, found):
    assert found in error_of(lambda batch: answer)


def test_a_tensor_that_is_spread_over_ranks_is_refused_with_the_remedy():
    class DTensor(torch.Tensor):
        pass

    message = error_of(lambda batch: [torch.zeros(len(ids)).as_subclass(DTensor) for ids in batch])
    assert "Call .full_tensor() on every rank" in message


def test_an_exception_keeps_the_end_of_its_traceback(tmp_path):
    engine = open_engine(spec_of(tmp_path, "def score(token_ids):\n    return {}['logits']"))
    with pytest.raises(EngineError) as caught:
        engine.score(sequences([1, 2]), NUMBERS)
    message = str(caught.value)
    assert "scoring.py:score failed on rollout r-0:" in message
    assert f'File "{tmp_path}/scoring.py", line 2, in score' in message
    assert message.endswith("KeyError: 'logits'")
    assert "function.py" not in message


def test_a_temperature_is_passed_to_a_function_that_takes_one():
    got = []

    def scorer(token_ids, *, temperature):
        got.append(temperature)
        return [[-1.0] * len(ids) for ids in token_ids]

    score(scorer)
    score(scorer, Wanted(meaning=Meaning(temperature=0.7)))
    assert got == [1.0, 0.7]
    with pytest.raises(
        EngineError, match=r"can only score raw and temperature-scaled logprobs, and processed \(.*top_k 5\)"
    ):
        score(scorer, Wanted(meaning=Meaning(top_k=5)))


def test_a_function_without_temperature_scores_only_raw():
    with pytest.raises(EngineError, match=r"can only score raw logprobs, and processed \(temperature 0.7\)"):
        score(lambda token_ids: [], Wanted(meaning=Meaning(temperature=0.7)))


def test_a_dotted_target_is_found_in_the_working_directory(tmp_path, monkeypatch):
    package = tmp_path / "my_scoring_package"
    package.mkdir()
    code = '__version__ = "1.2"\ndef score(token_ids): return [[-1.0] * len(ids) for ids in token_ids]'
    (package / "logprobs.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = EngineSpec(engine="callable", target="my_scoring_package.logprobs:score", options={"dtype": "bfloat16"})
    info = open_engine(spec).info
    assert (info.name, info.version, info.dtype) == ("callable", "1.2", "bfloat16")
    assert info.model == "my_scoring_package.logprobs:score"


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("my_module", "callable:my_module names no function. Write callable:my_pkg.scoring:score"),
        ("absent.py:score", "there is no file absent.py in "),
        ("math:score", "math has no function 'score'"),
        ("math:pi", "math has no function 'pi'"),
    ],
)
def test_a_target_that_names_no_function_is_refused(target, found):
    with pytest.raises(UsageError) as caught:
        CallableEngine.open(EngineSpec(engine="callable", target=target))
    assert found in str(caught.value)


def test_an_absent_function_is_refused_with_those_that_are_there(tmp_path):
    with pytest.raises(UsageError, match=r"has no function 'score'. It has: scores, more\."):
        open_engine(spec_of(tmp_path, "def scores(): ...\ndef more(): ...\ndef _hidden(): ..."))


def test_a_module_that_fails_to_import_keeps_its_traceback(tmp_path):
    with pytest.raises(EngineError, match=r"importing .*scoring.py failed:(.|\n)*line 1(.|\n)*no_such_package"):
        open_engine(spec_of(tmp_path, "import no_such_package"))
    with pytest.raises(EngineError, match=r"importing no_such_package failed:(.|\n)*ModuleNotFoundError"):
        CallableEngine.open(EngineSpec(engine="callable", target="no_such_package:score"))


def test_it_cannot_decode_token_by_token():
    engine = engine_of(len)
    assert engine.condition(path="prefill").batch_size == 8
    with pytest.raises(EngineError, match="all at once: it cannot decode"):
        engine.condition(path="decode")


def test_a_tokenizer_is_read_from_a_file_or_its_folder(tmp_path):
    content = FakeEngine().tokenizer_file()
    (tmp_path / "tokenizer.json").write_bytes(content)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        engine = open_engine(spec_of(tmp_path, "def score(token_ids): ...", tokenizer=str(path)))
        assert engine.tokenizer_file() == content
        assert engine.decode(np.int32([72, 105, 258])) == "Hi<|im_end|>"
        assert engine.info.tokenizer_hash == FakeEngine().info.tokenizer_hash
    without = open_engine(spec_of(tmp_path, "def score(token_ids): ..."))
    assert without.tokenizer_file() is without.decode(np.int32([72])) is None


@pytest.mark.parametrize(
    ("content", "found"), [(None, "there is no file"), ("{", "is not JSON"), ("{}", "has no key 'model'")]
)
def test_what_is_no_tokenizer_is_refused(tmp_path, content, found):
    path = tmp_path / "some.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(EngineError, match=found):
        open_engine(spec_of(tmp_path, "def score(token_ids): ...", tokenizer=str(path)))


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

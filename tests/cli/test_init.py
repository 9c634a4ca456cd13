"""`init` writes a file that `check` runs, asks where a person is there, and never writes over anything unasked."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.load import PRESETS
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.reading import EngineInfo
from onepolicy.records.run import Run
from onepolicy.workflow.check import CheckRequest
from onepolicy.workflow.config import Config, check_request, load_config
from onepolicy.workflow.init import suggested

PAIR = ("--rollout", "fake:m?noise=0.01", "--trainer", "fake:m")
SIDES = {"rollout": parse_spec("fake:m?noise=0.01"), "trainer": parse_spec("fake:m")}
SCORING = "def score(token_ids):\n    return [[-1.5] * len(ids) for ids in token_ids]\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def engines(monkeypatch) -> dict[str, int]:
    """How many engines were opened and closed."""
    count = {"opened": 0, "closed": 0}
    open_, close = FakeEngine.open, FakeEngine.close

    def opened(spec):
        engine = open_(spec)
        count["opened"] += 1
        return engine

    def closed(self):
        count["closed"] += 1
        close(self)

    monkeypatch.setattr(FakeEngine, "open", opened)
    monkeypatch.setattr(FakeEngine, "close", closed)
    return count


def refused(ended, *messages: str) -> bool:
    assert (ended.status, ended.out) == (2, "")
    assert "Traceback" not in ended.err
    return all(message in ended.err for message in messages)


# -- what is written --------------------------------------------------------------------------------------------


def test_the_file_loads_again_as_what_was_asked_for(cli):
    assert cli("init", *PAIR, "--suite", "standard", "--limits", "quantised").status == 0
    request = check_request(load_config(Path("onepolicy.yaml")))
    assert request == CheckRequest(**SIDES, suite="standard", limits=request.limits)
    assert yaml.safe_load(Path("onepolicy.yaml").read_text())["limits"] == {"preset": "quantised"}


@pytest.mark.parametrize("probe", [(), ("--no-probe",)])
def test_check_runs_the_file_as_it_is(probe, cli, here):
    assert cli("init", *PAIR, "--limits", "bf16", *probe).status == 0
    ended = cli("check", "onepolicy.yaml", "--run", here / "run", "--max-new-tokens", 8)
    assert (ended.status, ended.out.split()[0]) == (0, "Pass:")
    run = Run.open(here / "run")
    assert run.manifest.rollout_engine == "fake:m?noise=0.01"
    assert run.manifest.protocol == SamplingProtocol(max_new_tokens=8)


def test_every_line_that_is_commented_out_may_be_taken_in(cli):
    for preset in PRESETS:
        assert cli("init", *PAIR, "--limits", preset, "--force", "--no-probe").status == 0
        text = Path("onepolicy.yaml").read_text()
        changed = text
        for name in Limits.numbers():
            assert f"  # {name}: " in text
            changed = changed.replace(f"  # {name}: ", f"  {name}: ")
        Path("changed.yaml").write_text(changed)
        before, after = (check_request(load_config(Path(name))) for name in ("onepolicy.yaml", "changed.yaml"))
        assert before == after
        assert set(Limits.numbers()) < set(yaml.safe_load(changed)["limits"])


def test_the_comments_say_what_the_models_say(cli):
    assert cli("init", *PAIR).status == 0
    text = Path("onepolicy.yaml").read_text()
    said = " ".join(text.replace("#", " ").split())
    for model in (Config, SamplingProtocol, Limits):
        fields = model.model_fields if model is not Limits else {n: model.model_fields[n] for n in Limits.numbers()}
        assert all(" ".join(field.description.split()) in said for field in fields.values())
    assert "fake knows the options: seed, noise" in said


@pytest.mark.parametrize(
    "spec",
    [
        "fake:a b # c",
        "fake:m: n",
        "fake:'\"",
        "fake:{x}",
        "fake:日本\u2028語",
        "fake:m\nlimits: bitwise",
        "fake:m?dtype=a%26b%3D%2B+c",
        "fake:\x1b[31m",
    ],
)
def test_odd_characters_of_a_spec_come_back_and_break_out_of_no_comment(spec, cli):
    ended = cli("init", "--rollout", spec, "--trainer", "fake:m")
    assert ended.status == 0
    assert "\x1b" not in ended.out + ended.err + Path("onepolicy.yaml").read_text()
    config = load_config(Path("onepolicy.yaml"))
    assert config.rollout == parse_spec(spec)
    assert config.limits == {"preset": "strict"}


def test_a_file_in_another_folder_means_the_same_files(cli, here):
    (here / "sub").mkdir()
    (here / "scoring.py").write_text(SCORING)
    (here / "mine.jsonl").write_text('{"id": "a", "messages": [{"role": "user", "content": "Hi"}]}\n')
    options = ("--suite", "mine.jsonl", "--output", "sub/conf.yaml", "--no-probe")
    assert cli("init", "--rollout", "fake:m", "--trainer", "callable:scoring.py:score", *options).status == 0
    written = yaml.safe_load((here / "sub" / "conf.yaml").read_text())
    assert (written["trainer"], written["suite"]) == ("callable:../scoring.py:score", "../mine.jsonl")
    config = load_config(Path("sub/conf.yaml"))
    assert config.suite == "./mine.jsonl"
    assert config.trainer == EngineSpec(engine="callable", target="./scoring.py:score")


# -- probing ----------------------------------------------------------------------------------------------------


def test_each_side_is_said_in_one_line_and_both_engines_are_closed(cli, engines):
    ended = cli("init", *PAIR)
    rollout, trainer, _ = ended.out.splitlines()
    for side, line in (("rollout", rollout), ("trainer", trainer)):
        assert line.startswith(f"{side}: fake 1, m, float64 on cpu, 259 ids, samples and scores, tokenizer ")
        assert f"# Found: {line.partition(': ')[2]}." in Path("onepolicy.yaml").read_text()
    assert engines == {"opened": 2, "closed": 2}


def test_without_probing_no_engine_is_opened_and_the_file_says_so(cli, engines):
    ended = cli("init", *PAIR, "--no-probe")
    assert ended.status == 0
    assert engines == {"opened": 0, "closed": 0}
    assert "no engine was opened" in Path("onepolicy.yaml").read_text()
    assert "Found:" not in Path("onepolicy.yaml").read_text()


def test_a_rollout_side_that_cannot_sample_is_refused(cli, here):
    (here / "scoring.py").write_text(SCORING)
    ended = cli("init", "--rollout", "callable:scoring.py:score", "--trainer", "fake:m")
    assert refused(ended, "cannot sample. Use it as --trainer")
    assert not Path("onepolicy.yaml").exists()


def test_a_trainer_side_that_cannot_score_is_refused_and_closed(cli, engines, monkeypatch):
    monkeypatch.setattr(FakeEngine, "scores", property(lambda self: self._options.noise == 0.0))
    ended = cli("init", "--rollout", "fake:m", "--trainer", "fake:m?noise=1")
    assert (ended.status, "cannot score given tokens. Use it as --rollout" in ended.err) == (2, True)
    assert engines == {"opened": 2, "closed": 2}
    assert not Path("onepolicy.yaml").exists()


def test_a_rollout_side_that_cannot_score_is_refused_for_fixed_sequences(cli, monkeypatch):
    monkeypatch.setattr(FakeEngine, "scores", property(lambda self: self._options.noise == 0.0))
    assert refused(cli("init", *PAIR, "--suite", "fixed-quick"), "which both sides must score")
    assert cli("init", *PAIR).status == 0


def test_an_engine_that_breaks_while_it_is_asked_is_closed(cli, engines, monkeypatch):
    monkeypatch.setattr(FakeEngine, "tokenizer_file", lambda _: 1 / 0)
    assert cli("init", *PAIR).status == 2
    assert engines == {"opened": 1, "closed": 1}
    assert not Path("onepolicy.yaml").exists()


def test_other_vocabularies_and_tokenizers_are_a_warning_in_the_file_and_on_stderr(cli, monkeypatch):
    info, file = FakeEngine.info, FakeEngine.tokenizer_file

    def smaller(self):
        found = info.fget(self)
        return found.model_copy(update={"vocab_size": 100}) if self._options.noise else found

    monkeypatch.setattr(FakeEngine, "info", property(smaller))
    monkeypatch.setattr(FakeEngine, "tokenizer_file", lambda self: file(self) + b" " * bool(self._options.noise))
    ended = cli("init", *PAIR)
    assert ended.status == 0
    text = " ".join(Path("onepolicy.yaml").read_text().replace("#", " ").split())
    for warning in (
        "the vocabularies differ: 100 ids on the rollout side, 259 on the trainer",
        "the tokenizers differ",
    ):
        assert f"warning: {warning}" in ended.err
        assert f"Warning: {warning}" in text


def test_what_a_side_does_not_say_is_no_difference(cli, monkeypatch):
    info, file = FakeEngine.info, FakeEngine.tokenizer_file
    silent = {"vocab_size": None}
    monkeypatch.setattr(
        FakeEngine,
        "info",
        property(lambda s: info.fget(s).model_copy(update=silent) if s._options.noise else info.fget(s)),
    )
    monkeypatch.setattr(FakeEngine, "tokenizer_file", lambda self: None if self._options.noise else file(self))
    ended = cli("init", *PAIR)
    assert "warning" not in ended.err
    assert "vocabulary unknown, samples and scores, no tokenizer.json" in ended.out


# -- the preset -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rollout", "trainer", "preset"),
    [
        ("float32", "float32", "strict"),
        ("float64", "float32", "strict"),
        ("bfloat16", "float32", "bf16"),
        ("float32", "float16", "bf16"),
        ("bfloat16", "bfloat16", "bf16"),
        ("bfloat16", "unknown", "bf16"),
        ("Q4_1", "float32", "quantised"),
        ("bfloat16", "Q8_0", "quantised"),
        ("Q4_K - Medium", "bfloat16", "quantised"),
        ("IQ2_XXS", "unknown", "quantised"),
        ("MXFP4 MoE", "float32", "quantised"),
        ("float8_e4m3fn", "bfloat16", "quantised"),
        ("fp8", "float32", "quantised"),
        ("int8", "float32", "quantised"),
        ("bnb-4bit", "float32", "quantised"),
        ("W4A16", "float32", "quantised"),
        ("float32", "unknown", "strict"),
        ("", "float32", "strict"),
        ("int32", "fp16", "strict"),
        ("fp64", "fp32", "strict"),
    ],
)
def test_the_preset_follows_from_the_precision_of_both_sides(rollout, trainer, preset):
    sides = [EngineInfo(name="e", version="1", model="m", dtype=dtype) for dtype in (rollout, trainer)]
    suggestion = suggested(*sides)
    assert suggestion.preset == preset
    assert suggestion.why


def test_the_suggested_preset_is_taken_where_nobody_can_be_asked_and_the_file_says_why(cli):
    ended = cli("init", "--rollout", "fake:m?dtype=bfloat16", "--trainer", "fake:m")
    assert "limits: bf16, as the rollout side is bfloat16" in ended.err
    text = Path("onepolicy.yaml").read_text()
    assert "# Preset bf16: the rollout side is bfloat16." in text
    assert load_config(Path("onepolicy.yaml")).limits == {"preset": "bf16"}


# -- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--rollout is not given, and stdin is no terminal"),
        (("--rollout", "fake:m"), "--trainer is not given, and stdin is no terminal"),
        (("--rollout", "fake", "--trainer", "fake:m"), "'fake' names no engine"),
        (("--rollout", "fak:m", "--trainer", "fake:m"), "there is no engine 'fak'. Known engines: "),
        (("--rollout", "fake:m", "--trainer", "fake:m?sed=1"), "fake has no option 'sed'. It knows: seed"),
        ((*PAIR, "--suite", "nope"), "there is no suite 'nope' and no such file"),
        ((*PAIR, "--limits", "fp8"), "'fp8' is not one of 'strict', 'bf16', 'quantised', 'bitwise'"),
        ((*PAIR, "--output", "no/such/conf.yaml"), "no/such/conf.yaml: there is no folder no/such. Make it first"),
        ((*PAIR, "--output", "."), ".: is a folder"),
        ((*PAIR, "--output", ""), "is a folder"),
        ((*PAIR, "--output", "file/conf.yaml"), "there is no folder file"),
        ((*PAIR, "--output", "x" * 300), "File name too long"),
    ],
)
def test_what_cannot_be_done_is_refused_before_an_engine_is_opened(arguments, message, cli, engines):
    Path("file").write_text("mine")
    assert refused(cli("init", *arguments), message)
    assert engines == {"opened": 0, "closed": 0}
    assert [path.name for path in Path().iterdir()] == ["file"]


@pytest.mark.parametrize("there", ["file", "link"])
def test_a_file_that_is_there_is_only_replaced_when_asked(there, cli, engines):
    path = Path("onepolicy.yaml")
    if there == "file":
        path.write_text("mine")
    else:
        path.symlink_to("nowhere")
    assert refused(cli("init", *PAIR), "onepolicy.yaml: exists and is left as it is. Give another --output, or --force")
    assert engines["opened"] == 0
    assert os.path.lexists(path)
    assert not path.exists() or path.read_text() == "mine"
    assert cli("init", *PAIR, "--force").status == 0
    assert load_config(path).rollout == SIDES["rollout"]


def test_a_file_that_appears_while_engines_are_opened_is_not_replaced(cli, monkeypatch):
    open_ = FakeEngine.open
    monkeypatch.setattr(FakeEngine, "open", lambda spec: (Path("onepolicy.yaml").write_text("mine"), open_(spec))[1])
    assert cli("init", *PAIR).status == 2
    assert Path("onepolicy.yaml").read_text() == "mine"


def test_a_closed_stdin_is_nobody_to_ask(here):
    command = f"exec {sys.executable} -m onepolicy init <&-"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, cwd=here)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--rollout is not given, and stdin is no terminal" in ended.stderr
    assert list(here.iterdir()) == []


# -- at a terminal ----------------------------------------------------------------------------------------------


class Terminal:
    """`onepolicy init` with a terminal as stdin."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._keyboard, theirs = pty.openpty()
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "onepolicy", "init", *arguments],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
        )
        os.close(theirs)
        os.set_blocking(self.popen.stderr.fileno(), False)
        self.err = ""

    def wait_for(self, text: str) -> None:
        """Until stderr says so."""
        deadline = time.monotonic() + 60
        while text not in self.err:
            assert time.monotonic() < deadline, self.err
            self.err += (self.popen.stderr.read() or b"").decode()
            time.sleep(0.01)

    def type(self, text: str) -> None:
        os.write(self._keyboard, text.encode())

    def end(self) -> int:
        out, err = self.popen.communicate(timeout=60)
        self.out, self.err = out.decode(), self.err + err.decode()
        return self.popen.returncode

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        with suppress(ValueError):
            self.popen.communicate()
        os.close(self._keyboard)


@pytest.fixture
def terminal(here):
    started = []

    def start(*arguments: str) -> Terminal:
        started.append(Terminal(here, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_at_a_terminal_what_is_missing_is_asked_for_and_asked_again_if_it_is_wrong(terminal):
    init = terminal()
    init.wait_for("Engine that samples")
    init.type("fake\n")
    init.wait_for("names no engine")
    init.type("fake:m?sed=1\n")
    init.wait_for("has no option 'sed'")
    init.type("fake:m?dtype=bfloat16\n")
    init.wait_for("Engine that scores")
    init.type("fake:m\n")
    init.wait_for("Preset of limits")
    assert "limits: bf16, as the rollout side is bfloat16" in init.err
    init.type("\n")
    assert init.end() == 0
    request = check_request(load_config(Path("onepolicy.yaml")))
    assert (str(request.rollout), str(request.trainer)) == ("fake:m?dtype=bfloat16", "fake:m")
    assert load_config(Path("onepolicy.yaml")).limits == {"preset": "bf16"}


def test_at_a_terminal_another_preset_may_be_chosen_and_what_is_given_is_not_asked(terminal):
    init = terminal(*PAIR)
    init.wait_for("Preset of limits")
    init.type("quantised\n")
    assert init.end() == 0
    assert "Engine that" not in init.err
    assert "# Preset quantised: as asked for." in Path("onepolicy.yaml").read_text()
    assert load_config(Path("onepolicy.yaml")).limits == {"preset": "quantised"}


@pytest.mark.parametrize("how", ["ctrl-c", "ctrl-d"])
def test_an_interruption_at_a_prompt_ends_with_130_and_writes_nothing(how, terminal, here):
    init = terminal()
    init.wait_for("Engine that samples")
    if how == "ctrl-c":
        init.popen.send_signal(signal.SIGINT)
    else:
        init.type("\x04")
    assert init.end() == 130
    assert "onepolicy: interrupted." in init.err
    assert "Traceback" not in init.err
    assert list(here.iterdir()) == []


# -- check with a file ------------------------------------------------------------------------------------------

SMALL = "rollout: fake:m\ntrainer: fake:m\nsampling: {max_new_tokens: 8, seed: 4}\ntop: 3\nlimits: {mean_kl: 0.125}\n"


def test_options_go_over_the_file_and_defaults_do_not(cli, here):
    Path("conf.yaml").write_text(SMALL + "keep_text: false\nbudget: 160\n")
    assert cli("check", "conf.yaml", "--run", "a").status == 0
    typed = ("--seed", 0, "--top", 20, "--mean-kl", 0.5)
    assert cli("check", "conf.yaml", "--run", "b", *typed).status == 0
    first, second = Run.open(Path("a")), Run.open(Path("b"))
    assert first.manifest.protocol == SamplingProtocol(max_new_tokens=8, seed=4)
    assert second.manifest.protocol == SamplingProtocol(max_new_tokens=8, seed=0)
    assert [run.reading_info("rollout").request.top for run in (first, second)] == [3, 20]
    assert [run.manifest.keeps_text for run in (first, second)] == [False, False]
    assert [len(run.rollout_ids()) for run in (first, second)] == [20, 20]
    limits = [run.report_data("default").commands[-1].split("--mean-kl ")[1] for run in (first, second)]
    assert limits == ["0.125", "0.5"]


def test_sides_given_as_options_go_over_those_of_the_file(cli):
    Path("conf.yaml").write_text(SMALL + "also: [fake:a]\n")
    given = ("--rollout", "fake:r", "--also", "fake:b", "--also", "fake:c")
    assert cli("check", "conf.yaml", "--run", "a", *given).status == 0
    run = Run.open(Path("a"))
    engines = {run.reading_info(name).request.engine for name in run.reading_names()}
    assert engines == {"fake:r", "fake:m", "fake:b", "fake:c"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no rollout engine is given. Say it with --rollout SPEC"),
        (("--rollout", "fake:m"), "no trainer engine is given. Say it with --trainer SPEC"),
        (("half.yaml",), "no trainer engine is given"),
        (("nope.yaml",), "nope.yaml: there is no such file. `onepolicy init` writes a config."),
        (("wrong.yaml",), "wrong.yaml: there is no key 'trainr'. Known: rollout, trainer"),
        (("half.yaml", "--trainer", "fake:m", "--top-p", "0"), "onepolicy: sampling.top_p = 0.0"),
        (("half.yaml", "--trainer", "fake"), "onepolicy: trainer: 'fake' names no engine"),
        (("half.yaml", "half.yaml"), "unexpected extra argument"),
    ],
)
def test_a_check_that_lacks_something_says_what_and_what_to_do(arguments, message, cli):
    Path("half.yaml").write_text("rollout: fake:m\n")
    Path("wrong.yaml").write_text("trainr: fake:m\n")
    assert refused(cli("check", *arguments), message)
    assert not Path("runs").exists()


# -- the command to repeat a check ------------------------------------------------------------------------------


def test_the_command_to_repeat_a_check_names_the_further_trainers_and_no_reading_made_by_hand(cli):
    also = ("--also", "fake:a b?seed=0", "--also", "fake:b")
    small = ("--max-new-tokens", 8)
    assert cli("check", "--rollout", "fake:m", "--trainer", "fake:m", *also, *small, "--run", "a").status == 0
    assert cli("score", "a", "--engine", "fake:by-hand", "--name", "trainer-by-hand").status == 0
    (Path("a") / "readings" / "trainer-copy").mkdir()
    (Path("a") / "readings" / "trainer-copy" / "reading.json").write_text("{}")
    assert cli("judge", "a").status == 0
    command = Run.open(Path("a")).report_data("default").commands[0]
    assert command.count("--also") == 2
    assert "--also 'fake:a b?seed=0'" in command
    assert "--also fake:b" in command
    repeated = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m {command} --run b"], capture_output=True, check=False, text=True
    )
    assert repeated.returncode == 0, repeated.stderr
    names = [set(Run.open(Path(name)).reading_names()) for name in ("a", "b")]
    assert names[0] - names[1] == {"trainer-by-hand", "trainer-copy"}
    assert len(names[1]) == 4

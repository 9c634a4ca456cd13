import json

from click.testing import CliRunner
from rich.console import Console

from onepolicy.cli.app import app
from onepolicy.records.verdict import Status, Verdict
from onepolicy.report.reward import show_reward
from onepolicy.signal.reward.result import RewardChecks

SOUND = "import zlib\ndef score(talks):\n    return [zlib.crc32(repr(one).encode()) / 2**30 for one in talks]\n"


def called(*arguments):
    return CliRunner().invoke(app, ["reward", *map(str, arguments)], standalone_mode=False)


def test_a_table_is_printed_and_the_status_returned(tmp_path):
    (tmp_path / "rewards.py").write_text(SOUND)
    done = called(f"callable:{tmp_path / 'rewards.py'}:score?dtype=float32")
    assert done.return_value == 0, done.output
    assert done.stdout.startswith("Pass: ")
    assert "response_swap" in done.stdout
    assert "12 pairs, spread of two answers" in done.stdout


def test_json_has_every_verdict(tmp_path):
    (tmp_path / "rewards.py").write_text(SOUND)
    done = called(f"callable:{tmp_path / 'rewards.py'}:score?dtype=float32", "--json")
    found = json.loads(done.stdout)
    assert found["status"] == "pass"
    assert {"padding", "served", "length_slope"} <= {one["check"] for one in found["verdicts"]}


def test_model_text_is_shown_without_control_characters():
    bad = Verdict(check="reads_end", status=Status.FAIL, message="the tail \x1b[31m is not read")
    found = RewardChecks(
        model="\x1b]0;x\x07m", pairs=4, spread=1.0, status=Status.FAIL, sentence="Fail: \x1b[2J", verdicts=(bad,)
    )
    console = Console(width=80, record=True, force_terminal=False)
    with console.capture() as shown:
        show_reward(found, console)
    assert "\x1b" not in shown.get()
    assert "\x07" not in shown.get()

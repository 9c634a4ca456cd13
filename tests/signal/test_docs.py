"""The example of docs/signal.md prints what the page says."""

import contextlib
import io
import re
from pathlib import Path

from onepolicy.signal.batch.batch import SignalBatch
from onepolicy.signal.batch.check import checked

PAGE = (Path(__file__).parents[2] / "docs/signal.md").read_text()


def test_the_example_prints_what_the_page_says():
    code, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, flags=re.DOTALL).groups()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/signal.md", "exec"), {})
    assert out.getvalue() == printed


def test_the_page_lists_the_checks_in_the_order_in_which_they_are_shown():
    table = PAGE[PAGE.index("| check |") :]
    named = re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)
    assert named == [verdict.check for verdict in checked(SignalBatch(rewards=[1.0]))]

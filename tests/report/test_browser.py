"""The report in a real browser: headless Chromium, which Debian packages as `chromium`."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from onepolicy.report.html import html

pytestmark = pytest.mark.real

HOSTILE = "</script><img src=x onerror=\"document.title='pwned'\"><svg onload=alert(1)>"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--enable-logging=stderr",
    "--v=0",
    "--allow-file-access-from-files",
    "--virtual-time-budget=5000",
)
MEASURE = """<!DOCTYPE html><body style="margin:0">
<iframe src="report.html" style="width:WIDTHpx;height:800px;border:0"></iframe><pre></pre><script>
onload = () => {
  const frame = document.querySelector("iframe"), page = frame.contentDocument, view = frame.contentWindow;
  const paper = () => view.getComputedStyle(page.querySelector(".page")).backgroundColor;
  const before = paper(), bottom = page.querySelector(".verdict .sentence").getBoundingClientRect().bottom;
  page.querySelector("#theme").click();
  const tokens = [...page.querySelectorAll(".top")];
  tokens[0].focus();
  document.querySelector("pre").textContent = JSON.stringify({
    title: page.title,
    bottom: bottom,
    overflow: page.documentElement.scrollWidth - view.innerWidth,
    active: page.querySelectorAll("script, img, iframe, object, embed").length,
    requests: view.performance.getEntriesByType("resource").map(entry => entry.name),
    themes: [before, paper()],
    focused: page.activeElement === tokens[0],
    text: page.querySelector(".tokens").textContent,
    charts: [...page.querySelectorAll("figure svg")].map(svg => svg.getBoundingClientRect().width),
  });
};
</script>"""


class Browser:
    """What Chromium says of a page, and what it writes to its log."""

    def __init__(self, chromium: Path, folder: Path) -> None:
        self.chromium, self.folder = chromium, folder

    def dump(self, file: str, *flags: str) -> tuple[str, str]:
        command = [self.chromium, *FLAGS, f"--user-data-dir={self.folder / 'profile'}", *flags, "--dump-dom"]
        done = subprocess.run(
            [*command, file if ":" in file else f"file://{self.folder / file}"],
            capture_output=True,
            text=True,
            timeout=90,
            check=True,
        )
        return done.stdout, done.stderr

    def measure(self, width: int) -> dict:
        (self.folder / "measure.html").write_text(MEASURE.replace("WIDTH", str(width)))
        dom, _ = self.dump("measure.html", f"--window-size={max(width, 500)},800")
        found = re.search(r"<pre>(.*)</pre>", dom, re.DOTALL)[1]
        return json.loads(found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.fixture
def browser(chromium, tmp_path, failed, tables, rollout_shown) -> Browser:
    rollout = rollout_shown("The", HOSTILE, " cat", d=(0.0, 0.4, -0.2))
    (tmp_path / "report.html").write_text(html(failed, tables(rollout)))
    return Browser(chromium, tmp_path)


@pytest.mark.parametrize("width", [1280, 400])
def test_the_verdict_is_seen_without_scrolling_and_nothing_is_cut_off(width, browser):
    found = browser.measure(width)
    assert 0 < found["bottom"] < 800
    assert found["overflow"] <= 0
    assert len(found["charts"]) == 4
    assert min(found["charts"]) > 300


def test_hostile_text_stays_text_and_the_page_asks_for_nothing(browser):
    found = browser.measure(1280)
    assert HOSTILE in found["text"]
    assert found["title"].startswith("fail")
    assert (found["active"], found["requests"]) == (0, [])


def test_the_theme_turns_and_the_worst_token_takes_the_focus(browser):
    found = browser.measure(1280)
    assert len(set(found["themes"])) == 2
    assert found["focused"]


def test_the_console_says_nothing(browser):
    dom, said = browser.dump("report.html", "--window-size=1280,800")
    assert "Fail" in dom
    assert "CONSOLE" not in said, said


@pytest.fixture
def served(tmp_path) -> Iterator[tuple[str, list[str]]]:
    """The folder over HTTP: its address, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def initiated_by(origin: str, log: Path) -> list[str]:
    """What a page of this origin asked for, from Chromium's own log. (Chromium itself asks for more, without one.)"""
    events = json.loads(log.read_text())["events"]
    params = [event.get("params", {}) for event in events]
    return [p["url"] for p in params if "url" in p and str(p.get("initiator", "")).startswith(origin)]


def test_not_one_request_follows_from_the_page_even_over_http(browser, served):
    origin, asked = served
    browser.dump(f"{origin}/report.html", f"--log-net-log={browser.folder / 'net.json'}")
    assert set(asked) == {"/report.html"}
    assert initiated_by(origin, browser.folder / "net.json") == []


def test_a_page_that_does_ask_would_be_seen(browser, served):
    origin, asked = served
    (browser.folder / "asks.html").write_text('<img src="x.png"><img src="http://127.0.0.1:9/y.png">')
    browser.dump(f"{origin}/asks.html", f"--log-net-log={browser.folder / 'net.json'}")
    assert "/x.png" in asked
    assert {f"{origin}/x.png", "http://127.0.0.1:9/y.png"} <= set(initiated_by(origin, browser.folder / "net.json"))


def test_a_million_tokens_are_judged_and_reported_within_memory_and_size(tmp_path):
    """Under 500 MB and 3 MB of file; the run is the benchmark's, and has a worst rollout to show."""
    benchmarks = Path(__file__).parents[2] / "benchmarks"
    code = (
        f"import sys; sys.path.insert(0, {str(benchmarks)!r})\n"
        "from pathlib import Path; from judge_memory import peak_mb; from onepolicy.workflow.judge import judge\n"
        "judge(Path(sys.argv[1])); print(peak_mb())"
    )
    write = f"import sys; sys.path.insert(0, {str(benchmarks)!r}); from judge_memory import write_run\n"
    write += "from pathlib import Path; write_run(Path(sys.argv[1]), rollouts=1000)"
    run = tmp_path / "run"
    subprocess.run([sys.executable, "-c", write, run], check=True)
    done = subprocess.run([sys.executable, "-c", code, run], check=True, capture_output=True, text=True)
    assert float(done.stdout) < 500
    assert (run / "judgements" / "default" / "report.html").stat().st_size < 3_000_000

"""pytest: fixtures that hold two policies against each other, and what was found as a section of the failure.

pytest loads it where onepolicy is installed, so it imports nothing heavy before a test asks for it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onepolicy.errors import EngineError, NotTheSamePolicyError

if TYPE_CHECKING:
    from onepolicy.records.verdict import Judgement

_REQUIRE = "--onepolicy-require"
_SECTION = "onepolicy"
_SKIPPED = "onepolicy: "
"""how the reason of a skip begins"""
_WIDTH = 80
_ABSENT = pytest.StashKey[dict[str, str]]()
"""spec -> why its engine is not there, empty if it is; each is tried once"""


@pytest.fixture
def assert_same_policy() -> Callable[..., Judgement]:
    """`onepolicy.assert_same_policy`: two columns of logprobs, or two stored readings; anything but a pass fails."""
    from onepolicy.api import assert_same_policy as compare  # noqa: PLC0415

    return compare


@pytest.fixture
def check_same_policy(tmp_path: Path) -> Callable[..., Judgement]:
    """Run `onepolicy check` in the test's folder; anything but a pass fails.

    `check_same_policy("onepolicy.yaml")` takes a configuration file; otherwise the options are those of
    `onepolicy.check`: `check_same_policy(rollout="vllm:http://localhost:8000", trainer="transformers:./model")`.
    """
    made = 0

    def run(config: str | Path | None = None, **options: Any) -> Judgement:
        nonlocal made
        made += 1
        judgement = _checked(config, tmp_path / f"onepolicy-{made}", options)
        if not _is_pass(judgement):
            raise NotTheSamePolicyError(judgement)
        return judgement

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that lets no test be skipped for want of an engine."""
    parser.getgroup("onepolicy").addoption(
        _REQUIRE,
        action="store_true",
        help="Fail the tests of the marker needs_engine whose engine is not there, instead of skipping them.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker."""
    config.addinivalue_line(
        "markers",
        "needs_engine(spec, ...): skip the test if an engine cannot be opened; each skip is named at the end, and "
        f"fails with {_REQUIRE}.",
    )
    config.stash[_ABSENT] = {}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs an engine that is not there; a spec that names none is an error of the test."""
    for marker in item.iter_markers("needs_engine"):
        if not marker.args or marker.kwargs:
            pytest.fail("needs_engine takes engine specs, such as needs_engine('vllm:http://localhost:8000')", False)
        for spec in marker.args:
            why = _why_absent(spec, item.config.stash[_ABSENT])
            if why and item.config.getoption(_REQUIRE):
                pytest.fail(f"{_SKIPPED}{spec} is needed ({_REQUIRE}) and is not there: {why}", pytrace=False)
            if why:
                pytest.skip(f"{_SKIPPED}{spec} is not there: {why}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the judgement to the failure, whoever raised it."""
    outcome: Any = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, NotTheSamePolicyError):
        outcome.get_result().sections.append((_SECTION, _shown(call.excinfo.value.judgement)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the tests that an engine was missing for: one that did not run says nothing about the policy."""
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and _SKIPPED in report.longrepr[2]
    ]
    if not skipped:
        return
    terminalreporter.section(_SECTION)
    terminalreporter.line(f"{len(skipped)} tests were skipped, so nothing is known of what they check ({_REQUIRE}):")
    for report in skipped:
        terminalreporter.line(f"  {report.nodeid}: {report.longrepr[2].partition(_SKIPPED)[2]}")


def _why_absent(spec: str, known: dict[str, str]) -> str:
    """Empty if the engine opens. Raises: UsageError if the spec is none."""
    if spec not in known:
        from onepolicy.engines.spec import parse_spec  # noqa: PLC0415
        from onepolicy.integrations import open_engine  # noqa: PLC0415

        try:
            open_engine(parse_spec(spec)).close()
            known[spec] = ""
        except EngineError as error:
            known[spec] = " ".join(str(error).split())
    return known[spec]


def _checked(config: str | Path | None, path: Path, options: dict[str, Any]) -> Judgement:
    from onepolicy.api import check  # noqa: PLC0415
    from onepolicy.workflow.check import check as run_check  # noqa: PLC0415
    from onepolicy.workflow.config import check_request, load_config  # noqa: PLC0415

    if config is None:
        return check(run=path, **options)
    return run_check(check_request(load_config(Path(config)), **options), path=path)


def _is_pass(judgement: Judgement) -> bool:
    from onepolicy.records.verdict import Status  # noqa: PLC0415

    return judgement.status is Status.PASS


def _shown(judgement: Judgement) -> str:
    """As the command line shows it, without colours."""
    from rich.console import Console  # noqa: PLC0415

    from onepolicy.report.console import show  # noqa: PLC0415

    out = io.StringIO()
    show(judgement, Console(file=out, width=_WIDTH, no_color=True, force_terminal=False))
    return out.getvalue().rstrip()

"""The plugin in a pytest of its own, as somebody who installed onepolicy has it."""

import json
import sys

import pytest
import scipy.special
import tokenizers

import onepolicy.api
import onepolicy.workflow.config
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.integrations.llamacpp.engine import LlamaCppEngine
from onepolicy.report import console

LOADED_ONCE = (scipy.special, tokenizers, onepolicy.api, onepolicy.workflow.config, console, FakeEngine, LlamaCppEngine)
"""pytester forgets what a test has loaded, and libraries in C cannot be loaded twice: so they are loaded here"""

pytest_plugins = ["pytester"]
EQUAL = "rollout=[[-1.0, -2.0]] * 24, trainer=[[-1.0, -2.0]] * 24"
OTHER = "rollout=[[-1.0, -2.0]] * 24, trainer=[[-3.0, -1.0]] * 24"


@pytest.fixture
def run(pytester):
    """Write a test file, and run it with the plugin, loaded by its module and not by what is installed here."""

    def tests(text: str, *options: str):
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess("-p", "no:onepolicy", "-p", "onepolicy.pytest_plugin", *options)

    return tests


def test_what_is_the_same_policy_passes(run):
    result = run(f"def test_it(assert_same_policy): assert_same_policy({EQUAL}, sampled=False)")
    result.assert_outcomes(passed=1)


def test_what_is_not_fails_with_a_section_that_shows_the_checks(run):
    result = run(f"def test_it(assert_same_policy): assert_same_policy({OTHER}, sampled=False)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*- onepolicy -*", "Fail: *", "*mean_kl*limit*"])


def test_the_section_is_there_whoever_compared(run):
    result = run(f"import onepolicy\ndef test_it(): onepolicy.assert_same_policy({OTHER}, sampled=False)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*- onepolicy -*"])


def test_nothing_compared_is_no_pass(run):
    result = run("def test_it(assert_same_policy): assert_same_policy(rollout=[], trainer=[], lengths=[])")
    result.assert_outcomes(failed=1)


def test_another_failure_has_no_section(run):
    result = run("def test_it(): assert False")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*- onepolicy -*")


def test_a_configuration_file_is_checked_in_the_tests_folder(run, pytester):
    lines = [{"id": f"s{i}", "prompt": f"{i} of many: ", "completion": f"the rain {i}"} for i in range(12)]
    pytester.path.joinpath("fixed.jsonl").write_text("\n".join(map(json.dumps, lines)))
    pytester.path.joinpath("same.yaml").write_text("rollout: fake:m\ntrainer: fake:m\nsuite: fixed.jsonl")
    result = run(
        """
        def test_the_same(check_same_policy, tmp_path):
            assert check_same_policy("same.yaml").exit_status == 0
            assert check_same_policy("same.yaml").exit_status == 0
            assert (tmp_path / "onepolicy-2" / "manifest.json").exists()

        def test_another(check_same_policy):
            check_same_policy(rollout="fake:m", trainer="fake:m?noise=0.5", suite="fixed.jsonl")
        """
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*- onepolicy -*", "Fail: *"])


MARKED = """
    import pytest

    @pytest.mark.needs_engine("fake:m")
    def test_there(): pass

    @pytest.mark.needs_engine("llamacpp:none.gguf")
    def test_away(): raise AssertionError("ran")

    @pytest.mark.needs_engine("fake:m?nois=1")
    def test_misspelt(): pass

    @pytest.mark.needs_engine()
    def test_empty(): pass
"""


def test_an_engine_that_is_away_skips_and_is_named_at_the_end_even_where_little_is_shown(run):
    result = run(MARKED, "-q", "-k", "test_there or test_away")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "*= onepolicy =*",
            "1 tests were skipped, so nothing is known of what they check (--onepolicy-require):",
            "  *::test_away: llamacpp:none.gguf is not there: *",
        ]
    )


def test_where_engines_are_required_a_skip_is_an_error(run):
    result = run(MARKED, "--onepolicy-require", "-k", "test_there or test_away")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*is needed (--onepolicy-require) and is not there*"])


def test_a_spec_that_is_none_is_an_error_and_no_skip(run):
    result = run(MARKED, "-k", "test_misspelt or test_empty")
    assert result.parseoutcomes().get("skipped", 0) == 0
    assert sum(result.parseoutcomes().get(name, 0) for name in ("failed", "errors")) == 2


def test_a_suite_without_onepolicy_is_as_it_was(run):
    result = run("def test_it(): pass", "--strict-markers")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*onepolicy*require*")


def test_loading_the_plugin_loads_nothing_heavy(pytester):
    code = (
        "import onepolicy.pytest_plugin, sys\n"
        "print([m for m in ('numpy', 'pyarrow', 'torch', 'scipy', 'rich') if m in sys.modules])"
    )
    assert pytester.run(sys.executable, "-c", code).stdout.lines[-1:] == ["[]"]

import subprocess
import sys
from importlib import import_module

import pytest

import onepolicy

HEAVY = ("torch", "pyarrow", "scipy.stats", "transformers", "numpy", "pandas")


def loaded_after(code: str) -> set[str]:
    """Which of the heavy modules a fresh interpreter has loaded when the code is done."""
    shown = f"import atexit, sys; atexit.register(lambda: print([m for m in {HEAVY} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", f"{shown}\n{code}"], capture_output=True, text=True, check=True)
    return set(eval(done.stdout.splitlines()[-1]))


def test_every_public_name_can_be_imported_and_there_are_at_most_25():
    for name in onepolicy.__all__:
        assert getattr(onepolicy, name) is not None
    assert len(onepolicy.__all__) == len(set(onepolicy.__all__)) <= 25
    assert set(dir(onepolicy)) == set(onepolicy.__all__)


def test_every_error_that_is_raised_is_public_or_a_child_of_one_that_is():
    errors = import_module("onepolicy.errors")
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    public = {getattr(onepolicy, name) for name in onepolicy.__all__}
    assert all(set(kind.__mro__) & public for kind in kinds)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'chekc'"):
        onepolicy.chekc  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "import onepolicy",
        "import onepolicy; onepolicy.OnePolicyError",
        "import sys; sys.argv = ['onepolicy', '--help']\nfrom onepolicy.cli import main\nmain()",
    ],
)
def test_importing_the_package_and_showing_its_help_load_nothing_heavy(code):
    assert loaded_after(code) == set()


def test_a_check_of_the_fake_engine_loads_no_torch_and_no_scipy_stats(tmp_path):
    code = f"import onepolicy; onepolicy.check(rollout='fake:m', trainer='fake:m', run={str(tmp_path / 'run')!r})"
    assert loaded_after(code) & {"torch", "scipy.stats", "transformers"} == set()

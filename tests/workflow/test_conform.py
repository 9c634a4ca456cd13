"""The use case, apart from the command line."""

import subprocess
import sys

from onepolicy.records.conform import Conformance
from onepolicy.workflow.conform import conform


def test_the_command_is_imported_without_torch():
    code = "import sys, onepolicy.cli.conform; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_result_is_a_value_that_json_keeps():
    found = conform("onepolicy")
    assert Conformance.model_validate_json(found.model_dump_json()) == found
    assert {one.role for one in found.cases} == {one.role for one in found.tried}
    assert 0 < found.seconds < 60

from pathlib import Path

import pytest

from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.yaml_file import in_one_line

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
DEFAULTS = SamplingProtocol().model_dump(mode="json")


@pytest.mark.parametrize("name", SamplingProtocol.model_fields)
def test_the_page_has_each_field_with_its_default_and_what_the_model_says(name):
    said = " ".join(SamplingProtocol.model_fields[name].description.split())
    assert f"| `{name}` | `{in_one_line(DEFAULTS[name])}` | {said} |" in PAGE

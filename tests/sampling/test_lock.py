import json

import pytest

from onepolicy.errors import UsageError
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.lock import lock_of, moved, read_lock, write_lock

PROTOCOL = SamplingProtocol(temperature=0.7, top_p=0.9, stop=("###",))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "sampling_config.yaml.lock"
    write_lock(path, lock_of(PROTOCOL, source="sampling_config.yaml"))
    return path


def test_a_lock_keeps_the_protocol_its_hash_and_its_source(path):
    lock = read_lock(path)
    assert (lock.protocol, lock.hash, lock.source) == (PROTOCOL, PROTOCOL.hash, "sampling_config.yaml")
    assert moved(lock, PROTOCOL) == ()


def test_the_field_that_moved_is_named_with_what_it_was(path):
    (found,) = moved(read_lock(path), PROTOCOL.model_copy(update={"top_p": 0.95}))
    assert (found.field, found.a, found.b) == ("top_p", 0.9, 0.95)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ({"hash": "0" * 16}, "it was edited"),
        ({"protocol": {"temperature": 0.7}}, "it was edited"),
        ({"protocol": {"temprature": 0.7}}, "protocol.temprature"),
        ({"format_version": 2}, "format_version"),
        ({"note": "mine"}, "note"),
    ],
    ids=str,
)
def test_a_lock_that_was_edited_is_refused(path, edit, says):
    path.write_text(json.dumps(json.loads(path.read_text()) | edit))
    with pytest.raises(UsageError, match=says) as refused:
        read_lock(path)
    assert str(refused.value).startswith(str(path))


@pytest.mark.parametrize("content", ["", "{", "[]", "temperature: 0.7"])
def test_what_is_no_lock_is_refused(path, content):
    path.write_text(content)
    with pytest.raises(UsageError, match="is no lock of a protocol"):
        read_lock(path)


def test_a_lock_that_is_absent_says_how_to_write_one(tmp_path):
    with pytest.raises(UsageError, match="onepolicy protocol lock SOURCE"):
        read_lock(tmp_path / "none.lock")

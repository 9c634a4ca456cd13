import os

import pytest

from onepolicy.errors import RunError
from onepolicy.records.files import write_text_atomically


def test_what_is_no_regular_file_is_not_replaced_by_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(RunError, match="is no regular file"):
        write_text_atomically(pipe, "text")
    assert pipe.is_fifo()

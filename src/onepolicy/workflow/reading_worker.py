"""A process that reads parts of JSONL files as its parent tells it, and sends the blocks back. See `parallel_lines`.

It is asked with lines of JSON on its stdin, whose the files are and then one part after the other, and answers on its
stdout. It ends when its stdin does, and so with its parent, however that ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping

from onepolicy.dumps.block import RecordedBlock, in_blocks
from onepolicy.dumps.contract import Format
from onepolicy.dumps.file import DumpFile
from onepolicy.dumps.source import Part
from onepolicy.errors import AlignmentError, DumpError
from onepolicy.integrations import columns_format, format_named
from onepolicy.workflow.reading_channel import PartRead, send


def blocks_of_file(known: Format, file: DumpFile) -> Iterator[RecordedBlock]:
    """The blocks of a file that a format reads alone."""
    if known.blocks is not None:
        return known.blocks(file)
    assert known.rows is not None, "a format has rows or blocks"
    return in_blocks(known.rows(file))


def format_of(name: str, columns: Mapping[str, str] | None) -> Format:
    """A format by what the user said of it. Raises: UsageError if there is none."""
    return columns_format(columns) if columns else format_named(name)


def main() -> None:
    """Answer until there is nobody to answer."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints, prints no answer
    setup = json.loads(sys.stdin.buffer.readline() or b"null")
    if setup is None:
        return
    known, file = format_of(**setup), None
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if file is None or file.location != asked["location"]:  # the parts of a file share what is known of it
            file = DumpFile(asked["location"], label=asked["label"])
        file.part = Part(**asked["part"])
        try:
            send(answers, _read(known, file))
        except BrokenPipeError:
            os._exit(0)  # nobody is there to hear that nothing can be flushed


def _read(known: Format, file: DumpFile) -> PartRead:
    blocks: list[RecordedBlock] = []
    try:
        blocks.extend(blocks_of_file(known, file))
    except (DumpError, AlignmentError) as error:
        return PartRead(blocks=blocks, error=error)
    return PartRead(blocks=blocks)


if __name__ == "__main__":
    main()

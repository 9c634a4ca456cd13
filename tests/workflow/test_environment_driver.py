"""The driver's version, from what its two kinds of kernel module write."""

import pytest

from onepolicy.workflow.environment import driver_in


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n", "550.54.15"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (d@u)\nGCC\n",
            "570.86.10",
        ),
        ("something else\n", ""),
    ],
)
def test_the_version_is_read_from_either(said, version):
    assert driver_in(said) == version

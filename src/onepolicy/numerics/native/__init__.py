"""The numbers that RL frameworks put on their dashboards, under the frameworks' own names, signs and reductions."""

from __future__ import annotations

from onepolicy.numerics.native.page import reconcile_page
from onepolicy.numerics.native.sums import NativeSums
from onepolicy.numerics.native.table import NATIVE, SOURCES

__all__ = ["NATIVE", "SOURCES", "NativeSums", "reconcile_page"]

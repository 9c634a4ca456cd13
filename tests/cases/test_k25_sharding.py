"""K25: degrees of tensor parallelism that add in another order, or choose another kernel (B117, B119)."""

import json
import textwrap

import numpy as np
import pytest

from onepolicy.engines.parallel import parse_layouts
from onepolicy.engines.spec import EngineSpec
from onepolicy.records.verdict import Status
from onepolicy.workflow.parallel import ParallelRequest, parallel
from onepolicy.workflow.parallel_sequences import SequenceSource
from onepolicy.workflow.parallel_verdicts import Rule

MODEL = """
    import numpy as np
    WIDTH, VOCABULARY = 64, 96
    rng = np.random.default_rng(0)
    EMBED = rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    LAYERS = [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 8 for _ in range(4)]
    HEAD = rng.normal(size=(WIDTH, VOCABULARY)).astype(np.float32) / 2

    def bfloat16(x):
        bits = np.ascontiguousarray(x).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)

    def forward(token_ids, product):
        x = EMBED[np.array(token_ids)]
        for layer in LAYERS:
            x = x + np.tanh(product(x, layer))
        return product(x, HEAD)
"""
ROWWISE = (
    MODEL
    + """
    def logits(token_ids, tp=1):
        def product(x, w):
            step = WIDTH // tp
            parts = [x[:, i:i + step] @ w[i:i + step] for i in range(0, WIDTH, step)]
            total = {rounded}(parts[0])
            for part in parts[1:]:
                total = {rounded}(total + {rounded}(part))
            return total
        return forward(token_ids, product)
"""
)
IN_ONE_ORDER = (
    MODEL
    + """
    def logits(token_ids, tp=1):
        def product(x, w):
            # eight partial sums in one order, whichever rank has which of them
            total = np.zeros((len(x), w.shape[1]), np.float32)
            for i in range(0, WIDTH, 8):
                total = total + x[:, i:i + 8] @ w[i:i + 8]
            return total
        return forward(token_ids, product)
"""
)
BY_ROWS = (
    MODEL
    + """
    def product(x, w):
        if len(x) <= 32:
            return x @ w
        return x[:, :32] @ w[:32] + x[:, 32:] @ w[32:]  # the kernel for many rows

    def logits(token_ids, tp=1):
        copies = {copies}
        return forward(list(token_ids) * copies, product)[: len(token_ids)]
"""
)


@pytest.fixture
def compared(tmp_path):
    ids = tmp_path / "ids.jsonl"
    rng = np.random.default_rng(1)
    ids.write_text("\n".join(json.dumps(rng.integers(96, size=20).tolist()) for _ in range(4)))

    def run(code, *layouts, **rule):
        (tmp_path / "layouts.py").write_text(textwrap.dedent(code))
        spec = EngineSpec(engine="callable", target=f"{tmp_path / 'layouts.py'}:logits")
        source = SequenceSource(ids=ids)
        found = parallel(
            ParallelRequest(spec=spec, layouts=parse_layouts(layouts), source=source, rule=Rule(**rule), timeout=60.0)
        )
        return found, {one.layout: one for one in found.layouts}

    return run


def test_b117_another_degree_is_noise_that_grows_where_partial_sums_are_rounded(compared):
    _, exact = compared(ROWWISE.format(rounded="np.float32"), "tp=2")
    found, rounded = compared(ROWWISE.format(rounded="bfloat16"), "tp=2", "tp=4", max_mean_abs_d=1e-3)
    assert found.status is Status.FAIL
    assert 0.0 < exact["tp=2"].mean_abs_d < 1e-5
    assert rounded["tp=2"].mean_abs_d > 1e-3
    assert rounded["tp=4"].bitwise_share < 1.0
    assert all(one.repeats for one in found.layouts)


def test_b117_sums_in_one_order_are_bit_identical_at_every_degree(compared):
    found, by = compared(IN_ONE_ORDER, "tp=2", "tp=4", bitwise=frozenset({"repeat", "tp"}))
    assert found.status is Status.PASS
    assert by["tp=4"].is_identical


def test_b119_a_pass_of_another_shape_at_one_degree_alone_is_named(compared):
    identity = {"bitwise": frozenset({"repeat", "tp"})}
    found, by = compared(BY_ROWS.format(copies="2 if tp == 4 else 1"), "tp=2", "tp=4", **identity)
    assert found.status is Status.FAIL
    assert by["tp=2"].is_identical
    assert not by["tp=4"].is_identical
    assert [one.check for one in found.verdicts if one.status is Status.FAIL] == ["tp=4"]
    assert compared(BY_ROWS.format(copies="1"), "tp=2", "tp=4", **identity)[0].status is Status.PASS

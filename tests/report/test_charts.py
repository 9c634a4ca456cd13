"""Charts: numbers stand where they belong, and odd input draws without an error."""

from xml.etree import ElementTree as Xml

import pytest

from onepolicy.records.tables import Bin, Bucket, Points
from onepolicy.report.charts import Scale, by_bucket, histogram, scatter


def bucket(name="a", mean=0.1, largest=0.5):
    return Bucket(name=name, tokens=1, mean_d=mean, mean_abs_d=mean, mean_k3=mean, max_abs_d=largest)


def one_bin(low, *, lower=0, higher=0):
    return Bin(low=low, trainer_lower=lower, trainer_higher=higher)


def test_a_scale_puts_its_ends_at_its_ends():
    linear, log = Scale(low=-8, high=0, start=0, end=80), Scale(low=1e-4, high=1, start=0, end=80, log=True)
    assert [linear.at(x) for x in (-8, -4, 0, 5)] == [0, 40, 80, 80]
    assert [log.at(x) for x in (0, 1e-4, 1e-2, 1, 7)] == [0, 0, 40, 80, 80]


def test_ticks_are_round_and_few():
    assert Scale(low=-8, high=0, start=0, end=1).ticks() == [-8, -6, -4, -2, 0]
    assert Scale(low=1e-4, high=1, start=0, end=1, log=True).ticks() == pytest.approx([1e-4, 1e-3, 1e-2, 0.1, 1])
    assert len(Scale(low=1e-30, high=1e3, start=0, end=1, log=True).ticks()) <= 6


@pytest.mark.parametrize(
    "drawing",
    [
        scatter(Points(rollout=(-1.0, 0.0), trainer=(-900.0, 0.0))),
        scatter(Points(rollout=(0.0,), trainer=(0.0,))),
        histogram((one_bin(2.0**-126, higher=1), one_bin(512.0, lower=9))),
        by_bucket("position", (bucket(mean=0.0, largest=0.0),)),
        by_bucket("<&>", (bucket(name="<script>"), bucket(mean=1.0, largest=1.0))),
    ],
)
def test_a_chart_is_well_formed_and_says_what_it_is(drawing):
    svg = Xml.fromstring(str(drawing))
    assert svg.get("role") == "img"
    labels = svg.get("aria-labelledby").split()
    assert [svg.find("title").get("id"), svg.find("desc").get("id")] == labels
    assert svg.find(".//script") is None
    assert "nan" not in str(drawing).lower()


def test_a_chart_has_a_dot_for_every_point():
    drawing = str(scatter(Points(rollout=(-1.0, -2.0, -3.0), trainer=(-1.0, -2.0, -3.0))))
    assert drawing.count("h0") == 3


def test_a_bucket_without_a_difference_says_so_instead_of_standing_at_the_end_of_the_axis():
    drawing = str(by_bucket("position", (bucket(name="zero", mean=0.0, largest=0.0), bucket(name="one"))))
    assert (drawing.count("equal"), drawing.count('class="range"')) == (1, 1)

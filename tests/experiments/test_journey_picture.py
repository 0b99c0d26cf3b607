"""The picture of a journey: what was accepted beside its way, and the picture as a file."""

import xml.etree.ElementTree as ET

from app.domain.experiments.journey import make_journey
from app.experiments.journey_page import JourneyPage, svg
from tests.domain.experiments.test_journey import ROOT, step

HOSTILE = 'a <b>"&'


def test_of_two_accepted_from_one_run_the_earlier_is_named_and_the_file_is_xml() -> None:
    steps = [step(1, None, 10.0, "accepted", HOSTILE), step(2, None, 5.0, "accepted"), step(3, 2, None, "waiting")]
    page = JourneyPage(make_journey(1, "moe", ROOT, steps), 1)
    assert [(one.edge_href, one.role) for one in page.beside] == [("/experiments/1", "accepted, off the path")]
    drawn = list(ET.fromstring(svg(page.picture, page.picture_label)).iter("{http://www.w3.org/2000/svg}text"))  # noqa: S314
    assert [one.text for one in drawn if one.get("class") == "name"] == ["root", "run", "no run yet", HOSTILE]
    assert JourneyPage(make_journey(1, "moe", ROOT, steps[1:]), 1).beside == []

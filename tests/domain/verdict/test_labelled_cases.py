"""The 200 labelled cases, through the product's own functions, within what the method promises."""

from bench.detect import broken_bounds, estimate, read_cases, score_verdicts
from tests.shared_papers import shared_folder


def test_the_labelled_cases_are_judged_as_well_as_the_method_promises() -> None:
    folder = shared_folder("detection")
    scored = score_verdicts(folder, [estimate(case) for case in read_cases(folder)])
    assert scored["answered"] == scored["cases"] == 200
    assert broken_bounds(scored) == []

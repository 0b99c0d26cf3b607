"""What is pasted for a planned change."""

from app.domain.experiments.plan import planned_change
from app.domain.rules.change import OwnIdea


def test_a_flag_that_is_no_field_changes_against_the_arguments_of_the_log() -> None:
    idea = OwnIdea({}, megatron_lm=("--manual-gc-interval 50",))
    (lm,) = planned_change(idea, {}, None, {"manual_gc_interval": 10, "context_parallel_size": 2}).commands
    assert lm.diff == ("- --manual-gc-interval 10", "+ --manual-gc-interval 50")
    assert planned_change(idea, {}, None, {"manual_gc_interval": 50, "context_parallel_size": 2}).commands == ()

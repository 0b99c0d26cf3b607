"""The six phases of a run: done, open or blocked, each with its reason."""

from app.domain.rules.engine import evaluate
from app.domain.rules.journey import Journey, journey
from tests.domain.rules.builders import book, rule

FITS = {"unknown_fields": 0, "oom": False, "fits": True, "steps_done": 20, "window": 12}
RULES = (
    rule("scale-bad-mesh", "tp == 3", kind="blocker", phase="scale"),
    rule("eo-tune", "ep > 1", wall="communication"),
)


def of(**facts: object) -> Journey:
    return journey(evaluate(facts, book(*RULES)))


def states(found: Journey) -> list[str]:
    return [step.state for step in found.steps]


def test_a_run_that_nobody_started_is_open_at_its_contract() -> None:
    found = of()

    assert states(found) == ["open", "open", "blocked", "blocked", "blocked", "blocked"]
    assert found.current == "contract"


def test_a_run_that_fits_is_to_be_profiled() -> None:
    found = of(**FITS, ep=8, gpu="H100")

    assert states(found) == ["done", "done", "done", "open", "blocked", "open"]
    assert found.current == "profile"
    assert (found.wall.wall, found.wall.certainty) == ("communication", "inferred")


def test_a_profiled_run_is_to_be_retuned() -> None:
    found = of(**FITS, ep=8, exposed_comm_frac=0.3)

    assert found.step("profile").because.startswith("30% of the step is exposed communication")
    assert found.step("retune").state == "open"
    assert found.step("retune").rules == ("eo-tune",)


def test_a_blocker_blocks_its_phase_and_retuning() -> None:
    found = of(**FITS | {"fits": False}, ep=8, exposed_comm_frac=0.3, tp=3)

    assert (found.step("scale").state, found.step("scale").because) == ("blocked", "scale-bad-mesh.")
    assert (found.step("retune").state, found.step("retune").because) == ("blocked", "Resolve the blockers first.")


def test_a_blocker_that_the_run_ran_in_spite_of_blocks_nothing() -> None:
    found = of(**FITS, ep=8, exposed_comm_frac=0.3, tp=3)

    assert (found.step("scale").state, found.step("retune").state) == ("done", "open")


def test_memory_comes_before_everything_that_follows() -> None:
    found = of(unknown_fields=2, oom=True, oom_phase="warmup", steps_done=1)

    assert states(found)[:3] == ["open", "open", "blocked"]
    assert found.step("fit").because == "The job ran out of GPU memory during warmup."


def test_a_long_healthy_run_like_real_training_is_through() -> None:
    found = of(**{**FITS, "steps_done": 60}, exposed_comm_frac=0.02, gpu_idle_frac=0.01, headroom_frac=0.4,
               evidence_level="validated", semantic_class="training_equivalent")  # fmt: skip

    assert states(found) == ["done"] * 6
    assert found.current is None
    assert found.wall.wall == "compute"

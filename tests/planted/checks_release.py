"""What others see of a run folder: names, times, modes and contents, and the console."""

from __future__ import annotations

from tests import neighbours
from tests.planted import Scene, require

_DAY = 24 * 60 * 60 * 10**9


def neighbours_look_the_same_for_the_same_draws(scene: Scene) -> None:
    """On two private files with other held-out rows, a run that draws the same is the same to others."""
    with neighbours.constant():
        pair = neighbours.both(scene.folder / "same", neighbours.CASES["owner"])
    told = neighbours.differing(pair)
    require(not told, f"neighbours differ in {sorted(told)}")


def released_files_bear_one_day(scene: Scene) -> None:
    """All that others may see is of one time, the midnight before the run began."""
    with neighbours.constant():
        visible = neighbours.seen(
            neighbours.run, neighbours.write(scene.folder / "day", neighbours.CASES["logistic"], False)
        )
    times = {value[0] for value in visible.values() if isinstance(value, tuple)}
    require(len(times) == 1 and times.pop() % _DAY == 0, "released files tell when they were written")


def without_a_guarantee_nothing_of_private_records_is_released(scene: Scene) -> None:
    """Draws of a run without privacy, on records that are not public, are not where others read."""
    case = neighbours.sampled(neighbours.LOGISTIC, privacy=None)
    with neighbours.constant():
        visible = neighbours.seen(neighbours.run, neighbours.write(scene.folder / "none", case, False))
    require("content of out/draws.nc" not in visible, "draws without a guarantee are released")
    last = " ".join(visible["console"].split()[-40:])
    require("no guarantee" in last, "the last lines do not say that there is none")

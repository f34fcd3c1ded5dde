"""Three tools on the same training run."""

import os

import pytest

from hybridrl.experiments import profilers
from hybridrl.experiments.profilers import Hotspot, Watched


@pytest.fixture(autouse=True)
def smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDRL_SCALE", "smoke")


def test_phase_timer_lists_phases_and_what_is_outside_them() -> None:
    watched = profilers.under_phase_timer()
    assert {"act", "env", "update", "other"} <= {spot.name for spot in watched.hotspots}
    assert sum(spot.own_s for spot in watched.hotspots) == pytest.approx(watched.wall_s, rel=1e-6)


def test_cprofile_lists_functions_without_folders() -> None:
    watched = profilers.under_cprofile()
    assert any(".py:" in spot.name for spot in watched.hotspots)
    assert not any(os.sep in spot.name for spot in watched.hotspots)
    own = [spot.own_s for spot in watched.hotspots]
    assert own == sorted(own, reverse=True)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (("/home/someone/hybridrl/data/rollout.py", 7, "write"), "rollout.py:write"),
        (("C:\\hybridrl\\agents.py", 7, "<lambda>"), "agents.py:<lambda>"),
        (("~", 0, "<method 'run_backward' of 'torch._C._EngineBase' objects>"), "run_backward"),
        (("~", 0, "<built-in method torch._C._nn.linear>"), "torch._C._nn.linear"),
    ],
)
def test_functions_are_named_without_folders(place: tuple[str, int, str], name: str) -> None:
    assert profilers._short(*place) == name


def test_torch_profiler_lists_operators_and_leaves_stderr_alone(capfd: pytest.CaptureFixture[str]) -> None:
    watched = profilers.under_torch_profiler()
    os.write(2, b"after")
    assert any(spot.name.startswith("aten::") for spot in watched.hotspots)
    assert capfd.readouterr().err == "after"


def test_only_the_first_of_the_repeats_lists_hotspots(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def tool(*, hotspots: bool = True) -> Watched:
        asked.append(hotspots)
        return Watched(1.0, ())

    monkeypatch.setattr(profilers, "TOOLS", {"one": tool})
    monkeypatch.setattr(profilers, "under_phase_timer", lambda: None)
    assert [len(watched) for watched in profilers.measure().values()] == [2]
    assert asked == [True, False]


def made_up() -> dict[str, list[Watched]]:
    fast = [Watched(1.0, (Hotspot("update", 3, 0.5),)), Watched(2.0, ())]
    slow = [Watched(3.0, (Hotspot("backward", 3, 0.3), Hotspot("linear", 6, 0.15))), Watched(6.0, ())]
    return {"phase timer": fast, "cProfile": slow}


def test_table_compares_with_the_phase_timer() -> None:
    wall, ratio = profilers.table(made_up()).rows
    assert [cell.number for cell in wall.cells] == [1.5, 4.5]
    assert [cell.number for cell in ratio.cells] == [1.0, 3.0]


def test_hotspots_are_shares_of_the_wall_time_under_their_own_tool() -> None:
    first, second, third = profilers.hotspot_table(made_up(), top=3).rows
    assert [cell.value for cell in first.cells] == ["update 50%", "backward 10%"]
    assert [cell.value for cell in second.cells] == ["–", "linear 5%"]
    assert [cell.value for cell in third.cells] == ["–", "–"]

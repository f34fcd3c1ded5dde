"""Placements say where; what isn't here is refused, never replaced."""

import pytest

import hybridrl as hrl
from hybridrl.placement import Placement, devices
from hybridrl.testing import CountingEnv

WRITTEN_OTHERWISE = ["", "cpu+", "+cpu", "cpu+cpu+cpu", 0, None]
NOT_HERE = ["cuda", "cpu+cuda", "cuda+cpu", "mps", "gpu", "cuda:1", "meta", "nonsense"]


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: ("cpu", "cuda", "cuda:1"))


def test_one_name_places_everything_in_one_memory() -> None:
    placement = Placement.parse("cpu")
    assert (placement.act, placement.learn, placement.store, placement.separate) == ("cpu", "cpu", "cpu", False)
    assert placement == Placement("cpu", "cpu")
    assert str(placement) == "cpu"


def test_two_names_separate_two_memories_even_on_one_device() -> None:
    placement = Placement.parse("cpu+cpu")
    assert placement.separate
    assert placement != Placement.parse("cpu")
    assert str(placement) == "cpu+cpu"


def test_a_placement_is_taken_as_it_is() -> None:
    placement = Placement("cpu", "cpu")
    assert Placement.parse(placement) is placement


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("text", "act", "learn", "store", "separate", "spelled"),
    [
        ("cuda", "cuda", "cuda", "cuda", False, "cuda"),
        ("cuda:0", "cuda", "cuda", "cuda", False, "cuda"),
        ("cpu+cuda", "cpu", "cuda", "cpu", True, "cpu+cuda"),
        ("cpu+cuda:1", "cpu", "cuda:1", "cpu", True, "cpu+cuda:1"),
        ("cuda+cuda:1", "cuda", "cuda:1", "cuda", True, "cuda+cuda:1"),
        ("cuda+cpu", "cuda", "cpu", "cuda", True, "cuda+cpu"),
    ],
)
def test_what_a_text_means(text: str, act: str, learn: str, store: str, separate: bool, spelled: str) -> None:
    placement = Placement.parse(text)
    assert (placement.act, placement.learn, placement.store, placement.separate) == (act, learn, store, separate)
    assert str(placement) == spelled
    assert Placement.parse(spelled) == placement


@pytest.mark.usefixtures("two_gpus")
def test_devices_are_torch_s_each_once() -> None:
    placement = Placement.parse("cpu+cuda:1")
    assert [str(device) for device in placement.devices] == ["cpu", "cuda:1"]
    assert str(Placement.parse("cuda").learn_device) == "cuda:0"
    assert str(placement.store_device) == "cpu"


@pytest.mark.usefixtures("two_gpus")
def test_a_rollout_is_stored_on_the_host_or_where_it_is_acted() -> None:
    assert str(Placement("cuda", "cuda", store="cpu")) == "cuda (stored on cpu)"
    with pytest.raises(
        ValueError, match=r"store='cuda': a rollout is stored on the cpu or where it is acted \('cpu'\)"
    ):
        Placement("cpu", "cuda", store="cuda")


@pytest.mark.usefixtures("two_gpus")
def test_two_devices_share_no_memory() -> None:
    with pytest.raises(ValueError, match=r"separate=False with act='cpu', learn='cuda': two devices share no memory"):
        Placement("cpu", "cuda", separate=False)


@pytest.mark.parametrize("text", WRITTEN_OTHERWISE)
def test_another_way_of_writing_is_refused_in_one_line(text: object) -> None:
    with pytest.raises(ValueError, match=r"expected a device, or two as 'cpu\+cuda' \(act\+learn\)$") as error:
        hrl.PPO(lambda: CountingEnv(5), placement=text)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"placement {text!r}: ")


@pytest.mark.parametrize("text", NOT_HERE)
def test_a_device_that_is_not_here_is_refused_with_those_that_are(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C64."""
    monkeypatch.setattr(devices, "available", lambda: ("cpu",))
    with pytest.raises(ValueError, match=r"this machine has cpu$") as error:
        hrl.PPO(lambda: CountingEnv(5), placement=text)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"placement {text!r}: device ")

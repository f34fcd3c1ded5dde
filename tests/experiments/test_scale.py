import pytest

from hybridrl.experiments import scale


def test_default_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYBRIDRL_SCALE", raising=False)
    assert scale.current() == "quick"
    monkeypatch.setenv("HYBRIDRL_SCALE", "")
    assert scale.current() == "quick"


@pytest.mark.parametrize("word", scale.SCALES)
def test_each_scale_picks_its_own(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("HYBRIDRL_SCALE", word)
    assert scale.current() == word
    assert scale.pick(smoke="smoke", quick="quick", full="full") == word


@pytest.mark.parametrize("word", ["FULL", "slow", "quick "])
def test_any_other_word_raises_in_one_line_that_lists_the_three(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("HYBRIDRL_SCALE", word)
    with pytest.raises(ValueError, match="smoke, quick, full") as error:
        scale.pick(smoke=1, quick=2, full=3)
    assert repr(word) in str(error.value)
    assert "\n" not in str(error.value)

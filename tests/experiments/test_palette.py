import itertools

import pytest

from hybridrl.experiments import palette
from hybridrl.experiments.palette import DARK_PAGE, INK, LIGHT_PAGE, LINES, PHASES, contrast, placement_style


def test_contrast_against_published_values() -> None:
    """WCAG 2.1: black on white is 21; #767676 is the lightest grey to reach 4.5 on white."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") < 4.5 <= contrast("#767676", "#ffffff")
    assert contrast("#123456", "#123456") == 1


@pytest.mark.parametrize("page", [LIGHT_PAGE, DARK_PAGE])
def test_text_axes_and_lines_read_on_both_pages(page: str) -> None:
    assert contrast(INK, page) >= 4.2
    for color, _ in LINES:
        assert contrast(color, page) >= 3


@pytest.mark.parametrize("phase", PHASES)
def test_labels_read_on_their_phase(phase: str) -> None:
    fill = palette.phase_color(phase)
    assert contrast(palette.text_on(fill), fill) >= 4.5


def test_nothing_differs_by_colour_alone() -> None:
    assert len(set(PHASES.values())) == len(PHASES)
    for pair in itertools.combinations(LINES, 2):
        assert len(set(pair[0]) | set(pair[1])) == 4  # colour and marker both differ


def test_placements_by_what_acts_and_what_learns() -> None:
    kinds = ("cpu", "cuda", "cpu+cuda", "cuda+cpu")
    assert len({placement_style(kind) for kind in kinds}) == 4
    assert placement_style("cpu+cpu") == placement_style("cpu")
    assert placement_style("simgpu") == placement_style("cuda") == placement_style("mps+mps")
    assert placement_style("cpu+simgpu") == placement_style("cpu+cuda")


def test_unknown_phase_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"'dream'.*collect, act, env"):
        palette.phase_color("dream")

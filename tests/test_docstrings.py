"""What the reference makes of docstrings that are plain prose."""

import pytest

from book._ext.docstrings import plain, with_examples


@pytest.mark.parametrize(
    ("prose", "markup"),
    [
        ("`code` and ``code``", "``code`` and ``code``"),
        ("shape [N, *shape]", r"shape [N, \*shape]"),
        ("the *final* one, **really**", "the *final* one, **really**"),
        ("2 * 3 * 4", r"2 \* 3 \* 4"),
        (":class:`Report` and :math:`a * b`", ":class:`Report` and :math:`a * b`"),
        ("`[N, *shape]`", "``[N, *shape]``"),
        ("`text <page>`_", "`text <page>`_"),
    ],
)
def test_plain(prose: str, markup: str) -> None:
    assert plain(prose) == markup


def test_indented_lines_after_prose_are_an_example() -> None:
    lines = ["Do.", "", "    x = a * b", "", "    y = `x`", "", "A star: *args."]
    assert list(with_examples(lines)) == [
        *["Do.", "", "::", "", "    x = a * b", "", "    y = `x`", "", r"A star: \*args."]
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ["So::", "", "    x = 1"],
        [".. math::", "", "    a * b", "    c * d"],
        [".. math:: a * b", "    c * d"],
        ["Args:", "    x: one.", "", "    y: two."],
    ],
)
def test_what_is_markup_already_stays(lines: list[str]) -> None:
    assert list(with_examples(lines)) == lines

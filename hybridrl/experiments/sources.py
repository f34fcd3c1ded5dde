"""Where a number comes from, and how that is marked wherever the number is shown."""

from dataclasses import dataclass
from typing import Literal, get_args

Source = Literal["measured", "simulated", "predicted", "published"]
SOURCES: tuple[Source, ...] = get_args(Source)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """How one source looks: a word that needs no style, and styles that need no colour."""

    short: str  # beside every number in a table
    meaning: str  # in legends
    line: str  # matplotlib line style, also of a bar's outline
    hatch: str  # matplotlib hatch of a bar
    filled: bool  # False: only the outline of a bar is drawn, in grey
    rich: str  # style in a terminal
    css: str  # only relative to the page's own colour, so that light and dark pages both work


MARKS: dict[Source, Mark] = {
    "measured": Mark(
        short="meas",
        meaning="measured on this machine, or the one named",
        line="solid",
        hatch="",
        filled=True,
        rich="",
        css="",
    ),
    "simulated": Mark(
        short="sim",
        meaning="simulated, by the simulated GPU's clock",
        line="dashed",
        hatch="///",
        filled=True,
        rich="italic",
        css="font-style:italic;text-decoration:underline dashed;text-underline-offset:0.2em",
    ),
    "predicted": Mark(
        short="pred",
        meaning="predicted, from parts that were measured",
        line="dashed",
        hatch="...",
        filled=True,
        rich="italic",
        css="font-style:italic;text-decoration:underline dashed;text-underline-offset:0.2em",
    ),
    "published": Mark(
        short="publ",
        meaning="published by others, on their machine",
        line="dotted",
        hatch="",
        filled=False,
        rich="dim",
        css="opacity:0.75;text-decoration:underline dotted;text-underline-offset:0.2em",
    ),
}


def check_source(source: str) -> None:
    """Raise ``ValueError`` unless ``source`` is one of the four."""
    if source not in SOURCES:
        raise ValueError(f"source is {source!r}; expected one of {', '.join(SOURCES)}")

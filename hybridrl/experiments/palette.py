"""Colours of figures: safe for colour-blind readers, on white pages and on dark ones.

Source of the colours: M. Okabe and K. Ito, "Color Universal Design" (2008). Contrast after WCAG 2.1.
"""

INK = "#7a7a7a"  # text, axes and outlines: the one grey that reads about as well on white as on DARK_PAGE
LIGHT_PAGE = "#ffffff"
DARK_PAGE = "#121212"

# Filled areas, always with an INK outline and beside their neighbours in a fixed order. A phase that holds
# others ("collect", "learn") is drawn instead of them, in a tint of its largest part.
PHASES: dict[str, str] = {
    "collect": "#8fd3bd",
    "act": "#56b4e9",
    "env": "#009e73",
    "store": "#f0e442",
    "learn": "#8cbfde",
    "returns": "#cc79a7",
    "update": "#0072b2",
    "transfer": "#e69f00",
    "publish": "#d55e00",
    "wait": "#d9d9d9",
    "other": "#9a9a9a",
}

# Lines and points must be seen alone on either page, which leaves four colours, each with its own marker.
LINES: tuple[tuple[str, str], ...] = (
    ("#0072b2", "o"),
    ("#d55e00", "s"),
    ("#009e73", "^"),
    ("#cc79a7", "D"),
)


def phase_color(phase: str) -> str:
    """The fill of a phase; raises ``ValueError`` on a phase without one."""
    if phase not in PHASES:
        raise ValueError(f"phase {phase!r} has no colour; expected one of {', '.join(PHASES)}")
    return PHASES[phase]


def placement_style(placement: str) -> tuple[str, str]:
    """Colour and marker of a placement, by what acts and what learns: ``cpu``, ``cuda``, ``cpu+cuda``.

    All on the CPU; all on an accelerator; acting on the CPU and learning on an accelerator; the reverse. The
    accelerator's name doesn't matter, so a figure of a simulated GPU has the colours of a real one.
    """
    act, _, learn = placement.partition("+")
    on_cpu = (act == "cpu", (learn or act) == "cpu")
    order = ((True, True), (False, False), (True, False), (False, True))
    return LINES[order.index(on_cpu)]


def luminance(color: str) -> float:
    """Relative luminance of ``#rrggbb``, 0 to 1."""
    red, green, blue = (_linear(int(color[start : start + 2], 16) / 255) for start in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(color: str, page: str) -> float:
    """Contrast ratio of two colours, 1 to 21."""
    lighter, darker = sorted((luminance(color), luminance(page)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def text_on(fill: str) -> str:
    """Black or white, whichever reads better on ``fill``."""
    return max(("#000000", "#ffffff"), key=lambda color: contrast(color, fill))


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else float(((channel + 0.055) / 1.055) ** 2.4)

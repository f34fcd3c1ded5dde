import html.parser
import json
import math
import re

import pytest

from hybridrl.experiments.machine import Machine
from hybridrl.experiments.measurement import Measurement
from hybridrl.experiments.result import NEEDS_GPU, Cell, Result, Row, cells, unknown
from hybridrl.experiments.sources import MARKS, SOURCES


def example(**changes: object) -> Result:
    rate = (
        Cell(Measurement([8400.0, 8553.0, 8800.0], "steps/s"), "measured"),
        unknown(NEEDS_GPU),
        Cell(5200.0, "simulated", "on a T4"),
        Cell(6000, "predicted"),
        Cell(1200, "published"),
    )
    verdict = (Cell("faster <here>", "measured"), unknown(), *cells([None, None, 0], "published"))
    values: dict[str, object] = {
        "title": "PPO & CartPole",
        "columns": ("cpu", "cuda", "cpu+simgpu", "model", "article [B]"),
        "rows": (Row("PPO", "rate", "steps/s", rate), Row("PPO", "verdict", "", verdict)),
        "notes": ("one thread",),
    }
    return Result(**values | changes)  # type: ignore[arg-type]


def test_every_number_has_its_mark_in_plain_text() -> None:
    text = str(example())
    numbers = re.sub(r"\s+", " ", re.sub(r"[│┃|]", " ", text))
    for shown in ("8,553 (8,400", "5,200 sim", "6,000 pred", "1,200 publ", "0 publ"):
        assert shown in numbers
    assert "meas: measured on" in text
    assert "faster <here> meas" not in text  # a word of ours is no number
    assert "article [B]" in text  # not taken for markup


def test_unknown_is_a_word_or_its_reason_never_a_number() -> None:
    assert unknown().text() == "unknown"
    assert unknown(NEEDS_GPU).text() == NEEDS_GPU
    assert unknown().number is None
    assert not unknown().known
    assert Cell(0, "measured").text() == "0"
    assert Cell(0, "measured").known
    for shown in (str(example()), example()._repr_html_()):
        assert "None" not in shown
        assert "unknown" in shown
        assert "nan" not in shown


def test_sources_are_only_those_of_known_values() -> None:
    assert example().sources == SOURCES
    only = Result(title="t", columns=("a", "b"), rows=(Row("r", "q", "", (unknown(), Cell(1, "published"))),))
    assert only.sources == ("published",)
    assert only.legend() == f"publ: {MARKS['published'].meaning}"


def test_a_source_must_be_one_of_four() -> None:
    with pytest.raises(ValueError, match="measured, simulated, predicted, published"):
        Cell(1, "guessed")  # type: ignore[arg-type]


def test_a_row_must_fill_its_columns_in_one_unit() -> None:
    with pytest.raises(ValueError, match="1 cells; expected 5"):
        example(rows=(Row("r", "q", "", (Cell(1, "measured"),)),))
    with pytest.raises(ValueError, match="in 'ms', a measurement in 's'"):
        Result(title="t", columns=("a",), rows=(Row("r", "q", "ms", cells([Measurement([1], "s")], "measured")),))


def test_caption_has_machine_versions_threads_and_repeats(machine: Machine) -> None:
    caption = example(machine=machine).caption()
    for part in (
        "Xeon",
        "torch 2.13.0",
        "2 torch threads",
        "3 repeats, median (lowest to highest)",
        "one thread",
    ):
        assert part in caption
    single = example(rows=(Row("r", "q", "s", cells([Measurement([1], "s")] * 5, "measured")),))
    assert "single runs" in single.caption()


class Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_well_formed_and_escaped() -> None:
    text = example()._repr_html_()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.count["td"] == 2 * (1 + 5)
    assert "faster &lt;here&gt;" in text
    assert "PPO &amp; CartPole" in text


def test_html_works_on_any_page() -> None:
    """No colour of its own: it would vanish on either a light or a dark page."""
    text = example()._repr_html_()
    assert "color:" not in text.replace("color:inherit", "")
    assert "#" not in text
    assert "overflow-x:auto" in text


def test_html_marks_sources_by_more_than_style() -> None:
    text = example()._repr_html_()
    for source, number in (("simulated", "5,200"), ("predicted", "6,000"), ("published", "1,200")):
        mark = MARKS[source]
        assert f'<span style="{mark.css}" title="{mark.meaning}">{number}</span>' in text
        assert f">{mark.short}</small>" in text
    assert "dashed" in MARKS["simulated"].css
    assert "dashed" in MARKS["predicted"].css
    assert "dotted" in MARKS["published"].css
    assert MARKS["measured"].css == ""


def test_dict_is_json_and_keeps_the_repeats(machine: Machine) -> None:
    data = json.loads(json.dumps(example(machine=machine).to_dict(), allow_nan=False))
    assert data["machine"]["threads"] == 2
    first = data["rows"][0]["cells"]
    assert first[0]["value"]["values"] == [8400.0, 8553.0, 8800.0]
    assert first[1] == {"value": None, "source": "measured", "note": NEEDS_GPU}
    assert not any(isinstance(cell["value"], float) and math.isnan(cell["value"]) for cell in first)

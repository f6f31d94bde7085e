"""Documents: what is escaped, what is a number, and that both renderings say the same."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from mcurl_torchrl.reports import Bullets, Drawing, FigureBlock, Heading, Paragraph, TableBlock, to_html, to_markdown

TABLE = TableBlock("Scores of `a|b`.", ["task", "score", "remark"], [["a<b", "3.5 [1.0, 6.0]", "x|y"], ["c", "–", ""]])


class Tags(HTMLParser):
    """Checks that each tag is closed, and notes the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "img", "source"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_whole_and_escaped():
    figure = FigureBlock("curve", Drawing(b"light", b"dark"), 'a "curve" <1>')
    blocks = [
        Heading("A & B"),
        Paragraph("`x<y` & more"),
        Bullets(["<script>"]),
        TABLE,
        figure,
        figure,
        Heading("End", 3),
    ]
    page = to_html("Title <1>", blocks)
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and "<script>" in tags.text and "x<y & more" in tags.text
    assert "<code>x&lt;y</code>" in page and "<script" not in page
    assert page.count('<div class="figures">') == 1 and page.count("<figure>") == 2
    assert 'alt="a &quot;curve&quot; &lt;1&gt;"' in page
    assert 'srcset="data:image/png;base64,ZGFyaw=="' in page and 'src="data:image/png;base64,bGlnaHQ="' in page


def test_a_table_in_html():
    page = to_html("t", [TABLE])
    assert '<th scope="row">a&lt;b</th><td class="number">3.5 <span class="interval">[1.0, 6.0]</span></td>' in page
    assert 'aria-label="Scores of a|b."' in page


def test_markdown():
    text = to_markdown(
        "T", [Heading("H", 3), Bullets(["a", "b<c"]), TABLE, FigureBlock("f", Drawing(b"", b""), "says")]
    )
    assert text == (
        "# T\n\n### H\n\n- a\n- b&lt;c\n\nScores of `a|b`.\n\n| task | score | remark |\n| --- | ---: | --- |\n"
        "| a&lt;b | 3.5 [1.0, 6.0] | x\\|y |\n| c | – |  |\n\n![says](figures/f.png)\n"
    )


@pytest.mark.parametrize(
    ("cells", "numeric"),
    [
        (["1", "2.5", "-3"], True),
        (["1,000", "–", ""], True),
        (["3.5 [1, 2]", "20 ± 3", "2 to 3"], True),
        (["–", ""], False),
        (["1", "not known"], False),
        (["4c3352a97"], False),
    ],
)
def test_columns_of_numbers(cells: list[str], numeric: bool):
    assert TableBlock("", ["a"], [[cell] for cell in cells]).numeric(0) is numeric


def test_the_style_has_no_address_to_load():
    assert not re.search(r"url\(|@import|http", to_html("t", []))

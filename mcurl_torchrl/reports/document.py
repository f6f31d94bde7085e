"""A report as a list of blocks, and its two renderings: Markdown, and one self-contained HTML file."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mcurl_torchrl.reports.figures import Drawing
from mcurl_torchrl.reports.style import STYLE

__all__ = [
    "Block",
    "Bullets",
    "Embedded",
    "FigureBlock",
    "Heading",
    "Paragraph",
    "TableBlock",
    "to_html",
    "to_markdown",
]

_NUMBER = re.compile(r"[-+−]?[\d.,]+(?!\w)|–?$")
_INTERVAL = re.compile(r"(\[[^\]\[]+, [^\]\[]+\])$")
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Heading:
    """A heading of level 2 or deeper; the title is the only one of level 1."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; words between backticks are code."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True)
class TableBlock:
    """A table with a caption. Columns of numbers are aligned to the right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def numeric(self, place: int) -> bool:
        """Returns whether a column has numbers only."""
        cells = [row[place] for row in self.rows]
        return all(map(_NUMBER.match, cells)) and any(character.isdigit() for cell in cells for character in cell)


@dataclass(frozen=True)
class FigureBlock:
    """A figure; ``name`` is the name of its file, ``text`` describes it in words."""

    name: str
    drawing: Drawing
    text: str


@dataclass(frozen=True)
class Embedded:
    """A figure that is HTML, such as SVG or a video; Markdown, which cannot hold it, gets its text only."""

    markup: str
    text: str


Block = Heading | Paragraph | Bullets | TableBlock | FigureBlock | Embedded


# -- Markdown ----------------------------------------------------------------------------------------------------------


def to_markdown(title: str, blocks: Sequence[Block], *, figures: str = "figures") -> str:
    """Returns the document as Markdown, whose images are files in the folder ``figures``.

    Examples:
        >>> from mcurl_torchrl.reports.document import TableBlock, to_markdown
        >>> print(to_markdown("Report", [TableBlock("Scores.", ["task", "score"], [["Pong", "3"]])]))
        # Report
        <BLANKLINE>
        Scores.
        <BLANKLINE>
        | task | score |
        | --- | ---: |
        | Pong | 3 |
        <BLANKLINE>
    """
    return "\n\n".join([f"# {_plain(title)}", *(_block_to_markdown(block, figures) for block in blocks)]) + "\n"


def _block_to_markdown(block: Block, figures: str) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_plain(text)}"
        case Paragraph(text):
            return _plain(text)
        case Bullets(items):
            return "\n".join(f"- {_plain(item)}" for item in items)
        case FigureBlock(name, _, text):
            return f"![{_plain(text)}]({figures}/{name}.png)"
        case Embedded(_, text):
            return _plain(text)
        case TableBlock(caption, columns, rows):
            rules = ["---:" if block.numeric(place) else "---" for place in range(len(columns))]
            lines = [columns, rules, *rows]
            table = "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)
            return f"{_plain(caption)}\n\n{table}"


def _plain(text: str) -> str:
    """Escapes ``<``, which would begin HTML, except between backticks."""
    parts = _CODE.split(text)
    return "".join(f"`{part}`" if odd % 2 else part.replace("<", "&lt;") for odd, part in enumerate(parts))


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|").replace("\n", " ")


# -- HTML --------------------------------------------------------------------------------------------------------------


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """Returns the document as one HTML file: images and style are inside, there is no script and no link to load."""
    body: list[str] = []
    in_figures = False
    for block in blocks:
        if isinstance(block, FigureBlock | Embedded) is not in_figures:
            body.append("</div>" if in_figures else '<div class="figures">')
            in_figures = not in_figures
        body.append(_block_to_html(block))
    if in_figures:
        body.append("</div>")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            # Without an icon of its own a browser asks the server for one.
            '<link rel="icon" href="data:,">',
            f"<title>{html.escape(title)}</title>",
            f"<style>{STYLE}</style></head>",
            f"<body><main><h1>{_inline(title)}</h1>",
            *body,
            "</main></body></html>",
            "",
        ]
    )


def _block_to_html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{_inline(text)}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
        case FigureBlock(_, drawing, text):
            light, dark = (_data_uri(image) for image in (drawing.light, drawing.dark))
            # Printed pages get the light image.
            return (
                f'<figure><picture><source media="screen and (prefers-color-scheme: dark)" srcset="{dark}">'
                f'<img src="{light}" alt="{html.escape(text)}"></picture></figure>'
            )
        case Embedded(markup, text):
            caption = f"<figcaption>{_inline(text)}</figcaption>" if text else ""
            return f"<figure>{markup}{caption}</figure>"
        case TableBlock():
            return _table_to_html(block)


def _table_to_html(table: TableBlock) -> str:
    kinds = [' class="number"' if table.numeric(place) else "" for place in range(len(table.columns))]
    head = "".join(
        f'<th scope="col"{kind}>{_inline(name)}</th>' for name, kind in zip(table.columns, kinds, strict=True)
    )
    lines = []
    for first, *others in table.rows:
        cells = "".join(f"<td{kind}>{_value(cell)}</td>" for cell, kind in zip(others, kinds[1:], strict=True))
        lines.append(f'<tr><th scope="row">{_inline(first)}</th>{cells}</tr>')
    # A region that can be focused, so that it can be scrolled with the keyboard.
    caption = html.escape(_CODE.sub(r"\1", table.caption))
    return (
        f'<p class="caption">{_inline(table.caption)}</p>'
        f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _value(cell: str) -> str:
    return _INTERVAL.sub(r'<span class="interval">\1</span>', _inline(cell))


def _inline(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", html.escape(text))


def _data_uri(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"

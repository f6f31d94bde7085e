"""Formulas between dollar signs become MathML, which browsers draw without scripts or fonts of their own.

GitHub draws the same dollar signs, so a page reads well in both places.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

BLOCK = r"(?<![\\$])\$\$(.+?)\$\$"
INLINE = r"(?<![\\$\w])\$(?![\s$])([^$\n]+?)(?<![\s\\])\$(?![\w$])"


class Formula(InlineProcessor):
    """Draws what stands between the dollar signs."""

    def __init__(self, pattern: str, md: Markdown, *, display: str) -> None:
        super().__init__(pattern, md)
        self.compiled_re = re.compile(pattern, re.DOTALL)
        self.display = display

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Any, int, int]:  # noqa: N802
        drawn = convert(self.unescape(m[1]).strip(), display=self.display)
        if self.display == "inline":
            return self.md.htmlStash.store(drawn), m.start(0), m.end(0)
        holder = Element("span", {"class": "formula"})
        holder.text = self.md.htmlStash.store(drawn)
        return holder, m.start(0), m.end(0)


class Maths(Extension):
    """`$...$` within a line, `$$...$$` on its own."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        # Behind code (190), which keeps its dollars, and before backslashes (180) and emphasis are looked for.
        md.inlinePatterns.register(Formula(BLOCK, md, display="block"), "formula_block", 186)
        md.inlinePatterns.register(Formula(INLINE, md, display="inline"), "formula", 185)


def makeExtension(**options: Any) -> Maths:  # noqa: N802
    """The name by which Markdown finds an extension."""
    return Maths(**options)

"""Checks the finished site: every link leads somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("img", "src"), ("script", "src"), ("source", "src"), ("video", "src"), ("iframe", "src")}


@dataclass
class Page(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    anchors: set[str] = field(default_factory=set)
    targets: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        for name, value in given.items():
            stylesheet = tag == "link" and name == "href" and "canonical" not in given.get("rel", "")
            if (tag, name) in LOADED or stylesheet:
                self.loaded.append(value)
            elif tag == "a" and name == "href":
                self.targets.append(value)


def problems(site: Path) -> list[str]:
    """A sentence for each link that leads nowhere, and for each file that a page would load from elsewhere."""
    # 404.html is for a server alone, which shows it at any address: its links begin at the server's root.
    pages = {path: read(path) for path in sorted(site.rglob("*.html")) if path != site / "404.html"}
    found = []
    for path, page in pages.items():
        here = path.relative_to(site)
        found += [f"{here}: loads {url} from elsewhere" for url in page.loaded if is_address(url)]
        for url in [*page.targets, *page.loaded]:
            reason = None if is_address(url) else missing(url, path, pages)
            found += [f"{here}: {url!r}: {reason}"] if reason else []
    return found


def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def is_address(url: str) -> bool:
    return bool(urlsplit(url).scheme or urlsplit(url).netloc)


def missing(url: str, page: Path, pages: dict[Path, Page]) -> str | None:
    """What a link does not find; None if all is well."""
    parts = urlsplit(url)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return "there is no such file"
    anchor = unquote(parts.fragment)
    if anchor and not anchor.startswith("__") and target in pages and anchor not in pages[target].anchors:
        return "there is no such place on the page"
    return None

"""Converts docstrings to Markdown: Sphinx roles become links, and arguments that share a line get their own lines."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

from griffe import Alias, AliasResolutionError, Extension, Module, NameResolutionError, Object

from docs_site import api

# :class:`~some.path` and :meth:`a title <some.path>`
ROLE = re.compile(
    r":(?:class|func|meth|attr|mod|data|exc):`(?:(?P<title>[^`<]+?)\s*<)?(?P<short>~?)(?P<path>[\w.]+)>?`"
)
NAMES = r"\w+(?:, \w+)*(?: \([^)]*\))?"
# A line such as "a, b (int), c (float): ...", with the more indented lines below it.
SHARED = re.compile(
    rf"^(?P<indent> *)(?P<names>{NAMES}(?:, {NAMES})*): (?P<text>.*\n?(?:(?P=indent) +\S.*\n?)*)", re.MULTILINE
)

logger = logging.getLogger("docs")


class Docstrings(Extension):
    """Changes the docstrings of a package before they are parsed."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        shown = {canonical(pkg[f"{folder}.{name}"]) for folder in api.folders() for name in api.public_names(folder)}
        for obj in walk(pkg):
            if obj.docstring is not None:
                text = one_argument_a_line(obj.docstring.value)
                obj.docstring.value = link_roles(text, obj, pkg, shown).replace("::\n", ":\n")


def walk(obj: Object) -> Iterator[Object]:
    """Yields all objects that the package defines, at any depth, without imported ones."""
    yield obj
    for member in obj.members.values():
        if not isinstance(member, Alias):
            yield from walk(member)


def link_roles(text: str, obj: Object, pkg: Module, shown: set[str]) -> str:
    """Replaces each role by a link if its object has an entry in the reference, and otherwise by code."""

    def link(role: re.Match[str]) -> str:
        path = role["path"]
        code = f"`{role['title'] or (path.rpartition('.')[2] if role['short'] else path)}`"
        found = find(path, obj, pkg)
        if found is None:
            logger.warning("%s: %s names nothing", obj.path, role[0])
        return f"[{code}][{found}]" if has_entry(found, shown) else code

    return ROLE.sub(link, text)


def has_entry(path: str | None, shown: set[str]) -> bool:
    """Tells whether the reference shows an object: a public name, or a member of one that is not private."""
    if path is None:
        return False
    owner, _, member = path.rpartition(".")
    return path in shown or (owner in shown and not member.startswith("_"))


def find(path: str, obj: Object, pkg: Module) -> str | None:
    """Returns the full path of the object of a role, relative to the package or to its place; None if not found."""
    if path.startswith(f"{pkg.path}."):
        return lookup(pkg, path.removeprefix(f"{pkg.path}."))
    if "." in path and not path[0].isupper():
        return path  # another package's
    first, _, rest = path.partition(".")
    scope = obj if obj.is_class else obj.parent
    if scope is not None and scope.is_class and (inside := lookup(scope, path)):
        return inside
    try:
        resolved = obj.resolve(first)
    except NameResolutionError:
        return None
    full = f"{resolved}.{rest}" if rest else resolved
    return lookup(pkg, full.removeprefix(f"{pkg.path}.")) if full.startswith(f"{pkg.path}.") else full


def lookup(start: Object, path: str) -> str | None:
    """Returns the full path of a member at any depth, also of an inherited one."""
    place: Object | Alias = start
    for name in path.split("."):
        members = place.all_members
        if name not in members:
            return None
        place = members[name]
    return canonical(place)


def canonical(obj: Object | Alias) -> str:
    """Returns the path at which an object is defined."""
    try:
        return obj.canonical_path
    except AliasResolutionError as outside:
        return outside.alias.target_path


def one_argument_a_line(text: str) -> str:
    """Repeats what is said of several arguments at once for each of them."""

    def split(match: re.Match[str]) -> str:
        typed = re.findall(r"(\w+(?:, \w+)*)( \([^)]*\))?", match["names"])
        said = match["text"] if match["text"].endswith("\n") else f"{match['text']}\n"
        entries = [(name, kind) for names, kind in typed for name in names.split(", ")]
        return "".join(f"{match['indent']}{name}{kind}: {said}" for name, kind in entries)

    head, *arguments = re.split(r"(?m)^(?=(?:Keyword )?Args:$)", text, maxsplit=1)
    return "".join([head, *(SHARED.sub(split, part) for part in arguments)])

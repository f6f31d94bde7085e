"""The reference of the settings: every key with its type, its default and the comment beside it.

It is generated from recipes/schema.py and recipes/conf/.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from pathlib import Path

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
CONF = RECIPES / "conf"
TOP = "RecipeConfig"
BLANK = "–"


@dataclass(frozen=True)
class Key:
    """One setting."""

    name: str
    type: str
    default: str
    meaning: str


def sections(file: Path = RECIPES / "schema.py") -> dict[str, tuple[str, list[Key]]]:
    """Returns the dataclasses of a file, each with its docstring and its keys."""
    text = file.read_text(encoding="utf-8")
    return {
        node.name: (ast.get_docstring(node) or "", [key_of(field, text) for field in fields(node)])
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef)
    }


def fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [item for item in node.body if isinstance(item, ast.AnnAssign)]


def key_of(field: ast.AnnAssign, text: str) -> Key:
    kind, default = ast.unparse(field.annotation), field.value
    if called(default) == "choice":  # one of several words, the first unless another is named
        words = [ast.unparse(word) for word in default.args]
        kind = " | ".join(map(ast.literal_eval, words))
        default = next((keyword.value for keyword in default.keywords if keyword.arg == "default"), default.args[0])
    return Key(ast.unparse(field.target), kind, plain(default, text), meaning_of(field, text.splitlines()))


def meaning_of(field: ast.AnnAssign, lines: list[str]) -> str:
    """Returns the comment after a key or, if there is none, the comment line above it."""
    above = lines[field.lineno - 2]
    return comment(lines[(field.end_lineno or field.lineno) - 1]) or (
        comment(above) if above.lstrip()[:1] == "#" else ""
    )


def called(value: ast.expr | None) -> str:
    return ast.unparse(value.func) if isinstance(value, ast.Call) else ""


def plain(default: ast.expr | None, text: str) -> str:
    """Returns a default as it would be written in YAML; empty for a section."""
    if default is None:
        return ""
    if called(default) == "field":
        made = next((keyword.value for keyword in default.keywords if keyword.arg == "default_factory"), None)
        return ast.unparse(made.body) if isinstance(made, ast.Lambda) else ""
    written = ast.get_source_segment(text, default) or ""
    names = {"MISSING": "(must be set)", "None": "null", "True": "true", "False": "false"}
    return names.get(written, written.strip('"'))


def comment(line: str) -> str:
    """Returns the comment of a line of Python or YAML; empty if there is none."""
    found = re.search(r"(?:^|\s)#\s*(.+)$", line)
    return found[1].strip() if found else ""


def table(keys: list[Key], prefix: str = "", *, types: bool = True) -> list[str]:
    """Rows of Markdown, one for each key."""
    head = ["key", *(["type"] if types else []), "default", "meaning"]
    rows = [
        [f"`{prefix}{key.name}`", *([code(key.type)] if types else []), code(key.default), key.meaning] for key in keys
    ]
    return [row(head), row(["---"] * len(head)), *(row(cells) for cells in rows)]


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def code(text: str) -> str:
    return f"`{text.replace(' | ', ' or ')}`" if text else BLANK  # a bar would end the cell


def page() -> str:
    """The page of all settings."""
    classes = sections()
    recipes = {name: keys for name, (_, keys) in classes.items() if name.endswith(TOP)}
    lines = [INTRODUCTION]
    said_before = {key.name: key.meaning for keys in recipes.values() for key in keys if key.meaning}
    for recipe, keys in recipes.items():
        own = [replace(key, meaning=said_before.get(key.name, "")) for key in keys if key.type not in classes]
        name = recipe.removesuffix(TOP).lower()
        lines += ["", f"## Only `{name}`" if name else "## Every recipe", "", *table(own)]
    users: dict[tuple[str, str], list[str]] = {}  # of a group of keys: several recipes may have one of the same name
    for recipe, keys in recipes.items():
        for key in keys:
            if key.type in classes:
                users.setdefault((key.name, key.type), []).append(recipe.removesuffix(TOP).lower())
    for (name, kind), of in users.items():
        said, keys = classes[kind]
        whose = f" ({', '.join(of)})" if sum(name == other for other, _ in users) > 1 else ""
        lines += ["", f"## `{name}.`{whose}", "", said, "", *nested_table(name, keys, classes)]
    return "\n".join([*lines, "", *objectives(), *groups(), ""])


def nested_table(name: str, keys: list[Key], classes: dict[str, tuple[str, list[Key]]]) -> list[str]:
    inner = [key for key in keys if key.type in classes]
    lines = table([key for key in keys if key not in inner], f"{name}.")
    for key in inner:
        said, below = classes[key.type]
        lines += ["", said, "", *table(below, f"{name}.{key.name}.")]
    return lines


def objectives() -> list[str]:
    """The auxiliary tasks: the keys of `objective.` are those of the chosen file."""
    lines = ["## `objective.`", "", "The keys of the auxiliary task are those of the chosen file: `objective=mcurl`, "]
    lines += ["or `algo=mcurl`, which chooses it. A file that inherits from another file has its keys, too.", ""]
    for file in sorted((CONF / "shared" / "objective").glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        lines += [f"### `objective={file.stem}`", "", first_comment(text), "", *class_of(text), *base_of(text)]
        keys = yaml_keys(text)
        lines += [*(table(keys, "objective.", types=False) if keys else ["It has no settings."]), ""]
    return lines


def class_of(text: str) -> list[str]:
    path = re.search(r"^task: (\S+)", text, re.MULTILINE)
    return [f"In code: `{path[1]}`.", ""] if path else []


def base_of(text: str) -> list[str]:
    base = re.search(r"^defaults: \[(\w+)\]", text, re.MULTILINE)
    return [f"All keys of `objective={base[1]}`, with these changes:", ""] if base else []


def yaml_keys(text: str) -> list[Key]:
    """The keys of a flat YAML with the comments beside them."""
    found = []
    for line in text.splitlines():
        match = re.match(r"(\w+): +(.+?)(?:\s+#.*)?$", line)
        if match and match[1] not in ("defaults", "name", "task"):  # the text of the page describes these
            found.append(Key(match[1], "", match[2], comment(line)))
    return found


def first_comment(text: str) -> str:
    """Returns the comment lines at the beginning of a YAML file, without Hydra's @package line."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:
            lines.append(line.lstrip("# "))
    return re.sub(r"(https?://\S+)", r"<\1>", " ".join(lines))


def groups() -> list[str]:
    """The files behind `preset=`, `reference=`, `algo=` and `env=`, and what each sets."""
    lines = ["## Groups", "", "A choice of a group, such as `preset=cpu`, reads a file that sets several keys.", ""]
    for group in ("preset", "reference", "algo", "augmentation"):
        for file in sorted(CONF.glob(f"*/{group}/*.yaml")):
            text = file.read_text(encoding="utf-8")
            lines += [f"### `{group}={file.stem}` ({file.parent.parent.name})", "", first_comment(text), ""]
            lines += ["```yaml", body(text), "```", ""]
    names = [f"`{file.stem}`" for file in sorted((CONF / "shared" / "env").glob("*.yaml"))]
    return [*lines, "### `env=`", "", ", ".join(names) + "."]


def body(text: str) -> str:
    """A YAML without the comment at its beginning."""
    lines = text.splitlines()
    while lines and lines[0].startswith("#"):
        lines.pop(0)
    return "\n".join(lines).strip()


INTRODUCTION = """# Settings

Every key that a recipe knows, with its type, its default and its meaning. A command line sets a key by its whole name:

```bash
python recipes/sac_mcurl.py env=walker-walk preset=cpu sac.gamma=0.98 objective.mask_ratio=0.3
```

Defaults are the published settings. `env_steps` are simulator steps (agent steps times action repeat), `agent_steps`
are decisions of the agent, `updates` are gradient updates. An unknown key or name is refused, and the message lists
similar names; `--cfg job --resolve` prints all settings of a command.
"""

"""Says in a sentence where a YAML or JSON file has an error, and what it is."""

from __future__ import annotations

from json import JSONDecodeError

from yaml import MarkedYAMLError


def in_words(error: Exception) -> str:
    """Returns the message of an error; for an error in YAML or JSON it is one line, with line and column."""
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!r}"
    if isinstance(error, JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    if not isinstance(error, MarkedYAMLError) or (mark := error.problem_mark or error.context_mark) is None:
        return str(error)
    said = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}"
    begins = f" (in the part that begins in line {error.context_mark.line + 1})" if error.context_mark else ""
    return said.replace("'<stream end>'", "the end") + begins

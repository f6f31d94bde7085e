"""CSV tables that grow by one row at a time and survive a crash at any moment."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mcurl_torchrl.files import write_file

__all__ = ["Table", "read"]

_INT = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]+)?(e[+-]?[0-9]+)?|inf)|nan")
_LINE_BREAK = re.compile(r"[\n\r\0]")


class Table:
    """A CSV file to which rows are appended; a reader sees each row at once.

    The first row decides the columns. A row with new columns rewrites the file once with all of them; where a row has
    no value, its cell is empty. Numbers are written so that they come back exactly. A row is one line and one write: a
    killed process leaves at most one torn line, which the next one cuts off, and a full disk leaves none.

    Args:
        path (str or Path): the file; it and its folder are made with the first row.

    Examples:
        >>> import tempfile
        >>> from mcurl_torchrl.training.tables import Table, read
        >>> folder = tempfile.TemporaryDirectory()
        >>> table = Table(f"{folder.name}/metrics.csv")
        >>> table.append({"step": 100, "loss": 0.1})
        >>> table.append({"step": 200, "loss": 0.05, "phase": "warm-up"})
        >>> read(table.path)
        [{'step': 100, 'loss': 0.1, 'phase': None}, {'step': 200, 'loss': 0.05, 'phase': 'warm-up'}]
        >>> table.truncate_after("step", 100)  # a resumed run writes step 200 once more
        1
        >>> folder.cleanup()
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._columns: list[str] | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row.

        Args:
            row (mapping): the cells by column; numbers (also of NumPy, or one-element tensors), strings of one line,
                booleans or None. An empty string comes back as None.

        Raises:
            TypeError, ValueError: on other cells, and on a file that is damaged.
            OSError: if there is no room; the earlier rows stay as they are.
        """
        cells = {_check_column(column): _to_text(column, value) for column, value in row.items()}
        if not cells:
            raise ValueError(f"a row of {self.path} must have at least one column")
        if self._columns is None:
            self._columns = self._mend()
        columns = list(dict.fromkeys([*self._columns, *cells]))
        line = [cells.get(column, "") for column in columns]
        if columns == self._columns:
            self._add_line(_to_lines([line]))
        else:
            before = _read_cells(self.path)[1:] if self._columns else []
            self._replace([columns, *([*old, *[""] * (len(columns) - len(old))] for old in before), line])
            self._columns = columns

    def truncate_after(self, column: str, value: float) -> int:
        """Drops the rows with more than ``value`` in a column, and a torn last line; returns how many rows it dropped.

        A resumed run does this with the step of its checkpoint, because it writes the later rows once more. Rows with
        nothing in that column stay.

        Raises:
            KeyError: if there are rows but no such column.
            ValueError: if the column has a cell that is not a number.
        """
        self._columns = self._mend()
        if not self._columns:
            return 0
        if column not in self._columns:
            raise KeyError(f"{self.path} has no column {column!r}; it has {self._columns}")
        place = self._columns.index(column)
        header, *rows = _read_cells(self.path)
        numbers = [_from_text(cells[place]) for cells in rows]
        if strings := [number for number in numbers if isinstance(number, str)]:
            raise ValueError(f"{self.path} has {strings[0]!r} in column {column!r}; it must be a number")
        kept = [cells for cells, number in zip(rows, numbers, strict=True) if number is None or number <= value]
        if len(kept) < len(rows):
            self._replace([header, *kept])
        return len(rows) - len(kept)

    def fingerprint(self) -> str:
        """Returns a checksum of the rows, which does not change with columns that are empty in all of them.

        Raises:
            ValueError: on a file that is damaged.
        """
        header, *rows = (_read_cells(self.path) if self.path.is_file() else []) or [[]]
        filled = [sorted((column, cell) for column, cell in zip(header, row, strict=True) if cell) for row in rows]
        return hashlib.sha256(json.dumps(filled).encode()).hexdigest()

    def _mend(self) -> list[str]:
        """Cuts off a torn last line; returns the columns, none if there is no table yet."""
        if not self.path.is_file():
            return []
        os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)
        cells = _read_cells(self.path)
        return cells[0] if cells else []

    def _add_line(self, line: bytes) -> None:
        # Opened for each row: a row is rare, and an open handle would go on writing to a file that was replaced.
        with open(self.path, "ab", buffering=0) as file:
            before = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError(f"no room for a row of {len(line)} bytes in {self.path}")
            except OSError:
                file.truncate(before)
                raise

    def _replace(self, cells: Iterable[list[str]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.path, _to_lines(cells))


def read(path: str | Path) -> list[dict[str, Any]]:
    """Reads the rows of a table: numbers and booleans as such, empty cells as None. A torn last line is left out.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the number of cells in a line is not the number of columns.
    """
    cells = _read_cells(Path(path))
    return [dict(zip(cells[0], map(_from_text, row), strict=True)) for row in cells[1:]]


def _read_cells(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no table {path}")
    content = path.read_bytes()
    try:
        text = content[: content.rfind(b"\n") + 1].decode()
        cells = list(csv.reader(io.StringIO(text, newline="")))
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    for number, row in enumerate(cells, start=1):
        if len(row) != len(cells[0]):
            raise ValueError(f"{path} is damaged: line {number} has {len(row)} cells for {len(cells[0])} columns")
    return cells


def _to_lines(cells: Iterable[list[str]]) -> bytes:
    text = io.StringIO(newline="")
    # The csv module quotes a single empty cell, so no row is an empty line.
    csv.writer(text, lineterminator="\n").writerows(cells)
    return text.getvalue().encode()


def _check_column(column: Any) -> str:
    if not isinstance(column, str) or not column or _LINE_BREAK.search(column):
        raise ValueError(f"a column is named {column!r}; it must be a string of one line that is not empty")
    return column


def _to_text(column: str, value: Any) -> str:
    if hasattr(value, "item"):  # NumPy scalars and tensors; numpy.float64 is a float, but its repr is not one.
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return repr(value)
    if not isinstance(value, (str, type(None))):
        raise TypeError(f"column {column!r} got a {type(value).__name__}; it takes numbers, strings, booleans and None")
    if value and _LINE_BREAK.search(value):
        raise ValueError(f"column {column!r} got {value!r}; a string must be one line")
    return value or ""


def _from_text(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text or None

"""CSV tables that grow a row at a time and survive a crash at any moment."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mcurl_torchrl.files import write_file

__all__ = ["Table", "read"]

_INT = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]+)?(e[+-]?[0-9]+)?|inf)|nan")
_BOOLS = {"True": True, "False": False}


class Table:
    """A CSV file to which rows are appended, each at once visible to others.

    The first row decides the columns. A row with new columns rewrites the file once with all of them; where a row has
    no value, its cell is empty. Numbers are written so that they come back exactly. A row is one line and one write: a
    killed process leaves at most one torn line, which the next one cuts off, and a full disk leaves none.

    Args:
        path (str or Path): the file; it and its folder are made with the first row.

    Raises:
        TypeError: on appending something else than numbers, strings, booleans and None.
        ValueError: on appending a string with a line break, and on a file that is damaged.
        OSError: on appending where there is no room; the rows from before stay as they are.

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
            row (mapping): the cells by column; numbers (also of NumPy, or one-element tensors), strings, booleans or
                None. An empty string comes back as None.
        """
        cells = {_check_column(column): _to_text(column, value) for column, value in row.items()}
        if not cells:
            raise ValueError(f"a row of {self.path} must have at least one column")
        if self._columns is None:
            self._columns = self._mend()
        columns = [*self._columns, *(column for column in cells if column not in self._columns)]
        if columns == self._columns:
            self._add_line(_to_lines([[cells.get(column, "") for column in columns]]))
        else:
            before = _read_cells(self.path)[1:] if self._columns else []
            rows = [[*old, *[""] * (len(columns) - len(old))] for old in before]
            self._replace([columns, *rows, [cells.get(column, "") for column in columns]])
            self._columns = columns

    def truncate_after(self, column: str, value: float) -> int:
        """Drops the rows with more than ``value`` in a column, and what a killed process left half-written.

        A resumed run does this with the step of its checkpoint, because it comes by those rows once more. Rows with
        nothing in that column stay.

        Args:
            column (str): the column.
            value (float): the largest value to keep.

        Returns:
            How many rows were dropped.

        Raises:
            KeyError: if there are rows but no such column.
        """
        self._columns = self._mend()
        if not self._columns:
            return 0
        if column not in self._columns:
            raise KeyError(f"{self.path} has no column {column!r}; it has {self._columns}")
        place = self._columns.index(column)
        header, *rows = _read_cells(self.path)
        kept = [cells for cells in rows if not (cells[place] and _number(self.path, column, cells[place]) > value)]
        if len(kept) < len(rows):
            self._replace([header, *kept])
        return len(rows) - len(kept)

    def _mend(self) -> list[str]:
        """Cuts off a torn last line; returns the columns, none if there is no table yet."""
        if not self.path.is_file():
            return []
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
        cells = _read_cells(self.path)
        return cells[0] if cells else []

    def _add_line(self, line: bytes) -> None:
        # Opened for each row: a row is rare, and a handle would go on writing to a file that was replaced.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            before = os.fstat(file).st_size
            try:
                if os.write(file, line) < len(line):
                    raise OSError(f"no room for a row of {len(line)} bytes in {self.path}")
            except OSError:
                os.ftruncate(file, before)
                raise
        finally:
            os.close(file)

    def _replace(self, cells: Iterable[list[str]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.path, _to_lines(cells))


def read(path: str | Path) -> list[dict[str, Any]]:
    """Reads a table: numbers and booleans as such, empty cells as None. A torn last line is left out.

    Args:
        path (str or Path): the file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line has another number of cells than there are columns.
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
    # A lone empty cell is quoted by the csv module itself, so no row is an empty line.
    csv.writer(text, lineterminator="\n").writerows(cells)
    return text.getvalue().encode()


def _check_column(column: Any) -> str:
    if not isinstance(column, str) or not column or "\n" in column or "\r" in column:
        raise ValueError(f"a column is named {column!r}; it must be a string of one line that is not empty")
    return column


def _to_text(column: str, value: Any) -> str:
    if hasattr(value, "item"):  # NumPy scalars and tensors; numpy.float64 is a float, but its repr is not one.
        value = value.item()
    if value is None:
        return ""
    if isinstance(value, (bool, int, float)):
        return repr(value)
    if not isinstance(value, str):
        raise TypeError(f"column {column!r} got a {type(value).__name__}; it takes numbers, strings, booleans and None")
    if "\n" in value or "\r" in value or "\0" in value:
        raise ValueError(f"column {column!r} got {value!r}; a string must be one line")
    return value


def _from_text(text: str) -> Any:
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text or None


def _number(path: Path, column: str, text: str) -> float:
    value = _from_text(text)
    if not isinstance(value, (int, float)):
        raise ValueError(f"{path} has {text!r} in column {column!r}; it must be a number")
    return value

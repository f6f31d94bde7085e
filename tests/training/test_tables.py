"""Tables come back exactly, grow in width, and lose at most the line that a killed process was writing."""

from __future__ import annotations

import math
import os
import random
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from mcurl_torchrl.training import tables
from mcurl_torchrl.training.tables import Table, read


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "run" / "metrics.csv")


def test_numbers_come_back_exactly(table: Table) -> None:
    source = random.Random(0)
    floats = [struct.unpack("d", source.randbytes(8))[0] for _ in range(300)]
    floats += [0.1, -0.0, 1e-5, 1e22, 5e-324, math.inf, -math.inf]
    for value in floats:
        table.append({"value": value})
    for value, row in zip(floats, read(table.path), strict=True):
        assert isinstance(row["value"], float)
        assert math.isnan(value) == math.isnan(row["value"])
        assert math.isnan(value) or struct.pack("d", value) == struct.pack("d", row["value"])


@pytest.mark.parametrize(
    ("written", "comes_back"),
    [
        (7, 7),
        (-(10**30), -(10**30)),
        (True, True),
        (None, None),
        ("", None),
        ('two words, a comma and a "quote"', 'two words, a comma and a "quote"'),
        ("007", "007"),
        ("1_000", "1_000"),
        ("infinity", "infinity"),
        ("ünï", "ünï"),
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (torch.tensor(0.25), 0.25),
        (torch.tensor([2]), 2),
    ],
    ids=repr,
)
def test_cells(table: Table, written: object, comes_back: object) -> None:
    table.append({"step": 1, "cell": written})
    (row,) = read(table.path)
    assert row == {"step": 1, "cell": comes_back}
    assert type(row["cell"]) is type(comes_back)


@pytest.mark.parametrize(
    ("row", "error", "says"),
    [
        ({"loss": [1]}, TypeError, "'loss' got a list"),
        ({"loss": "two\nlines"}, ValueError, "one line"),
        ({"two\nlines": 1}, ValueError, "one line"),
        ({"": 1}, ValueError, "not empty"),
        ({}, ValueError, "at least one column"),
    ],
)
def test_refuses(table: Table, row: dict, error: type[Exception], says: str) -> None:
    table.append({"step": 1})
    before = table.path.read_bytes()
    with pytest.raises(error, match=says):
        table.append(row)
    assert table.path.read_bytes() == before


def test_new_columns_widen_the_table_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrites = []
    monkeypatch.setattr(tables, "write_file", lambda *args, of=tables.write_file: rewrites.append(args) or of(*args))
    table.append({"step": 1, "loss": 0.5})
    table.append({"step": 2, "accuracy": 0.75, "loss": 0.25})
    table.append({"accuracy": 1.0, "step": 3})
    assert len(rewrites) == 2
    assert table.path.read_text() == "step,loss,accuracy\n1,0.5,\n2,0.25,0.75\n3,,1.0\n"


def test_a_lone_empty_cell_is_a_row(table: Table) -> None:
    table.append({"note": None})
    table.append({"note": "x"})
    assert read(table.path) == [{"note": None}, {"note": "x"}]


def test_each_row_is_at_once_visible_to_others(table: Table) -> None:
    for step in range(3):
        table.append({"step": step})
        assert len(read(table.path)) == step + 1


def test_another_process_goes_on_with_the_same_table(table: Table) -> None:
    table.append({"step": 1, "loss": 0.5})
    Table(table.path).append({"loss": 0.25, "step": 2})
    assert read(table.path) == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]


@pytest.mark.parametrize("torn", [b"3", b"3,0.12", b'3,"0', b"\0\0\0\0", b"3,0.\xc3"])
def test_a_torn_line_is_cut_off(table: Table, torn: bytes) -> None:
    table.append({"step": 1, "loss": 0.5})
    with open(table.path, "ab") as file:
        file.write(torn)
    whole = [{"step": 1, "loss": 0.5}]
    assert read(table.path) == whole
    assert Table(table.path).truncate_after("step", 10) == 0
    assert read(table.path) == whole and table.path.read_bytes().endswith(b"0.5\n")
    with open(table.path, "ab") as file:
        file.write(torn)
    Table(table.path).append({"step": 2, "loss": 0.25})
    assert read(table.path) == [*whole, {"step": 2, "loss": 0.25}]


def test_a_torn_header_is_no_table(table: Table) -> None:
    table.path.parent.mkdir()
    table.path.write_text("step,lo")
    assert table.truncate_after("step", 3) == 0
    table.append({"step": 1})
    assert table.path.read_text() == "step\n1\n"


def test_truncate_after(table: Table) -> None:
    for step in (100, 200, 300):
        table.append({"step": step, "loss": 1 / step})
    table.append({"loss": 7.0})
    assert table.truncate_after("step", 200) == 1
    assert read(table.path) == [
        {"step": 100, "loss": 1 / 100},
        {"step": 200, "loss": 1 / 200},
        {"step": None, "loss": 7.0},
    ]
    table.append({"step": 300, "loss": 2.0})
    assert read(table.path)[-1] == {"step": 300, "loss": 2.0}
    assert table.truncate_after("step", 1000) == 0


def test_truncating_needs_the_column_and_numbers(table: Table) -> None:
    assert table.truncate_after("step", 1) == 0  # no table yet
    table.append({"name": "x"})
    with pytest.raises(KeyError, match=r"no column 'step'; it has \['name'\]"):
        table.truncate_after("step", 1)
    with pytest.raises(ValueError, match="must be a number"):
        table.truncate_after("name", 1)


def test_a_crash_while_rewriting_costs_nothing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append({"step": 1})
    table.append({"step": 2})

    def crash(*args: object) -> None:
        raise KeyboardInterrupt

    for rewrite in (lambda: table.append({"step": 3, "new": 1}), lambda: table.truncate_after("step", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", crash)
            with pytest.raises(KeyboardInterrupt):
                rewrite()
        assert [path.name for path in table.path.parent.iterdir()] == ["metrics.csv"]
        assert read(table.path) == [{"step": 1}, {"step": 2}]


def test_a_damaged_table_is_named(table: Table) -> None:
    table.path.parent.mkdir()
    table.path.write_text("step,loss\n1,0.5\n2\n3,0.1\n")
    with pytest.raises(ValueError, match="metrics.csv is damaged: line 3 has 1 cells for 2 columns"):
        read(table.path)
    with pytest.raises(FileNotFoundError, match="no table .*other.csv"):
        read(table.path.with_name("other.csv"))


def test_a_full_disk_leaves_no_half_row(table: Table) -> None:
    """A file size limit is a disk that is full for this one file, down to the byte."""
    table.append({"step": 1, "text": "x" * 50})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError):
            table.append({"step": 2, "text": "y" * 50})
        assert table.path.read_text() == f"step,text\n1,{'x' * 50}\n"
        with pytest.raises(OSError):
            table.append({"step": 2, "text": "", "wider": "y" * 50})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert table.path.read_text() == f"step,text\n1,{'x' * 50}\n"
    table.append({"step": 2, "text": "y"})
    assert read(table.path)[1] == {"step": 2, "text": "y"}

"""The benchmark of compile, precision and sample_ahead at tiny sizes: that it runs, and what it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gpu_ready
import pytest


def test_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpu_ready.json"
    monkeypatch.setattr(sys, "argv", ["gpu_ready.py", "--quick", "--threads", "1", "--json", str(file)])
    gpu_ready.main()
    rows = json.loads(file.read_text())["updates"]
    assert [(row["learner"], row["with"]) for row in rows] == [
        (f"{algorithm} mcurl/smoke", name)
        for algorithm in ("rainbow", "sac")
        for name in ("plain", "bfloat16", "sample_ahead")
    ]
    assert all(row["times_as_long"] == 1 for row in rows if row["with"] == "plain")
    assert "times_as_long" in capsys.readouterr().out


def test_ahead_means_ahead() -> None:
    updates = gpu_ready.Updates("rainbow", "env=RoadRunner", "algo=mcurl", "preset=smoke", "sample_ahead=1")
    updates()
    assert len(updates.batches.state_dict()["drawn"]) == 1

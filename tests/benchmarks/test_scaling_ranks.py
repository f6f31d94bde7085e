"""The benchmark of ranks at tiny sizes: that it runs, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import scaling_ranks


@pytest.mark.slow
def test_two_ranks_are_compared_with_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["scaling_ranks.py", "--quick", "--json", str(tmp_path / "found.json")])
    scaling_ranks.main()
    (found,) = json.loads((tmp_path / "found.json").read_text())["cases"].values()
    assert set(found) == {"1", "2"} and found["1"]["speed"] == 1 and found["1"]["message_seconds"] == 0
    assert found["2"]["message_seconds"] > 0 and found["1"]["parameters"] == found["2"]["parameters"]

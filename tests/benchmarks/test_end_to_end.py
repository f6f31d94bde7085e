"""The benchmark of whole recipes at tiny sizes: what it measures, and that it runs."""

from __future__ import annotations

import json
import sys
from unittest import mock

import end_to_end
import pytest
import setups

from mcurl_torchrl.agents import RainbowAgent, SACAgent

PARTS = {"env", "policy", "storing", "sampling", "learning", "loop"}


@pytest.fixture(autouse=True)
def _allocator_as_it_is():
    with mock.patch.object(setups, "keep_freed_pages"):
        yield


@pytest.mark.parametrize("algorithm", ["sac", "rainbow"])
def test_a_recipe_is_measured_while_it_learns(algorithm):
    updates = []
    agent = {"sac": SACAgent, "rainbow": RainbowAgent}[algorithm]
    update = agent.update

    def counted(*args, **kwargs):
        updates.append(args)
        return update(*args, **kwargs)

    with mock.patch.object(agent, "update", counted):
        result = end_to_end.run_recipe(algorithm, "smoke", 10)
    assert len(updates) == end_to_end.STEPS_BEFORE + 10  # every step from the first update on
    times = result["milliseconds_per_step"]
    assert times.keys() == PARTS
    assert sum(times.values()) == pytest.approx(1e3 / result["steps_per_second"])
    outside = sum(times[part] for part in PARTS - {"sampling", "learning"})
    assert result["share_outside_learner"] == pytest.approx(outside / sum(times.values()))
    assert result["met"] == (result["share_outside_learner"] <= {"sac": 0.15, "rainbow": 0.35}[algorithm])


def test_it_runs(tmp_path, monkeypatch, capsys):
    few = {"slices": end_to_end.GROWTH["rainbow"]["slices"]}
    monkeypatch.setitem(end_to_end.GROWTH, "rainbow", few)
    files = ["--json", str(tmp_path / "numbers.json"), "--plot", str(tmp_path / "plot.png")]
    monkeypatch.setattr(sys, "argv", ["end_to_end.py", "--quick", "--only", "rainbow", "--threads", "1", *files])
    end_to_end.main()
    written = json.loads((tmp_path / "numbers.json").read_text())
    assert written["recipes"]["rainbow"]["steps_per_second"] > 0
    assert written["growth"]["rainbow"]["slices"].keys() == {"2", "4", "8", "16"}
    assert written["growth"]["replay"]["rows"].keys() == {"1000", "2000"}
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    assert "outside of the learner" in capsys.readouterr().out

"""Our statistics beside rliable's, in an environment of its own: it needs an older pandas than we have."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path

import numpy as np
import pytest

from mcurl_torchrl.reports.statistics import (
    AGGREGATES,
    estimate_aggregates,
    estimate_improvement,
    performance_profile,
)

THRESHOLDS = [0.0, 0.25, 0.5, 1.0, 2.0]
THEIRS = """
import json, sys
import numpy as np
from rliable import library, metrics

given = json.load(open(sys.argv[1]))
x, y = np.array(given["x"]), np.array(given["y"])  # [runs, tasks]

def aggregates(scores):
    return np.array([metrics.aggregate_iqm(scores), metrics.aggregate_median(scores), metrics.aggregate_mean(scores),
                     metrics.aggregate_optimality_gap(scores)])

values, intervals = library.get_interval_estimates({"x": x}, aggregates, reps=4000)
better, better_interval = library.get_interval_estimates({"x,y": (x, y)}, metrics.probability_of_improvement, reps=1000)
profiles, _ = library.create_performance_profile({"x": x}, np.array(given["thresholds"]), reps=10)
print(json.dumps({
    "values": values["x"].tolist(), "intervals": intervals["x"].tolist(), "profile": profiles["x"].tolist(),
    "better": float(better["x,y"]), "better_interval": np.ravel(better_interval["x,y"]).tolist(),
}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rliable")
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "rliable==1.2.0", "pandas<3"], check=True)
    return python


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("runs", "tasks"), [(5, 26), (3, 6), (10, 1)])
def test_same_as_rliable(python: Path, tmp_path: Path, runs: int, tasks: int) -> None:
    generator = np.random.default_rng(runs)
    x = generator.gamma(1.0, 0.5, size=(runs, tasks)).round(2)
    y = generator.gamma(1.0, 0.4, size=(runs, tasks)).round(2)
    given = {"x": x.tolist(), "y": y.tolist(), "thresholds": THRESHOLDS}
    (tmp_path / "given.json").write_text(json.dumps(given))
    (tmp_path / "theirs.py").write_text(THEIRS)
    done = subprocess.run(
        [python, tmp_path / "theirs.py", tmp_path / "given.json"], check=True, capture_output=True, text=True
    )
    theirs = json.loads(done.stdout.splitlines()[-1])

    ours = estimate_aggregates(list(x.T), repetitions=20_000)
    np.testing.assert_allclose([ours[name].value for name in AGGREGATES], theirs["values"])
    np.testing.assert_allclose(performance_profile(list(x.T), THRESHOLDS), theirs["profile"])
    better = estimate_improvement(list(x.T), list(y.T), paired=False)
    assert better.value == pytest.approx(theirs["better"])

    # Ends of intervals are drawn: they agree up to a small part of the width.
    low, high = np.array(theirs["intervals"])
    width = high - low
    np.testing.assert_array_less(np.abs([ours[name].low for name in AGGREGATES] - low), 0.06 * width)
    np.testing.assert_array_less(np.abs([ours[name].high for name in AGGREGATES] - high), 0.06 * width)
    assert (better.low, better.high) == pytest.approx(tuple(theirs["better_interval"]), abs=0.03)

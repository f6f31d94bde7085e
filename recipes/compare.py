"""Shows the differences between two runs: in their settings, their code and their returns.

    python recipes/compare.py RUN_DIR RUN_DIR

To compare two methods, use several seeds and report.py, which computes intervals.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recipes.command_line import BadCommand, answer

if TYPE_CHECKING:  # this imports torch, which takes seconds: help and errors in the options come first
    from recipes.reports.runs import Run

MOST_POINTS = 12  # rows in the table of returns


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    if len(arguments) != 2:
        raise BadCommand(f"give two run directories; got {len(arguments)}: {' '.join(arguments) or 'none'}")
    for argument in arguments:
        if not Path(argument).is_dir():
            raise BadCommand(f"{argument}: there is no such folder")
    a, b = (only_run(Path(argument)) for argument in arguments)
    print("\n".join([*heading(a, b), "", *settings(a, b), "", *curves(a, b)]))
    return 0


def only_run(folder: Path) -> Run:
    """Reads the run in a folder; refuses a folder with several."""
    from recipes.reports.runs import find_runs

    found = find_runs([folder])
    for path, why in found.unreadable:
        raise BadCommand(f"{path} cannot be read: {why}")
    if len(found.runs) > 1:
        raise BadCommand(f"{folder} holds {len(found.runs)} runs, such as {found.runs[0].path}; name one of them")
    return found.runs[0]


def heading(a: Run, b: Run) -> list[str]:
    lines = []
    for letter, run in (("A", a), ("B", b)):
        far = f"{run.env_steps:,} of {run.total_env_steps:,} env steps"
        lines.append(f"{letter}: {run.path}: {run.task}, {run.label}, seed {run.seed}, {run.status}, {far}")
    return lines


# -- settings ----------------------------------------------------------------------------------------------------------


def settings(a: Run, b: Run) -> list[str]:
    """Lists the differences: settings that affect learning, other settings, settings of one run only, and the code."""
    from recipes.reports.groups import compared, differing_keys

    learned = set(differing_keys([compared(a), compared(b)]))
    differing = sorted(differing_keys([a.settings, b.settings]), key=lambda key: (key not in learned, key))
    lines = [
        f"  {key}: {a.settings[key]} | {b.settings[key]}" + ("" if key in learned else "  (does not change the method)")
        for key in differing
        if key in a.settings and key in b.settings
    ]
    for letter, run, other in (("A", a, b), ("B", b, a)):
        if own := [f"{key}={run.settings[key]}" for key in differing if key not in other.settings]:
            lines.append(f"  only {letter} has {', '.join(own)}")
    lines = ["settings that differ (A | B):", *lines] if lines else ["all settings are the same"]
    return [*lines, f"code: commit {a.code} in both" if a.code == b.code else f"code: {a.code} | {b.code}"]


# -- curves ------------------------------------------------------------------------------------------------------------


def curves(a: Run, b: Run) -> list[str]:
    """Shows the evaluations at the same env steps side by side, their mean difference, and which run learned sooner."""
    if a.task != b.task:
        return [f"returns of {a.task} and {b.task} cannot be compared: they are different tasks"]
    ours, theirs = dict(a.curve), dict(b.curve)
    common = sorted(set(ours) & set(theirs))
    if not common:
        return ["there are no evaluations at the same env steps"]
    step = -(-len(common) // MOST_POINTS)
    shown = [*common[:-1:step], common[-1]]
    lines = [f"{'env steps':>12}  {'A':>10}  {'B':>10}  {'B - A':>10}"]
    lines += [f"{at:>12,}  {ours[at]:>10,.1f}  {theirs[at]:>10,.1f}  {theirs[at] - ours[at]:>+10,.1f}" for at in shown]
    mean = sum(theirs[at] - ours[at] for at in common) / len(common)
    lines.append(f"mean of B - A over {len(common)} evaluations: {mean:+,.1f}")
    goal = min(max(ours[at] for at in common), max(theirs[at] for at in common))
    first = [next(at for at in common if curve[at] >= goal) for curve in (ours, theirs)]
    lines.append(f"first return of at least {goal:,.1f}: A at {first[0]:,} env steps, B at {first[1]:,}")
    return lines


if __name__ == "__main__":
    answer(main)

"""run.html: a self-contained page about one run."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from mcurl_torchrl.files import write_file
from mcurl_torchrl.reports.charts import Point, line_chart
from mcurl_torchrl.reports.document import Block, Embedded, Heading, Paragraph, TableBlock, to_html
from mcurl_torchrl.training.evaluation import read_evaluations
from mcurl_torchrl.training.tables import read

__all__ = ["write_run_page"]

_LARGEST_VIDEO = 4_000_000  # bytes; a page should open at once
# The metrics that are drawn first, each with an explanation; the other metrics of a run follow. Names in one tuple
# share a chart.
_METRICS: dict[tuple[str, ...], str] = {
    ("loss_qvalue",): "The critic's loss. It may grow while the return grows, because values grow.",
    ("loss_value",): "The loss of the values.",
    ("loss_auxiliary",): "The auxiliary task's loss.",
    ("contrastive_accuracy", "contrastive_accuracy_zeroed"): (
        "How often a reconstruction is closest to its own key: at all hidden observations, and at zeroed observations, "
        "which only their neighbors in time can reconstruct."
    ),
    ("q_mean",): "The mean value. If it is far above the return of any episode, values diverge.",
    ("latent_rank",): "The effective rank of the latents. A rank of 1 or 2 is a collapse.",
    ("entropy",): "The policy's entropy.",
    ("alpha",): "SAC's entropy coefficient.",
}
_NOT_DRAWN = ("step", "env_steps", "seconds", "milliseconds_", "episode_return", "masked_fraction", "gradient_norm_")


def write_run_page(directory: str | Path) -> Path:
    """Writes ``run.html`` into a run directory: the curve, the newest video, the losses, the settings.

    The page is one file without scripts, for phone and desktop, light and dark. It is made fast from ``eval.csv``,
    ``metrics.csv``, ``result.json``, ``manifest.json`` and ``config.yaml``; missing files are left out, so that the
    page can be written at each evaluation and once more at the end.

    Args:
        directory (str or Path): the run directory.

    Returns:
        The path of the page.

    Raises:
        FileNotFoundError: if there is no such directory.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from mcurl_torchrl.reports import write_run_page
        >>> from mcurl_torchrl.training import Table
        >>> run = tempfile.TemporaryDirectory()
        >>> Table(f"{run.name}/eval.csv").append({"step": 0, "env_steps": 0, "episode": 0, "return": 3.5, "length": 9})
        >>> write_run_page(run.name).name
        'run.html'
        >>> run.cleanup()
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a run directory")
    result, manifest = _json(folder / "result.json"), _json(folder / "manifest.json")
    blocks: list[Block] = [*_summary(folder, result, manifest), *_evaluations(folder), *_metrics(folder)]
    config = folder / "config.yaml"
    if config.is_file():
        blocks += [Heading("Settings"), Paragraph("`config.yaml`, resolved.")]
    page = to_html(str(result.get("name", folder.name)), blocks)
    if config.is_file():
        settings = html.escape(config.read_text(encoding="utf-8"))
        page = page.replace("</main>", f'<pre tabindex="0">{settings}</pre>\n</main>')
    path = folder / "run.html"
    write_file(path, page.encode())
    return path


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _summary(folder: Path, result: dict[str, Any], manifest: dict[str, Any]) -> Iterator[Block]:
    """Yields a table of the command, the progress and the results of the run."""
    evaluations = read_evaluations(folder / "eval.csv") if (folder / "eval.csv").is_file() else []
    rows = [["state", "finished" if result.get("finished") else "under way, or stopped"]]
    if evaluations:
        steps, returns = evaluations[-1]
        rows.append(["environment steps, at the last evaluation", f"{steps:,}"])
        rows.append(
            ["return", f"{fmean(returns):,.1f} ({min(returns):,.1f} to {max(returns):,.1f}, {len(returns)} episodes)"]
        )
    if "best_return" in result:
        rows.append(["best evaluation", f"{result['best_return']:,.1f} at {result['best_env_steps']:,}"])
    git = manifest.get("git") or {}
    changed = ", with uncommitted changes" if git.get("dirty") else ""
    rows += [["command", f"`{manifest['command']}`"]] if "command" in manifest else []
    rows += [["commit", f"`{git['commit'][:12]}`{changed}"]] if git.get("commit") else []
    for name in ("device", "time"):
        rows += [[name, str(manifest[name])]] if name in manifest else []
    yield TableBlock("In short.", ["quantity", "value"], rows)


def _evaluations(folder: Path) -> Iterator[Block]:
    """Yields the curve and the newest video."""
    evaluations = read_evaluations(folder / "eval.csv") if (folder / "eval.csv").is_file() else []
    if not evaluations:
        return
    yield Heading("Evaluations")
    band = [(float(steps), min(returns), max(returns)) for steps, returns in evaluations]
    curve = line_chart("return", {"mean": [(steps, fmean(returns)) for steps, returns in evaluations]}, band=band)
    yield Embedded(
        curve, "Line: mean of the evaluation episodes; band: lowest to highest. These are episodes, not seeds."
    )
    # By the number in the name: copied files do not keep their times.
    videos = sorted((folder / "videos").glob("env_steps_*.mp4"), key=lambda path: int(path.stem.rpartition("_")[2]))
    if videos and videos[-1].stat().st_size <= _LARGEST_VIDEO:
        data = base64.b64encode(videos[-1].read_bytes()).decode()
        source = f"data:video/mp4;base64,{data}"
        yield Embedded(
            f'<video controls muted loop playsinline src="{source}"></video>', f"The newest video, {videos[-1].name}."
        )


def _metrics(folder: Path) -> Iterator[Block]:
    """Yields a chart for each metric of the run."""
    path = folder / "metrics.csv"
    columns: dict[str, list[Point]] = {}
    for row in read(path) if path.is_file() else []:
        for name, value in row.items():
            if isinstance(value, int | float) and math.isfinite(value) and not name.startswith(_NOT_DRAWN):
                columns.setdefault(name, []).append((row["env_steps"], value))
    known = {name for names in _METRICS for name in names}
    others: dict[tuple[str, ...], str] = {(name,): "" for name in columns if name not in known}
    charts = {**_METRICS, **others}
    drawn = [(names, text) for names, text in charts.items() if names[0] in columns]
    if drawn:
        yield Heading("Training")
    for names, text in drawn:
        lines = {_label(name, names): columns[name] for name in names if name in columns}
        yield Embedded(line_chart(names[0], lines), text)


def _label(name: str, names: tuple[str, ...]) -> str:
    """Returns the label of a line: in a chart of several lines, the part of its name after the first line's name."""
    return name.removeprefix(names[0]).strip("_") or "all" if len(names) > 1 else name

"""The page of one run: what is on it, that it needs nothing else, and that what is missing is left out."""

from __future__ import annotations

import base64
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mcurl_torchrl.reports import write_run_page
from mcurl_torchrl.training import Table

RUN = Path(__file__).parents[2] / "benchmarks/results/first_looks/sac_mcurl/cartpole-swingup/mcurl-seed1"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def test_it_shows_a_real_run(run: Path) -> None:
    path = write_run_page(run)
    page = path.read_text(encoding="utf-8")
    assert path == run / "run.html"
    assert "<h1>cartpole-swingup, mcurl, seed 1</h1>" in page
    assert "323.2 (268.8 to 357.8, 10 episodes)" in page
    assert "<code>4c3352a971da</code>" in page
    for chart in ("return", "loss_qvalue", "contrastive_accuracy", "latent_rank", "loss_contrastive"):
        assert f'class="name" x="4" y="16">{chart}</text>' in page
    assert "milliseconds" not in page.split("<pre")[0]
    assert "mask_ratio: 0.5" in page.split("<pre")[1]


def test_it_is_one_whole_file(run: Path) -> None:
    class Tags(HTMLParser):
        open: list[str] = []
        void = {"meta", "link", "line", "polyline", "polygon", "circle"}

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.open += [] if tag in self.void else [tag]
            for name, value in attrs:
                assert name not in ("src", "href") or str(value).startswith("data:")

        def handle_endtag(self, tag: str) -> None:
            if tag not in self.void:
                assert self.open.pop() == tag

    page = write_run_page(run).read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "<script" not in page
    assert re.search(r"url\(|@import", page) is None


def test_a_run_that_has_just_begun_has_a_page(tmp_path: Path) -> None:
    assert "under way" in write_run_page(tmp_path).read_text(encoding="utf-8")
    Table(tmp_path / "eval.csv").append({"step": 0, "env_steps": 0, "episode": 0, "return": 2.0, "length": 9})
    Table(tmp_path / "metrics.csv").append({"step": 100, "env_steps": 400, "loss_value": float("nan"), "seconds": 1.0})
    page = write_run_page(tmp_path).read_text(encoding="utf-8")
    assert "2.0 (2.0 to 2.0, 1 episodes)" in page
    assert "loss_value" not in page


def test_the_best_evaluation_is_that_of_the_result(tmp_path: Path) -> None:
    """The evaluation before training is never the best, as in result.json."""
    for step, total in ((0, 9.0), (100, 5.0)):
        row = {"step": step, "env_steps": step, "episode": 0, "return": total, "length": 9}
        Table(tmp_path / "eval.csv").append(row)
    (tmp_path / "result.json").write_text(json.dumps({"best_return": 5.0, "best_env_steps": 100}), encoding="utf-8")
    page = write_run_page(tmp_path).read_text(encoding="utf-8")
    assert "5.0 at 100" in page and "9.0 at 0" not in page


def test_settings_cannot_become_markup(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("title: <b>bold</b>\n", encoding="utf-8")
    (tmp_path / "result.json").write_text(json.dumps({"name": "<i>", "finished": True}), encoding="utf-8")
    page = write_run_page(tmp_path).read_text(encoding="utf-8")
    assert "title: &lt;b&gt;bold&lt;/b&gt;" in page
    assert "<h1>&lt;i&gt;</h1>" in page


def test_the_newest_video_is_inside(tmp_path: Path) -> None:
    Table(tmp_path / "eval.csv").append({"step": 0, "env_steps": 0, "episode": 0, "return": 2.0, "length": 9})
    (tmp_path / "videos").mkdir()
    for steps in (100_000, 20_000):
        (tmp_path / "videos" / f"env_steps_{steps}.mp4").write_bytes(f"film {steps}".encode())
    page = write_run_page(tmp_path).read_text(encoding="utf-8")
    assert re.findall(r"base64,([^\"]+)", page) == [base64.b64encode(b"film 100000").decode()]


def test_a_large_video_is_left_out(run: Path) -> None:
    (run / "videos").mkdir()
    (run / "videos" / "env_steps_1.mp4").write_bytes(bytes(5_000_000))
    page = write_run_page(run)
    assert "<video" not in page.read_text(encoding="utf-8")
    assert page.stat().st_size < 300_000


def test_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is not a run directory"):
        write_run_page(tmp_path / "nowhere")

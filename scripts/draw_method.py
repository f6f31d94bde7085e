"""Draws docs/method.svg: the method in one picture, with frames of a real environment.

    python scripts/draw_method.py [--out docs/method.svg]

Frames are rendered, cropped and hidden here; the rest are boxes and arrows. The colours follow the reader's system, by
day and by night, and the picture has a background of its own, so that it can be read on any page.
"""

from __future__ import annotations

import argparse
import base64
import io
import math
from html import escape
from pathlib import Path

import torch
from PIL import Image

from mcurl_torchrl import make_dmc_env

WIDTH, HEIGHT = 1240, 640
COUNT, PIXELS, SHOWN, MARGIN = 5, 200, 76, 32  # frames, their size as rendered and as drawn, and what a crop leaves out
HIDDEN = {1: "zeros", 3: "another"}  # which of the query view, and what they become
STYLE = """
  .page { fill: #ffffff; stroke: #d5dae1; }
  text { fill: #1d2126; font-family: system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
  .title { font-size: 19px; font-weight: 650; }
  .label { font-size: 17px; }
  .small { font-size: 15px; fill: #535c67; }
  .box { fill: #f2f5f9; stroke: #aab4c0; stroke-width: 1.5; }
  .learned { fill: #e3eefb; stroke: #2f7cc4; stroke-width: 1.8; }
  .slow { fill: #fdf1dd; stroke: #c98a1b; stroke-width: 1.8; stroke-dasharray: 7 4; }
  .loss { fill: #f9e5ec; stroke: #c2396a; stroke-width: 1.8; }
  .frame { stroke: #8a94a0; stroke-width: 1; fill: none; }
  .hidden { stroke: #c2396a; stroke-width: 3; fill: none; }
  .line { stroke: #5c6570; stroke-width: 1.8; fill: none; marker-end: url(#arrow); }
  .plain { stroke: #5c6570; stroke-width: 1.8; fill: none; }
  .copy { stroke: #c98a1b; stroke-width: 1.8; fill: none; stroke-dasharray: 7 4; marker-end: url(#arrow-slow); }
  .tip { fill: #5c6570; } .tip-slow { fill: #c98a1b; }
  .query { fill: #2f7cc4; } .key { fill: #c98a1b; } .quiet { fill: #b9cfe8; }
  .cell { fill: #eef1f5; } .own { fill: #c2396a; } .other { fill: #f3c6d5; }
  .band { fill: #f7f8fa; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #16191e; stroke: #343b44; }
    text { fill: #e8eaed; } .small { fill: #a7b0bb; }
    .box { fill: #22272e; stroke: #59636f; } .learned { fill: #17304a; stroke: #5aa9ea; }
    .slow { fill: #3a2c12; stroke: #e0a73e; } .loss { fill: #41192a; stroke: #ec7aa2; }
    .frame { stroke: #6b7580; } .hidden { stroke: #ec7aa2; }
    .line, .plain { stroke: #a7b0bb; } .tip { fill: #a7b0bb; } .copy { stroke: #e0a73e; } .tip-slow { fill: #e0a73e; }
    .query { fill: #5aa9ea; } .key { fill: #e0a73e; } .quiet { fill: #2d4a68; }
    .cell { fill: #2a3038; } .own { fill: #ec7aa2; } .other { fill: #5d2b40; }
    .band { fill: #1b1f25; }
  }
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "docs" / "method.svg")
    options = parser.parse_args()
    options.out.write_text(draw(render_frames(COUNT + 1)), encoding="utf-8")
    print(f"{options.out}: {options.out.stat().st_size / 1000:.0f} kB")


def render_frames(count: int) -> list[Image.Image]:
    """Consecutive frames of an episode, and one from later on."""
    env = make_dmc_env("cheetah-run", image_size=PIXELS, num_frames=1, action_repeat=4, seed=4)
    observation = env.reset()
    frames = []
    for step in range(60):
        swing = math.sin(step / 1.6)
        observation["action"] = torch.tensor([swing, -swing, swing, -swing, swing, -swing])
        observation = env.step(observation)["next"]
        frames.append(Image.fromarray(observation["pixels"].permute(1, 2, 0).numpy()))
    return [*frames[20 : 20 + count - 1], frames[50]]


# -- shapes ------------------------------------------------------------------------------------------------------------


def text(x: float, y: float, *lines: str, kind: str = "label", anchor: str = "middle", gap: int = 21) -> str:
    spans = "".join(
        f'<tspan x="{x}" dy="{gap if n else 0}">{line}</tspan>' for n, line in enumerate(map(escape, lines))
    )
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}">{spans}</text>'


def symbol(x: float, y: float, letter: str, index: str, kind: str = "label") -> str:
    """A letter with an index, such as f of theta."""
    low = f'<tspan dy="5" font-size="12">{escape(index)}</tspan>'
    return f'<text x="{x}" y="{y}" text-anchor="middle" class="{kind}" font-style="italic">{escape(letter)}{low}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" class="{kind}"/>'


def arrow(*points: tuple[float, float], kind: str = "line") -> str:
    path = " L ".join(f"{x} {y}" for x, y in points)
    return f'<path d="M {path}" class="{kind}"/>'


def frame(x: float, y: float, number: int, *, crop: tuple[int, int] | None = None, kind: str = "frame") -> str:
    """A frame, whole or from an offset; what is inside is the picture of this number."""
    left, top, size = (*crop, PIXELS - MARGIN) if crop else (0, 0, PIXELS)
    inside = f'<use href="#frame{number}"/>'
    view = f'<svg x="{x}" y="{y}" width="{SHOWN}" height="{SHOWN}" viewBox="{left} {top} {size} {size}">{inside}</svg>'
    return view + f'<rect x="{x}" y="{y}" width="{SHOWN}" height="{SHOWN}" class="{kind}"/>'


def black(x: float, y: float) -> str:
    return f'<rect x="{x}" y="{y}" width="{SHOWN}" height="{SHOWN}" fill="#000000"/>' + (
        f'<rect x="{x}" y="{y}" width="{SHOWN}" height="{SHOWN}" class="hidden"/>'
    )


def tokens(x: float, y: float, kind: str, quiet: set[int] = frozenset()) -> str:
    """Latents, one for each observation."""
    return "".join(
        f'<rect x="{x + 17 * n}" y="{y}" width="12" height="46" rx="3" class="{"quiet" if n in quiet else kind}"/>'
        for n in range(COUNT)
    )


def embedded(images: list[Image.Image]) -> str:
    """The pictures, each once."""
    parts = []
    for number, image in enumerate(images):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=88)
        data = base64.b64encode(file.getvalue()).decode()
        parts.append(
            f'<image id="frame{number}" width="{PIXELS}" height="{PIXELS}" href="data:image/jpeg;base64,{data}"/>'
        )
    return "".join(parts)


def tip(name: str, kind: str) -> str:
    shape = f'<path d="M 0 0 L 9 4.5 L 0 9 z" class="{kind}"/>'
    place = 'markerWidth="7" markerHeight="7" viewBox="0 0 9 9" refX="8" refY="4.5" orient="auto"'
    return f'<marker id="{name}" {place}>{shape}</marker>'


# -- the picture -------------------------------------------------------------------------------------------------------


def draw(images: list[Image.Image]) -> str:
    parts = [replay(), query_branch(), key_branch(), contrast(), rl_lane()]
    definitions = f"<defs>{tip('arrow', 'tip')}{tip('arrow-slow', 'tip-slow')}{embedded(images)}</defs>"
    page = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="14" class="page"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    title = (
        "<title>M-CURL: hidden observations are reconstructed from their neighbours, beside RL on one encoder</title>"
    )
    return f"{head}{title}<style>{STYLE}</style>{definitions}{page}{''.join(parts)}</svg>\n"


QUERY_Y, KEY_Y, STRIP_X = 84, 292, 262
STEP = SHOWN + 8


def replay() -> str:
    """On the left: where slices come from."""
    strip = [frame(34 + 12 * n, 166 + 16 * n, n) for n in range(COUNT)]
    return "".join(
        [
            text(104, 128, "replay buffer", kind="title"),
            text(104, 150, "one frame for each step", kind="small"),
            *strip,
            text(104, 342, "a slice: T consecutive", "observations", kind="small", gap=19),
            arrow((166, 226), (214, 226), (214, QUERY_Y + SHOWN / 2), (STRIP_X - 12, QUERY_Y + SHOWN / 2)),
            arrow((214, 226), (214, KEY_Y + SHOWN / 2), (STRIP_X - 12, KEY_Y + SHOWN / 2)),
        ]
    )


def query_branch() -> str:
    """Above: crops, some hidden, encoder, Transformer."""
    offsets = [(4, 20), (22, 6), (28, 28), (10, 14), (18, 30)]
    shown = []
    for n in range(COUNT):
        x = STRIP_X + STEP * n
        if HIDDEN.get(n) == "zeros":
            shown.append(black(x, QUERY_Y))
        elif HIDDEN.get(n) == "another":
            shown.append(frame(x, QUERY_Y, COUNT, crop=offsets[n], kind="hidden"))
        else:
            shown.append(frame(x, QUERY_Y, n, crop=offsets[n]))
    middle, right = QUERY_Y + SHOWN / 2, STRIP_X + STEP * COUNT
    return "".join(
        [
            text(STRIP_X, QUERY_Y - 38, "query view: crop, then hide", kind="title", anchor="start"),
            text(STRIP_X, QUERY_Y - 15, "each stack has its own crop", kind="small", anchor="start"),
            *shown,
            text(STRIP_X, QUERY_Y + SHOWN + 24, "hidden: 80 % zeros, 10 % another observation,", "10 % unchanged",
                 kind="small", anchor="start", gap=19),
            arrow((right - 2, middle), (right + 22, middle)),
            box(right + 24, QUERY_Y - 8, 112, SHOWN + 16, "learned"),
            text(right + 80, middle - 4, "encoder"), symbol(right + 80, middle + 20, "f", "θ"),
            arrow((right + 138, middle), (right + 156, middle)),
            tokens(right + 160, middle - 23, "query", set(HIDDEN)),
            arrow((right + 244, middle), (right + 262, middle)),
            box(right + 264, QUERY_Y - 8, 124, SHOWN + 16, "learned"),
            text(right + 326, middle - 4, "Transformer"),
            text(right + 326, middle + 19, "in training only", kind="small"),
        ]
    )  # fmt: skip


def key_branch() -> str:
    """Below: other crops, the slow encoder."""
    offsets = [(24, 8), (6, 26), (12, 4), (26, 18), (8, 10)]
    shown = [frame(STRIP_X + STEP * n, KEY_Y, n, crop=offsets[n]) for n in range(COUNT)]
    middle, right = KEY_Y + SHOWN / 2, STRIP_X + STEP * COUNT
    return "".join(
        [
            text(STRIP_X, KEY_Y - 15, "key view: other crops, nothing hidden", kind="title", anchor="start"),
            *shown,
            arrow((right - 2, middle), (right + 22, middle)),
            box(right + 24, KEY_Y - 8, 112, SHOWN + 16, "slow"),
            text(right + 80, middle - 12, "momentum", "encoder", gap=20), symbol(right + 80, middle + 29, "f", "θk"),
            arrow((right + 80, QUERY_Y + SHOWN + 8), (right + 80, KEY_Y - 10), kind="copy"),
            text(right + 92, (QUERY_Y + KEY_Y + SHOWN) / 2 + 4, "follows slowly", kind="small", anchor="start"),
            arrow((right + 138, middle), (right + 156, middle)),
            tokens(right + 160, middle - 23, "key"),
        ]
    )  # fmt: skip


def contrast() -> str:
    """On the right: which key belongs to each reconstruction."""
    right = STRIP_X + STEP * COUNT
    x, y, cell = 1118, 196, 20
    cells = [
        f'<rect x="{x + cell * column}" y="{y + cell * row}" width="{cell - 3}" height="{cell - 3}" rx="2" '
        f'class="{cell_kind(row, column)}"/>'
        for row in range(COUNT)
        for column in range(COUNT)
    ]
    query, key, side = QUERY_Y + SHOWN / 2, KEY_Y + SHOWN / 2, x + cell * COUNT / 2
    return "".join(
        [
            arrow((right + 390, query), (side, query), (side, y - 8)),
            text(side - 10, query - 12, "queries", kind="small", anchor="end"),
            arrow((right + 244, key), (side, key), (side, y + cell * COUNT + 6)),
            text(side - 10, key + 22, "keys", kind="small", anchor="end"),
            *cells,
            text(x - 14, y + 26, "InfoNCE", kind="title", anchor="end"),
            text(x - 14, y + 49, "which key is the", "hidden one's own?", kind="small", anchor="end", gap=19),
        ]
    )


def cell_kind(row: int, column: int) -> str:
    if row not in HIDDEN:
        return "cell"
    return "own" if row == column else "other"


def rl_lane() -> str:
    """At the bottom: RL on the same encoder."""
    y, height = 424, 186
    middle = y + 92
    x = STRIP_X + STEP * COUNT + 24
    first = STRIP_X
    return "".join(
        [
            f'<rect x="18" y="{y}" width="{WIDTH - 36}" height="{height}" rx="12" class="band"/>',
            text(36, y + 32, "beside it: RL", kind="title", anchor="start"),
            text(36, y + 56, "SAC or Rainbow, on single", "transitions of the same", "replay buffer", kind="small",
                 anchor="start", gap=19),
            frame(first, middle - 38, 0, crop=(16, 16)),
            text(first + SHOWN / 2, middle + 62, "observation", kind="small"),
            text(first + SHOWN + 66, middle + 6, "action, reward"),
            frame(first + SHOWN + 132, middle - 38, 2, crop=(16, 16)),
            text(first + SHOWN + 132 + SHOWN / 2, middle + 62, "next observation", kind="small"),
            arrow((first + 2 * SHOWN + 140, middle), (x - 2, middle)),
            box(x, middle - 46, 112, 92, "learned"),
            text(x + 56, middle - 4, "encoder"), symbol(x + 56, middle + 20, "f", "θ"),
            text(x + 56, middle - 58, "the same", kind="small"),
            arrow((x + 114, middle), (x + 160, middle)),
            box(x + 162, middle - 46, 150, 92, "learned"),
            text(x + 237, middle - 4, "actor, critic"), text(x + 237, middle + 19, "or Q-network", kind="small"),
            arrow((x + 314, middle), (x + 360, middle)),
            box(x + 362, middle - 30, 122, 60, "loss"),
            text(x + 423, middle + 6, "RL loss"),
            arrow((x, middle + 66), (x + 312, middle + 66), kind="plain"),
            text(x + 156, middle + 86, "what acts after training", kind="small"),
        ]
    )  # fmt: skip


if __name__ == "__main__":
    main()

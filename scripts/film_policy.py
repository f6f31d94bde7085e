"""Films a trained Atari policy as a GIF with the coloured screen; the policy itself gets grey frames of 84x84.

python scripts/film_policy.py recipes/policies/roadrunner --game RoadRunner --out docs/roadrunner.gif --seconds 12
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import imageio_ffmpeg
import numpy as np

from mcurl_torchrl import load_policy, make_atari_env

FPS = 15  # decisions a second, as on a console


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run directory, or a folder of evaluate.py pack=FOLDER")
    parser.add_argument("--game", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--start", type=float, default=0.0, help="seconds of the game to leave out")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    screens, score = play(options.run, options.game, options.seed, int(FPS * (options.start + options.seconds)))
    write_gif(options.out, screens[int(FPS * options.start) :])
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB, score {score:.0f} so far")


def play(run: str, game: str, seed: int, steps: int) -> tuple[list[np.ndarray], float]:
    """Plays from a game's start; returns the colour screens and the score."""
    policy = load_policy(run)
    env = make_atari_env(game, training=False, seed=seed)
    policy.reset()
    observation, screens, score = env.reset(), [], 0.0
    for _ in range(steps):
        observation["action"] = policy.network(observation["pixels"][None])[0]
        step = env.step(observation)["next"]
        screens.append(env.rendered_screen())
        score += step["reward"].item()
        if step["done"]:
            break
        observation = step
    return screens, score


def write_gif(path: Path, screens: list[np.ndarray]) -> None:
    """Writes a small GIF, with one palette for all screens and only the pixels that change."""
    frames = [
        np.ascontiguousarray(screen if screen.shape[-1] == 3 else screen.transpose(1, 2, 0)) for screen in screens
    ]
    height, width = frames[0].shape[:2]
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(FPS), "-i", "-"]
    # The pixels of the console are wider than high.
    scale = f"scale={2 * width}:{int(1.5 * height)}:flags=neighbor"
    palette = "split[a][b];[a]palettegen=max_colors=32[p];[b][p]paletteuse=dither=none:diff_mode=rectangle"
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-y",
        "-loglevel",
        "error",
        *raw,
        "-vf",
        f"{scale},{palette}",
        str(path),
    ]
    subprocess.run(command, input=b"".join(frame.tobytes() for frame in frames), check=True)


if __name__ == "__main__":
    main()

"""A slow, obvious frame replay to compare the real one with: Python lists, one row at a time, no index arithmetic.

It keeps every row ever written and calls the newest ``ring`` rows of a column alive. Everything it says is derived from
whole episodes, in which a row is found by looking for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Row:
    """A frame and, unless it is an episode's last, what was done there."""

    episode: int
    step: int
    frame: int
    action: int = 0
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final: bool = False


@dataclass
class Step:
    """One step of one environment.

    ``cut``: the episode before was left without an end. ``has_past``: if an episode begins here, its first observation
    is not padded but shows frames from before, which the buffer never got.
    """

    frame: int
    next_frame: int
    action: int
    reward: float
    terminated: bool
    truncated: bool
    cut: bool = False
    has_past: bool = False
    traj_id: int = 0  # what a collector would write; here nothing looks at it


@dataclass
class PlainReplay:
    """The rows of all columns, and what can be made of them."""

    ring: int
    num_columns: int
    # From which step on an episode that has a past is counted.
    first_step_with_past: int = 0
    columns: list[list[Row]] = field(default_factory=list)
    num_episodes: int = 0

    def __post_init__(self) -> None:
        self.columns = [[] for _ in range(self.num_columns)]
        self._next_frame: list[int | None] = [None] * self.num_columns

    def write(self, column: int, step: Step) -> None:
        """Adds a step; an episode's end adds one row more."""
        rows = self.columns[column]
        under_way = bool(rows) and not rows[-1].final
        if under_way and step.cut:
            self._finish(column, truncated=True)
            under_way = False
        if under_way:
            episode, number = rows[-1].episode, rows[-1].step + 1
        else:
            episode, number = self.num_episodes, self.first_step_with_past if step.has_past else 0
            self.num_episodes += 1
        rows.append(Row(episode, number, step.frame, step.action, step.reward, step.terminated, step.truncated))
        self._next_frame[column] = step.next_frame
        if step.terminated or step.truncated:
            self._finish(column)

    def _finish(self, column: int, truncated: bool = False) -> None:
        last = self.columns[column][-1]
        last.truncated = last.truncated or truncated
        self.columns[column].append(Row(last.episode, last.step + 1, self._next_frame[column], final=True))

    def alive(self, column: int) -> list[tuple[int, Row]]:
        """Returns the place in the ring and the row, oldest first."""
        rows = self.columns[column]
        numbered = [(number % self.ring, row) for number, row in enumerate(rows)]
        return numbered[-self.ring :]

    def _episodes(self, column: int) -> dict[int, dict[int, tuple[int, Row]]]:
        episodes: dict[int, dict[int, tuple[int, Row]]] = {}
        for place, row in self.alive(column):
            episodes.setdefault(row.episode, {})[row.step] = (place, row)
        return episodes

    @staticmethod
    def _stack(episode: dict[int, tuple[int, Row]], step: int, num_frames: int, padding: str) -> list[int] | None:
        stack = []
        for number in range(step - num_frames + 1, step + 1):
            if number < 0 and padding == "zeros":
                stack.append(0)
                continue
            if max(number, 0) not in episode:
                return None
            stack.append(episode[max(number, 0)][1].frame)
        # Without the episode's first frame it is not known that nothing came before it.
        if step - num_frames + 1 < 0 and 0 not in episode:
            return None
        return stack

    def transitions(self, num_frames: int, n_step: int, gamma: float, padding: str = "repeat") -> dict[tuple, dict]:
        """Returns all n-step transitions by (place, column)."""
        found = {}
        for column in range(self.num_columns):
            for episode in self._episodes(column).values():
                for step, (place, row) in episode.items():
                    if row.final:
                        continue
                    stack = self._stack(episode, step, num_frames, padding)
                    reward, count, last = 0.0, 0, None
                    while count < n_step and step + count in episode and not episode[step + count][1].final:
                        last = episode[step + count][1]
                        reward += gamma**count * last.reward
                        count += 1
                        if last.terminated or last.truncated:
                            break
                    assert last is not None
                    over = last.terminated or last.truncated
                    if stack is None or step + count not in episode or not (count == n_step or over):
                        continue
                    next_stack = self._stack(episode, step + count, num_frames, padding)
                    assert next_stack is not None
                    found[place, column] = {
                        "pixels": stack,
                        "next_pixels": next_stack,
                        "action": row.action,
                        "reward": reward,
                        "terminated": last.terminated,
                        "truncated": last.truncated,
                        "steps": count,
                        "step": step,
                    }
        return found

    def slices(self, num_frames: int, slice_len: int, padding: str = "repeat") -> dict[tuple, dict]:
        """Returns all slices by the (place, column) of their first row."""
        found = {}
        for column in range(self.num_columns):
            for episode in self._episodes(column).values():
                for step, (place, _) in episode.items():
                    numbers = range(step, step + slice_len)
                    if any(number not in episode for number in numbers):
                        continue
                    stacks = [self._stack(episode, number, num_frames, padding) for number in numbers]
                    if any(stack is None for stack in stacks):
                        continue
                    rows = [episode[number][1] for number in numbers]
                    found[place, column] = {
                        "pixels": stacks,
                        "step": list(numbers),
                        "action": [row.action for row in rows],
                        "reward": [row.reward for row in rows],
                        "final": [row.final for row in rows],
                    }
        return found

    def longest(self) -> int:
        """Returns the length of the longest run of rows of one episode."""
        return max(len(episode) for column in range(self.num_columns) for episode in self._episodes(column).values())

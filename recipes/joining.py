"""Joins the ranks that torchrun started, if it did: processes that train one run together."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from mcurl_torchrl.ranks import RankLost, Ranks, join_ranks
from recipes.command_line import is_multirun, program


@contextlib.contextmanager
def joined_ranks(*, allowed: bool) -> Iterator[Ranks]:
    """Yields the ranks of this program: one without torchrun. A wrong start ends with an error message."""
    try:
        ranks = join_ranks()
    except (ValueError, RankLost) as error:
        sys.exit(f"{program()}: {error}")
    try:
        if ranks.count > 1 and (reason := why_not(allowed)):
            sys.exit(f"{program()}: {reason}" if ranks.leads else 1)
        yield ranks
    finally:
        ranks.leave()


def why_not(allowed: bool) -> str | None:
    """Returns the reason why several ranks cannot run this command line, None if they can."""
    if not allowed:
        return "this script learns in one process; torchrun works with sac_mcurl.py and rainbow_mcurl.py"
    if is_multirun(sys.argv):
        return "torchrun starts the ranks of one run, and -m starts several runs: start each run with its own torchrun"
    return None

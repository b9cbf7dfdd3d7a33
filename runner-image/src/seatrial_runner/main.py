"""``seatrial-runner stage|agent|verifier|context|fetch|script|score``: the one entry point of the runner image.

Why no argparse and no imports up here: every trial starts three of these, and each part loads only what it needs.
``python3 -S -c "from seatrial_runner.main import main; main()" agent`` works too and skips the site packages.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

_ALLOCATIONS: Final = 50_000
"""Before garbage is looked for: imports alone allocate more often than the default allows without leaving any."""
USAGE = "usage: seatrial-runner stage|agent|verifier|context|fetch|script|score"


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one part and exit with its code; 2 for a wrong call."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    gc.set_threshold(_ALLOCATIONS)
    code = run(arguments)
    if arguments[:1] in (["stage"], ["agent"], ["verifier"]):
        # Code of ours alone, and its files are closed: what is left to take down is a fifth of the time of a short trial.
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            pass  # nobody reads the log any more; the code counts
        finally:
            os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """As ``main``, but returns the code."""
    from seatrial_runner.paths import paths_of

    paths = paths_of(os.environ)
    match list(arguments):
        case ["stage"]:
            from seatrial.contract import STAGE_UID
            from seatrial_runner import stage

            return stage.run(paths, os.environ, become=STAGE_UID)
        case ["agent"]:
            from seatrial_runner import agent

            return agent.run(paths, os.environ)
        case ["verifier"]:
            from seatrial_runner import verifier

            return verifier.run(paths, os.environ)
        case ["context"]:
            from seatrial_runner import build_context

            return build_context.run(paths, os.environ)
        case ["fetch"]:
            from seatrial_runner import score

            return score.fetch(paths, os.environ)
        case ["script"]:
            from seatrial_runner import score

            score.give_up_network()
            return score.script(paths, os.environ)
        case ["score"]:
            from seatrial_runner import score

            return score.score(paths, os.environ)
        case _:
            sys.stderr.write(USAGE + "\n")
            return 2

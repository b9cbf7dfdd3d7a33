"""``python -m tests.perf``: the control loop under load, against a real API server; figures go to ``build/bench.json`` and the docs.

python -m tests.perf                        100 and 1,000 trials, then 100 jobs of 10
python -m tests.perf --trials 10000 --bystanders 10000 --restart 90    one job of that size, and what a restart near its end costs
python -m tests.perf --trials 2000 --handover    leaders that are killed, paused and stopped, with a second replica
python -m tests.perf --trials 10000 --live       a leader that is killed while all of them are live Pods
python -m tests.perf --trials 1000 --profile build/operator.prof
"""

from __future__ import annotations

import argparse
import pstats
import sys
import tempfile
from pathlib import Path

from ..bench.record import Figure, figure, load_average, record
from .handover import final, handover_of_live_pods, handovers, restart
from .load import Load, Watched
from .operator_process import OperatorProcess
from .plane import Plane, wait_for
from .stages import Shares

TASKS = 10
LIMIT_SECONDS = 1800
LONG_BUSY_MS = 7_200_000
"""Life of Pods that shall not end."""


def main() -> None:
    arguments = _arguments()
    sizes = arguments.trials or [100, 1000]
    command = f"python -m tests.perf {' '.join(sys.argv[1:])}".strip()
    folder = Path(tempfile.mkdtemp(prefix="seatrial-perf-"))
    with Plane(folder, shares=Shares(busy_ms=LONG_BUSY_MS if arguments.live else arguments.busy_ms), keep=arguments.keep) as plane:
        print(f"control plane at {plane.server}, folder {folder}", flush=True)
        load = Load(plane)
        load.namespace()
        if arguments.bystanders:
            load.bystanders(arguments.bystanders)
            print(f"{arguments.bystanders} Tasks that nobody uses", flush=True)
        operator = OperatorProcess(plane, profile=arguments.profile)
        operator.start()
        operator.ready()
        load.publish(TASKS)
        wait_for("verified Tasks", load.verified, seconds=120, every=1.0)
        for size in sizes:
            operator = run(load, operator, size, arguments, command=command)
        if not arguments.trials:
            names = submit(load, 1000, jobs=100, concurrency=5)
            record(measure(load, operator, names, 1000, command=command))
        if arguments.profile:
            operator.stop()
            pstats.Stats(str(arguments.profile)).sort_stats("tottime").print_stats(45)
            print("longest calls of the event loop, in CPU seconds under the profiler:")
            print(Path(f"{arguments.profile}.callbacks").read_text())


def run(load: Load, operator: OperatorProcess, size: int, arguments: argparse.Namespace, *, command: str) -> OperatorProcess:
    """One load to its end; its figures are recorded as they come, unless a profiler falsifies them. The answer is the last operator."""
    keep = (lambda figures: None) if arguments.profile else record
    if arguments.live:
        load.submit(f"live-{size}", tasks=TASKS, attempts=size // TASKS, concurrency=size)
        operator, found = handover_of_live_pods(load, operator, size, command=command)
        keep(found)
        tell(found)
        return operator
    names = submit(load, size, jobs=arguments.jobs, concurrency=arguments.concurrency)
    if not (arguments.handover or arguments.restart):
        keep(measure(load, operator, names, size, command=command))
        return operator
    if arguments.handover:
        operator, found = handovers(load, operator, names[0], size // arguments.jobs, command=command)
    else:
        keep(measure_until(load, operator, names[0], size * arguments.restart // 100, of=size, command=command))
        operator, found = restart(load, operator, size, command=command)
    keep(found)
    tell(found)
    load.watch(operator, lambda: load.ended(names), seconds=LIMIT_SECONDS)
    print(f"outcomes {dict(load.check(names, trials=size // len(names)))}", flush=True)
    largest = status_size(load, names, label(names, size), command=command)
    keep([largest])
    tell([largest])
    return operator


def submit(load: Load, trials: int, *, jobs: int, concurrency: int) -> list[str]:
    """``trials`` in ``jobs`` equal EvalJobs; their names."""
    names = [f"load-{trials}-{jobs}-{number:03d}" for number in range(jobs)]
    per_job = trials // jobs
    tasks = min(TASKS, per_job)
    for name in names:
        load.submit(name, tasks=tasks, attempts=per_job // tasks, concurrency=concurrency)
    return names


def measure(load: Load, operator: OperatorProcess, names: list[str], trials: int, *, command: str) -> list[Figure]:
    """Run to the end, check what must hold, and give the figures of ``trials`` trials in all."""
    watched = load.watch(operator, lambda: load.ended(names), seconds=LIMIT_SECONDS)
    outcomes = load.check(names, trials=trials // len(names))
    found = figures_of(watched, trials, label=label(names, trials), command=command)
    found.append(status_size(load, names, label(names, trials), command=command))
    print(f"{label(names, trials)}: {watched.seconds:.0f} s, outcomes {dict(outcomes)}", flush=True)
    show(watched, found)
    return found


def measure_until(load: Load, operator: OperatorProcess, name: str, count: int, *, of: int, command: str) -> list[Figure]:
    """The figures until ``count`` trials of a job of ``of`` are final; each is named after the whole job."""
    watched = load.watch(operator, final(load, name, count), seconds=LIMIT_SECONDS)
    found = figures_of(watched, count, label=label([name], of), command=command, part=f"until {count} had ended; ")
    print(f"{count} of {of} trials: {watched.seconds:.0f} s", flush=True)
    show(watched, found)
    return found


def label(names: list[str], trials: int) -> str:
    return f"{trials} trials" + (f" in {len(names)} jobs" if len(names) > 1 else "")


def status_size(load: Load, names: list[str], text: str, *, command: str) -> Figure:
    size = max(len(str(load.job(name)["status"])) for name in names)
    return figure(f"{text}: status size", size / 1024, "KiB", command=command, note="target < 64")


def tell(found: list[Figure]) -> None:
    for item in found:
        print(f"  {item.name}: {item.value:g} {item.unit}  {item.note}", flush=True)


def show(watched: Watched, found: list[Figure]) -> None:
    tell(found)
    for name, count in watched.requests().items():
        print(f"    {name}: {count:.0f}", flush=True)
    passes = watched.grown("seatrial_pass_seconds_count", kind="EvalJob")
    print(f"    passes: {passes:.0f}, {watched.grown('seatrial_pass_seconds_sum', kind='EvalJob'):.1f} s", flush=True)


def figures_of(watched: Watched, trials: int, *, label: str, command: str, part: str = "") -> list[Figure]:
    """The figures of operator.md section 17 that one run of ``trials`` trials gives; ``part`` says so where they are not all."""
    ours = ("pods", "evaljobs", "events", "secrets")
    requests = sum(count for name, count in watched.requests().items() if name.split()[1].partition("/")[0] in ours)
    values: list[tuple[str, float, str, str]] = [
        ("wall time", watched.seconds, "s", f"{part}{load_average()}"),
        ("trials per second", trials / watched.seconds, "1/s", ""),
        ("API requests", requests / trials, "requests/trial", "target <= 2.5"),
        ("CPU of the operator", 1000 * watched.cpu_seconds / trials, "ms/trial", f"target <= 10 at 10,000; {load_average()}"),
        ("RSS", watched.rss_bytes / 2**20, "MiB", f"target < 300; {watched.live_pods:.0f} live Pods at most"),
        ("longest loop stall", watched.last.one("seatrial_loop_lag_max_seconds"), "s", "target < 0.5; since the start of the process"),
        (
            "longest loop stall by our own CPU time",
            watched.last.one("seatrial_loop_own_lag_max_seconds"),
            "s",
            "target < 0.5; the rest of the longest stall is the machine's other work",
        ),
        ("oldest queued key", watched.queue_seconds, "s", "target p99 < 5"),
        ("status writes", watched.grown("seatrial_status_writes_total", kind="EvalJob") / watched.seconds, "1/s", "target <= 0.5 a job"),
        ("store calls", watched.grown("seatrial_store_requests_total") / trials, "calls/trial", ""),
        ("differences found by relists", watched.grown("seatrial_informer_differences_total"), "", "target 0"),
    ]
    return [figure(f"{label}: {name}", value, unit, command=command, note=note) for name, value, unit, note in values]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.perf", description=__doc__)
    parser.add_argument("--trials", type=int, action="append", help="size of the load; repeat for more")
    parser.add_argument("--jobs", type=int, default=1, help="split each load into so many EvalJobs")
    parser.add_argument("--concurrency", type=int, default=300, help="of each job")
    parser.add_argument("--bystanders", type=int, default=0, help="Tasks that exist beside the ones in use")
    parser.add_argument("--busy-ms", type=int, default=2000, help="shortest life of a Pod")
    parser.add_argument("--handover", action="store_true", help="replace the leader three times under each load, and measure that instead")
    parser.add_argument("--live", action="store_true", help="make every trial a live Pod, kill the leader then, and measure that instead")
    parser.add_argument(
        "--restart", type=int, metavar="PERCENT", help="kill the operator when so many trials of a load of one job have ended"
    )
    parser.add_argument("--profile", type=Path, help="run the operator under cProfile and print what dominates; records no figure")
    parser.add_argument("--keep", action="store_true", help="leave data and logs")
    return parser.parse_args()


if __name__ == "__main__":
    main()

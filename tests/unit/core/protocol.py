"""The protocol of operator, Pod and store as a graph: states are values, every step of every party is an edge.

The operator's decisions are the real ``plan``. What is modelled is around it: the API server's Pods, an informer that lags behind them as
long as it likes, the store, and a process that dies between any two actions. Time passes at will: back-offs are always over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal, NamedTuple

from seatrial.core.actions import CommitRow
from seatrial.core.observe import PodView
from seatrial.core.plan import Observed, Plan, plan
from seatrial.core.rows import Row, by_trial, from_lines, to_lines
from seatrial.core.trial import Found, Limits, read_result
from tests.builders import NOW, JobBuilder, ago, make_job, make_pods

Phase = Literal["pending", "running", "committed", "done", "evicted", "leaving", "stranded"]
FINAL: frozenset[Phase] = frozenset({"done", "evicted"})
LONG_AGO = ago(86_400)


class Pod(NamedTuple):
    """A Pod of one retry; ``life`` tells a later Pod of the same name from it."""

    trial: int
    retry: int
    life: int
    phase: Phase


class Step(NamedTuple):
    """One action of a plan that is under way."""

    verb: Literal["commit", "find", "create", "delete"]
    trial: int = 0
    retry: int = 0
    life: int = 0
    rows: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """Everything there is. ``crashes``, ``faults``, ``lost`` and ``cuts`` are what may still go wrong."""

    # the cluster and the store
    pods: frozenset[Pod] = frozenset()
    vanished: frozenset[Pod] = frozenset()
    """Pods that are gone and of which the informer has not heard."""
    rows: frozenset[bytes] = frozenset()
    results: frozenset[tuple[int, int]] = frozenset()
    lives: frozenset[tuple[int, int, int]] = frozenset()
    """Trial, retry, life of each Pod that ever was."""
    runs: tuple[int, ...] = ()
    """Agent runs by trial."""
    # the operator; all of it is lost when it dies
    is_up: bool = False
    known: frozenset[bytes] = frozenset()
    shown: frozenset[Pod] = frozenset()
    gone: frozenset[Pod] = frozenset()
    started: frozenset[tuple[int, int, int]] = frozenset()
    deleted: frozenset[tuple[int, int, int]] = frozenset()
    found: frozenset[tuple[int, int, bool, bool]] = frozenset()
    """Trial, retry, whether there is a result, whether the retry is known to have run."""
    steps: tuple[Step, ...] = ()
    # what may still go wrong
    crashes: int = 0
    faults: int = 0
    """Evictions and Pods that vanish."""
    lost: int = 0
    """Writes that work and whose answer never comes."""
    cuts: int = 0
    """Pods that are deleted on a node that does not answer: they stay past their time, and go when the node is back."""
    cancelled: bool = False
    may_cancel: bool = False


@dataclass
class Model:
    """One job; ``edges`` gives what can happen next."""

    trials: int
    concurrency: int
    retries: int = 3
    job: JobBuilder = field(init=False)

    def __post_init__(self) -> None:
        self.job = make_job().trials(self.trials).spec(concurrency=self.concurrency, retry={"max": self.retries})
        self.plan = self.job.plan()
        self.specs = {flag: make_job().trials(self.trials).spec(**self._spec(flag)).job_spec() for flag in (False, True)}
        self.names = [trial.name for trial in self.plan.trials]
        self._index = {name: number for number, name in enumerate(self.names)}
        self._views: dict[Pod, PodView] = {}
        self._decided: dict[tuple[object, ...], Plan] = {}

    def start(self, *, crashes: int = 0, faults: int = 0, lost: int = 0, cuts: int = 0, may_cancel: bool = False) -> State:
        """Nothing has happened; the arguments say what may go wrong."""
        return State(runs=(0,) * self.trials, crashes=crashes, faults=faults, lost=lost, cuts=cuts, may_cancel=may_cancel)

    # --- what can happen

    def edges(self, state: State) -> Iterator[tuple[str, State]]:
        """Name and outcome of everything that can happen next."""
        yield from self._operator(state)
        for pod in sorted(state.pods):
            yield from self._pod(state, pod)
        if state.is_up:
            yield from self._informer(state)
        if state.may_cancel and not state.cancelled:
            yield "cancel", replace(state, cancelled=True)

    def _operator(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.is_up:
            yield "start", self._started(state)
            return
        if state.crashes:
            yield "crash", self._crashed(state)
        if state.steps:
            yield from self._execute(state)
            return
        steps = self._steps(self.decide(state))
        if steps:
            yield "plan", replace(state, steps=steps)

    def _crashed(self, state: State) -> State:
        empty = State()
        return replace(
            state,
            crashes=state.crashes - 1,
            is_up=False,
            known=empty.known,
            shown=empty.shown,
            gone=empty.gone,
            started=empty.started,
            deleted=empty.deleted,
            found=empty.found,
            steps=(),
            vanished=empty.vanished,
        )

    def _started(self, state: State) -> State:
        """LIST of Pods, the rows, and one listing of results: as ``JobPass._remember`` does."""
        rows = rows_of(state.rows)
        live = {(pod.trial, pod.retry) for pod in state.pods}
        unknown = {
            (trial, retry, True, True)
            for trial, retry in state.results - live
            if all(row.retry != retry for row in rows.get(self.names[trial], ()))
        }
        return replace(state, is_up=True, known=state.rows, shown=state.pods, found=frozenset(unknown), vanished=frozenset())

    def _steps(self, decided: Plan) -> tuple[Step, ...]:
        """One stage of a pass, in the order of ``JobPass._work``."""
        if decided.commits:
            return (Step("commit", rows=tuple(sorted(_line(item) for item in decided.commits))),)
        if decided.lookups:
            return tuple(Step("find", self._index[item.trial], item.retry) for item in decided.lookups)
        if decided.creates:
            return tuple(Step("create", self._index[item.trial.name], item.retry) for item in decided.creates)
        return tuple(Step("delete", *_identity(item.uid)) for item in decided.deletes)

    def _execute(self, state: State) -> Iterator[tuple[str, State]]:
        step, rest = state.steps[0], state.steps[1:]
        after = replace(state, steps=rest)
        key = (step.trial, step.retry)
        match step.verb:
            case "commit" if state.known != state.rows:
                # The shard's number is taken by our own write whose answer was lost: read the rows, plan anew.
                yield "lost race", replace(state, known=state.rows, steps=())
            case "commit":
                rows = state.rows | set(step.rows)
                keys = {(self._index[row.trial], row.retry) for row in from_lines(b"".join(step.rows))}
                yield (
                    "commit",
                    replace(
                        after,
                        rows=rows,
                        known=rows,
                        gone=frozenset(pod for pod in state.gone if pod[:2] not in keys),
                        started=frozenset(item for item in state.started if item[:2] not in keys),
                        found=frozenset(item for item in state.found if item[:2] not in keys),
                    ),
                )
                if state.lost:
                    yield "commit, answer lost", replace(state, rows=rows, steps=(), lost=state.lost - 1)
            case "find":
                known = frozenset(item for item in state.found if item[:2] != key)
                yield "find", replace(after, found=known | {(*key, key in state.results, False)})
            case "create":
                made = self._with_pod(after, key)
                pod = next(pod for pod in made.pods if pod[:2] == key)
                others = frozenset(item for item in made.started if item[:2] != key)
                yield "create", replace(made, started=others | {pod[:3]})
                if state.lost:
                    yield "create, answer lost", replace(made, steps=(), lost=state.lost - 1)
            case "delete":
                hit = next((pod for pod in state.pods if pod[:3] == (*key, step.life)), None)
                removed = after if hit is None else self._deleted(after, hit)
                yield "delete", replace(removed, deleted=removed.deleted | {(*key, step.life)})

    def _with_pod(self, state: State, key: tuple[int, int]) -> State:
        """The API server's part of a create: a name that is taken is a 409, which counts as success."""
        if any(pod[:2] == key for pod in state.pods):
            return state
        life = sum(item[:2] == key for item in state.lives)
        return replace(state, pods=state.pods | {Pod(*key, life, "pending")}, lives=state.lives | {(*key, life)})

    def _deleted(self, state: State, pod: Pod) -> State:
        """A Pod that ended goes at once; one that runs gets its grace."""
        if pod.phase in FINAL:
            return self._without(state, pod)
        return replace(state, pods=state.pods - {pod} | {pod._replace(phase="leaving")})

    def _without(self, state: State, pod: Pod) -> State:
        return replace(state, pods=state.pods - {pod}, vanished=state.vanished | {pod} if state.is_up else state.vanished)

    def _pod(self, state: State, pod: Pod) -> Iterator[tuple[str, State]]:
        def now(phase: Phase) -> State:
            return replace(state, pods=state.pods - {pod} | {pod._replace(phase=phase)})

        match pod.phase:
            case "pending":
                runs = tuple(count + (number == pod.trial) for number, count in enumerate(state.runs))
                yield "agent runs", replace(now("running"), runs=runs)
            case "running":
                yield "result stored", replace(now("committed"), results=state.results | {(pod.trial, pod.retry)})
            case "committed":
                yield "ended", now("done")
            case "leaving" | "stranded":
                yield "left", self._without(state, pod)
            case _:
                pass
        if state.cuts and pod.phase not in FINAL and pod.phase != "stranded":
            yield "cut off", replace(now("stranded"), cuts=state.cuts - 1)
        if state.faults and pod.phase not in FINAL and pod.phase not in ("leaving", "stranded"):
            yield "evicted", replace(now("evicted"), faults=state.faults - 1)
        if state.faults:
            yield "vanishes", replace(self._without(state, pod), faults=state.faults - 1)

    def _informer(self, state: State) -> Iterator[tuple[str, State]]:
        """Events of different Pods come in any order, each as late as it likes."""
        names = {pod[:3] for pod in state.pods}
        for pod in sorted(state.pods - state.shown):
            others = frozenset(old for old in state.shown if old[:3] != pod[:3])
            if any(old[:2] == pod[:2] for old in others):
                continue  # the end of the earlier Pod of this name comes first
            yield "shown", self._believed(replace(state, shown=others | {pod}, gone=frozenset(o for o in state.gone if o[:2] != pod[:2])))
        for old in sorted(state.shown):
            if old[:3] in names:
                continue
            last = next((pod for pod in state.vanished if pod[:3] == old[:3]), old)
            for view in dict.fromkeys((last, old)):  # by the watch: its newest state; by a LIST: what was known before
                left = frozenset(pod for pod in state.vanished if pod[:3] != old[:3])
                yield "gone", self._believed(replace(state, shown=state.shown - {old}, gone=state.gone | {view}, vanished=left))
        for pod in sorted(state.vanished):
            if all(pod[:3] != old[:3] for old in state.shown):
                # It came and went between two looks: the watch says so, a LIST does not.
                left = state.vanished - {pod}
                yield "came and went", self._believed(replace(state, gone=state.gone | {pod}, vanished=left))
                yield "never seen", self._believed(replace(state, vanished=left, started=state.started - {pod[:3]}))

    def _believed(self, state: State) -> State:
        """What the informer shows ends what was only expected."""
        seen = {pod[:3] for pod in state.shown | state.gone}
        return replace(
            state,
            started=state.started - seen,
            deleted=frozenset(key for key in state.deleted if any(pod[:3] == key for pod in state.shown)),
        )

    # --- what the operator sees

    def decide(self, state: State) -> Plan:
        """The real plan for what this state shows."""
        key = (state.known, state.shown, state.gone, state.started, state.deleted, state.found, state.cancelled)
        if key not in self._decided:
            self._decided[key] = plan(self.observed(state), NOW, Limits())
        return self._decided[key]

    def observed(self, state: State) -> Observed:
        return Observed(
            spec=self.specs[state.cancelled],
            plan=self.plan,
            rows=rows_of(state.known),
            pods={view.name: view for view in map(self._view, sorted(state.shown))},
            vanished={(self.names[pod.trial], pod.retry): self._view(pod) for pod in sorted(state.gone)},
            starting=frozenset((self.names[trial], retry) for trial, retry, _ in state.started),
            deleted=frozenset(_uid(*item) for item in state.deleted),
            found={(self.names[item[0]], item[1]): self._found(*item) for item in sorted(state.found)},
            saved=False,
        )

    def final(self, state: State) -> dict[int, Row]:
        """The last row of each trial that has one which is final, from the store."""
        found = {self._index[name]: rows[-1] for name, rows in rows_of(state.rows).items()}
        return {trial: row for trial, row in found.items() if row.is_final}

    def ended(self, state: State) -> bool:
        """All trials are final and no Pod is left."""
        return len(self.final(state)) == self.trials and not state.pods

    def _spec(self, cancelled: bool) -> dict[str, object]:
        return {"concurrency": self.concurrency, "retry": {"max": self.retries}, "cancel": cancelled}

    def _found(self, trial: int, retry: int, has_result: bool, touched: bool) -> Found:
        if not has_result:
            return Found(None, touched=touched)
        body = {"trial_name": self.names[trial], "verifier_result": {"rewards": {"reward": 1.0}}, "seatrial": {"retry": retry}}
        return Found(read_result(body, trial=self.names[trial], retry=retry, sha256="b" * 64), touched=True)

    def _view(self, pod: Pod) -> PodView:
        if pod not in self._views:
            builder = make_pods(self.plan, pod.trial, pod.retry)
            match pod.phase:
                case "pending":
                    builder = builder.unschedulable()
                case "running" | "committed":
                    builder = builder.running()
                case "leaving":
                    builder = builder.running().deleting()
                case "stranded":
                    builder = builder.running().deleting(due=9999)
                case "done":
                    builder = builder.succeeded()
                case "evicted":
                    builder = builder.evicted(disruption=True)
            view = builder.view()
            self._views[pod] = replace(view, uid=_uid(pod.trial, pod.retry, pod.life))
        return self._views[pod]


def _uid(trial: int, retry: int, life: int) -> str:
    return f"{trial}/{retry}/{life}"


def _identity(uid: str) -> tuple[int, int, int]:
    trial, retry, life = map(int, uid.split("/"))
    return trial, retry, life


def _line(action: CommitRow) -> bytes:
    """A row as the store keeps it, ended long ago: its back-off is over."""
    return to_lines([replace(action.row, ended_at=LONG_AGO)])


@cache
def rows_of(lines: frozenset[bytes]) -> dict[str, tuple[Row, ...]]:
    """Rows by trial, as ``RowLog`` keeps them."""
    return by_trial(from_lines(b"".join(sorted(lines))))

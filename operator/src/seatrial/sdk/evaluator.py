"""``Evaluator`` and ``AsyncEvaluator``: publish, submit, wait, read. One core: the asynchronous one runs the same calls in threads.

Example:
    ev = Evaluator(namespace="evals")
    ev.publish("./suite", taskset="smoke")
    job = ev.submit(taskset="smoke", agent="oracle", attempts=3)
    job.wait()
    job.summary.score("reward.mean")
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from seatrial.api.names import EVALJOB
from seatrial.effects.store import Store, StoreSettings
from seatrial.sdk.cluster import Cluster, ClusterSettings, Raw
from seatrial.sdk.jobs import Job, submit
from seatrial.sdk.publish import FoundSuite, Progress, PublishOptions, PublishReport, find_suite, publish
from seatrial.sdk.request import JobRequest
from seatrial.sdk.storage import StoreOptions, store_settings

P = ParamSpec("P")
T = TypeVar("T")


class Evaluator:
    """Evaluations in one namespace of one cluster. Kubeconfig and context mean what they mean to kubectl.

    Args:
        namespace: None: that of the context.
        kubeconfig: path of a kubeconfig; None: ``KUBECONFIG`` or the default file.
        context: context in it; None: the current one.
        store: S3 settings; None: ``SEATRIAL_S3_*``, then what the chart wrote into the cluster.
    """

    def __init__(
        self,
        *,
        namespace: str | None = None,
        kubeconfig: str | None = None,
        context: str | None = None,
        store: StoreSettings | StoreOptions | None = None,
    ) -> None:
        self._cluster = Cluster.connect(ClusterSettings(kubeconfig, context, namespace))
        self._given = store or StoreOptions()
        self._lock = threading.Lock()
        self._opened: Store | None = None

    @classmethod
    def from_client(cls, client: Cluster, *, store: StoreSettings | StoreOptions | None = None) -> Self:
        """Over an existing connection."""
        made = cls.__new__(cls)
        made._cluster, made._given, made._lock, made._opened = client, store or StoreOptions(), threading.Lock(), None
        return made

    @property
    def namespace(self) -> str:
        """Where everything happens."""
        return self._cluster.namespace

    def store(self) -> Store:
        """The object store, opened on first use."""
        with self._lock:
            if self._opened is None:
                given = self._given
                self._opened = Store(given if isinstance(given, StoreSettings) else store_settings(self._cluster, given))
            return self._opened

    def check(self, path: str | Path, **options: Any) -> FoundSuite:
        """Check a task or a suite without publishing it; ``options`` are those of ``PublishOptions``."""
        return find_suite(Path(path), PublishOptions(**options))

    def publish(
        self,
        path: str | Path,
        *,
        taskset: str | None = None,
        progress: Callable[[Progress], None] = lambda _: None,
        **options: Any,
    ) -> PublishReport:
        """Publish a task or a suite; ``options`` are those of ``PublishOptions``.

        Raises:
            SuiteRefused: the suite has faults; nothing was stored.
        """
        chosen = PublishOptions(taskset=taskset, **options)
        return publish(Path(path), chosen, cluster=self._cluster, settings=self.store().settings, progress=progress)

    def submit(
        self, *, taskset: str | None = None, tasks: tuple[str, ...] | list[str] = (), agent: str | None = None, **options: Any
    ) -> Job:
        """Create an EvalJob; ``options`` are those of ``JobRequest``.

        Raises:
            InvalidSpec: it is refused, before or by the API server.
        """
        return self._job(submit(self._cluster, JobRequest(taskset=taskset, tasks=tuple(tasks), agent=agent, **options)))

    def run(self, path: str | Path, *, agent: str | None = None, **options: Any) -> Job:
        """Publish ``path`` without a Taskset, submit its tasks and wait.

        Raises:
            JobFailed: the job did not end ``Completed``.
        """
        report = self.publish(path)
        job = self.submit(tasks=[f"{task.name}#{task.digest}" for task in report.tasks], agent=agent, **options)
        return job.wait()

    def job(self, name: str) -> Job:
        """An EvalJob by name.

        Raises:
            NotFound: there is none.
        """
        return self._job(self._cluster.get(EVALJOB, name))

    def jobs(self) -> Iterator[Job]:
        """All EvalJobs of the namespace."""
        return (self._job(raw) for raw in self._cluster.list(EVALJOB))

    def _job(self, raw: Raw) -> Job:
        return Job(self._cluster, self.store, raw)


class AsyncJob:
    """A submitted EvalJob, awaited; the same methods as ``Job``."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def name(self) -> str:
        return self._job.name

    @property
    def uid(self) -> str:
        return self._job.uid

    @property
    def raw(self) -> Raw:
        """The object as last seen."""
        return self._job.raw

    @property
    def phase(self) -> str:
        """The phase as last seen."""
        return self._job.phase

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Any other method of ``Job``, run in a thread. ``await job.summary()`` stands for the property."""
        found = getattr(type(self._job), name, None)
        if name.startswith("_") or found is None:
            raise AttributeError(name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if isinstance(found, property):
                return await asyncio.to_thread(getattr, self._job, name)
            answer = await asyncio.to_thread(found, self._job, *args, **kwargs)
            return self if answer is self._job else answer

        return call


class AsyncEvaluator:
    """``Evaluator`` with awaited calls, for use as ``async with AsyncEvaluator(...) as ev``. Each call takes a ``namespace`` of its own."""

    def __init__(
        self,
        *,
        namespace: str | None = None,
        kubeconfig: str | None = None,
        context: str | None = None,
        store: StoreSettings | StoreOptions | None = None,
    ) -> None:
        self._inner = Evaluator(namespace=namespace, kubeconfig=kubeconfig, context=context, store=store)

    @classmethod
    def from_client(cls, client: Cluster, *, store: StoreSettings | StoreOptions | None = None) -> Self:
        """Over an existing connection."""
        made = cls.__new__(cls)
        made._inner = Evaluator.from_client(client, store=store)
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    @property
    def namespace(self) -> str:
        """Where everything happens, unless a call says otherwise."""
        return self._inner.namespace

    async def check(self, path: str | Path, **options: Any) -> FoundSuite:
        """As ``Evaluator.check``."""
        return await _in_thread(self._inner.check, path, **options)

    async def publish(
        self,
        path: str | Path,
        *,
        taskset: str | None = None,
        progress: Callable[[Progress], None] = lambda _: None,
        namespace: str | None = None,
        **options: Any,
    ) -> PublishReport:
        """As ``Evaluator.publish``."""
        return await _in_thread(self._at(namespace).publish, path, taskset=taskset, progress=progress, **options)

    async def submit(
        self,
        *,
        taskset: str | None = None,
        tasks: tuple[str, ...] | list[str] = (),
        agent: str | None = None,
        namespace: str | None = None,
        **options: Any,
    ) -> AsyncJob:
        """As ``Evaluator.submit``."""
        return AsyncJob(await _in_thread(self._at(namespace).submit, taskset=taskset, tasks=tasks, agent=agent, **options))

    async def run(self, path: str | Path, *, agent: str | None = None, namespace: str | None = None, **options: Any) -> AsyncJob:
        """As ``Evaluator.run``."""
        return AsyncJob(await _in_thread(self._at(namespace).run, path, agent=agent, **options))

    async def job(self, name: str, *, namespace: str | None = None) -> AsyncJob:
        """As ``Evaluator.job``."""
        return AsyncJob(await _in_thread(self._at(namespace).job, name))

    async def jobs(self, *, namespace: str | None = None) -> list[AsyncJob]:
        """As ``Evaluator.jobs``."""
        return [AsyncJob(job) for job in await _in_thread(lambda: list(self._at(namespace).jobs()))]

    def _at(self, namespace: str | None) -> Evaluator:
        if namespace is None or namespace == self._inner.namespace:
            return self._inner
        return Evaluator.from_client(self._inner._cluster.at(namespace), store=self._inner._given)


async def _in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.to_thread(functools.partial(call, *args, **kwargs))

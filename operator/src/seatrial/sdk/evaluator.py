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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from seatrial.api.names import EVALJOB
from seatrial.core.saved import SavedTrial, recorded_key
from seatrial.effects.store import Store, StoreSettings
from seatrial.sdk.agent_source import store_agent_source
from seatrial.sdk.cluster import Cluster, ClusterSettings, Raw
from seatrial.sdk.jobs import Job, is_finished, submit
from seatrial.sdk.metric_bundle import Metrics
from seatrial.sdk.publish import FoundSuite, Progress, PublishOptions, PublishReport, find_suite, publish
from seatrial.sdk.request import JobRequest
from seatrial.sdk.reuse import saved_body
from seatrial.sdk.revisions import Revision
from seatrial.sdk.saved_trials import FolderEvidence, store_trials
from seatrial.sdk.storage import StoreOptions, store_settings
from seatrial.sdk.tasks import PreparedTask, StoredObject, Tasks, Tasksets
from seatrial.taskpkg.collection import HarborTask

if TYPE_CHECKING:
    from seatrial.sdk.harbor_runner import HarborAgentTaskRunner

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

    @property
    def tasks(self) -> Tasks:
        """Tasks one by one."""
        return Tasks(self._cluster, self.store)

    @property
    def tasksets(self) -> Tasksets:
        """Tasksets one by one."""
        return Tasksets(self._cluster, self.store)

    @property
    def metrics(self) -> Metrics:
        """Bundles of metric classes."""
        return Metrics(self.store(), self.namespace)

    @property
    def results(self) -> Results:
        """What jobs left."""
        return Results(self._cluster, self.store)

    @property
    def agent_eval_results(self) -> Results:
        """``results`` under NeMo's name."""
        return self.results

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
        self,
        *,
        taskset: str | None = None,
        tasks: tuple[str, ...] | list[str] = (),
        agent: str | None = None,
        target: HarborAgentTaskRunner | None = None,
        trials: Sequence[SavedTrial] | None = None,
        evidence: FolderEvidence | None = None,
        agent_dir: str | Path | None = None,
        **options: Any,
    ) -> Job:
        """Create an EvalJob; ``options`` are those of ``JobRequest``.

        Args:
            target: NeMo's form of agent and options: a runner with a configuration.
            trials: score these saved trials, of the tasks of ``taskset``, instead of running anything. Takes ``name``, ``metrics`` and
                ``thresholds``.
            evidence: where the trials' files are; they are stored beside the trials.
            agent_dir: folder with the module of an ``agent`` of the form ``module:Class``; it is packed and stored.

        Raises:
            TypeError: target and trials, trials without a taskset, or a target that cannot be submitted.
            SavedTrialsRefused: the trials do not carry one reward key.
            InvalidSpec: it is refused, before or by the API server.
        """
        if trials is not None:
            if target is not None or agent is not None or tasks:
                raise TypeError("give exactly one of target and trials; saved trials have run already")
            if taskset is None:
                raise TypeError("saved trials need taskset: the tasks that they are of")
            return self._job(self._cluster.create(EVALJOB, self._saved_body(taskset, trials, evidence, options)))
        if target is not None:
            if target.config is None or agent is not None:
                raise TypeError("target must be a task runner with a configuration, and names the agent itself")
            options = {**target.config.options(), **options}
            agent, agent_dir = options.pop("agent"), options.pop("agent_dir")
        if agent_dir is not None:
            options["agent_source"] = store_agent_source(Path(agent_dir), namespace=self.namespace, settings=self.store().settings)
        return self._job(submit(self._cluster, JobRequest(taskset=taskset, tasks=tuple(tasks), agent=agent, **options)))

    def _saved_body(
        self, taskset: str, trials: Sequence[SavedTrial], evidence: FolderEvidence | None, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        key = recorded_key(trials)
        file = store_trials(self.store(), self.namespace, trials, evidence=evidence)
        return saved_body(file, namespace=self.namespace, taskset=taskset, reward_key=key, **options)

    def run(self, path: str | Path, *, agent: str | None = None, **options: Any) -> Job:
        """Publish ``path`` without a Taskset, submit its tasks and wait.

        Raises:
            JobFailed: the job did not end ``Completed``.
        """
        report = self.publish(path)
        if report.metric_script is not None:
            options["metric_scripts"] = (report.metric_script, *options.get("metric_scripts", ()))
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


class Results:
    """Results by job."""

    def __init__(self, cluster: Cluster, store: Callable[[], Store]) -> None:
        self._cluster, self._store = cluster, store

    def list(self, *, job_id: str | None = None) -> Iterator[dict[str, Any]]:
        """``{name, job_id, phase, summary}`` of the ended jobs; ``job_id`` is a job's name or UID."""
        for raw in self._cluster.list(EVALJOB):
            if is_finished(raw) and job_id in (None, raw["metadata"]["name"], raw["metadata"]["uid"]):
                yield self._record(raw)

    def retrieve(self, name: str) -> dict[str, Any]:
        """The result of one job.

        Raises:
            NotFound: there is no such job.
        """
        return self._record(self._cluster.get(EVALJOB, name))

    def _record(self, raw: Raw) -> dict[str, Any]:
        job = Job(self._cluster, self._store, raw)
        return {"name": job.name, "job_id": job.uid, "phase": job.phase, "summary": job.files.summary()}


Inner = TypeVar("Inner", Tasks, Tasksets)


class _AsyncCollection(Generic[Inner]):
    """What Tasks and Tasksets have in common, awaited."""

    def __init__(self, inner: Inner) -> None:
        self._inner: Inner = inner

    async def retrieve(
        self, name: str, *, revision: str | int | None = None, tag: str | None = None, namespace: str | None = None
    ) -> StoredObject:
        """The object, or its content as of a revision or tag."""
        return await _in_thread(self._inner.retrieve, name, revision=revision, tag=tag, namespace=namespace)

    async def list(self, **conditions: Any) -> list[StoredObject]:
        """The objects that meet all conditions."""
        return await _in_thread(lambda: [*self._inner.list(**conditions)])

    async def list_revisions(self, name: str, *, namespace: str | None = None) -> tuple[Revision, ...]:
        """All published revisions, newest first."""
        return await _in_thread(self._inner.list_revisions, name, namespace=namespace)

    async def tag(self, name: str, *, tag: str, revision: str | None = None, namespace: str | None = None) -> StoredObject:
        """Give a revision a tag."""
        return await _in_thread(self._inner.tag, name, tag=tag, revision=revision, namespace=namespace)

    async def delete(self, name: str, *, namespace: str | None = None) -> None:
        """Remove the object."""
        await _in_thread(self._inner.delete, name, namespace=namespace)


class AsyncTasks(_AsyncCollection[Tasks]):
    """``Tasks``, awaited."""

    async def prepare(self, task: HarborTask, **options: Any) -> PreparedTask:
        """As ``Tasks.prepare``."""
        return await _in_thread(self._inner.prepare, task, **options)

    async def create(self, name: str, *, task: HarborTask | PreparedTask, namespace: str | None = None, **options: Any) -> StoredObject:
        """As ``Tasks.create``."""
        return await _in_thread(self._inner.create, name, task=task, namespace=namespace, **options)

    async def replace(self, name: str, *, task: HarborTask | PreparedTask, namespace: str | None = None, **options: Any) -> StoredObject:
        """As ``Tasks.replace``."""
        return await _in_thread(self._inner.replace, name, task=task, namespace=namespace, **options)


class AsyncTasksets(_AsyncCollection[Tasksets]):
    """``Tasksets``, awaited."""

    async def create(self, name: str, *, tasks: Sequence[str | StoredObject], namespace: str | None = None, **spec: Any) -> StoredObject:
        """As ``Tasksets.create``."""
        return await _in_thread(self._inner.create, name, tasks=tasks, namespace=namespace, **spec)

    async def replace(self, name: str, *, tasks: Sequence[str | StoredObject], namespace: str | None = None, **spec: Any) -> StoredObject:
        """As ``Tasksets.replace``."""
        return await _in_thread(self._inner.replace, name, tasks=tasks, namespace=namespace, **spec)


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

    @property
    def tasks(self) -> AsyncTasks:
        """Tasks one by one; every call takes a ``namespace``."""
        return AsyncTasks(self._inner.tasks)

    @property
    def tasksets(self) -> AsyncTasksets:
        """Tasksets one by one; every call takes a ``namespace``."""
        return AsyncTasksets(self._inner.tasksets)

    @property
    def metrics(self) -> Metrics:
        """Bundles of metric classes; small files, read and written without waiting for others."""
        return self._inner.metrics

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
        """As ``Evaluator.submit``, ``target`` and ``trials`` among the options."""
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

"""The kind Task: one Harbor task, as a content-addressed archive in the object store."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from seatrial.api.meta import (
    DIGEST_TAG,
    LIST_TYPE,
    MAX_TAGS,
    Column,
    Condition,
    FrozenMap,
    Image,
    JsonMap,
    MaxEntries,
    Model,
    Reference,
    Resource,
    Rule,
    Sha256,
    StoredFile,
    Tag,
    TagPointers,
    cel,
    conditions_field,
    fault,
    tag_pointers_field,
)

MetricName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$", max_length=128)]

_METRIC_SOURCE = Rule("has(self.type) != has(self.ref)", "give exactly one of type and ref")
_METRIC_RESERVED = Rule(
    "!has(self.type) || self.type != 'harbor_reward'", "harbor_reward is always scored and must not be listed; remove this entry"
)
_METRIC_IMAGE = Rule("!has(self.command) || self.command.size() == 0 || has(self.image)", "command needs image: it runs in that container")


class TaskSource(StoredFile):
    """Where the task's archive is and what it must be."""

    format: Literal["tar-gzip-v1"] = Field(default="tar-gzip-v1", description="Format of the archive: tar-gzip-v1, the only one.")


class MetricOutput(Model):
    """One value that a metric reports per trial."""

    name: MetricName = Field(description="Name of the output.")
    type: Literal["continuous", "boolean", "label"] = Field(
        default="continuous", description="continuous and boolean are averaged, label is only counted."
    )


class MetricSpec(Model):
    """A metric in addition to the verifier's rewards: a built-in, a stored bundle, or a container of its own."""

    model_config = ConfigDict(json_schema_extra=cel(_METRIC_SOURCE, _METRIC_RESERVED, _METRIC_IMAGE))

    type: MetricName | None = Field(default=None, description="A built-in metric, or the name of a custom one that image runs.")
    ref: Reference | None = Field(default=None, description="A stored metric bundle instead of type.")
    config: JsonMap = Field(default={}, description="Settings of a built-in metric; any JSON object.")
    image: Image | None = Field(default=None, description="Container that computes a custom metric over JSON lines.")
    command: tuple[Annotated[str, Field(max_length=4096)], ...] = Field(
        default=(), max_length=64, description="Command of that container.", json_schema_extra={LIST_TYPE: "atomic"}
    )
    outputs: tuple[MetricOutput, ...] = Field(
        default=(), max_length=64, description="What a custom metric reports.", json_schema_extra={LIST_TYPE: "atomic"}
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.type is None) == (self.ref is None):
            raise fault("metric", _METRIC_SOURCE.message)
        if self.type == "harbor_reward":
            raise fault("metric", _METRIC_RESERVED.message)
        if self.command and self.image is None:
            raise fault("metric", _METRIC_IMAGE.message)
        return self


class ViewSignal(Model):
    """One input of a view."""

    metric: MetricName = Field(description="Name of the metric; harbor_reward for the verifier's rewards.")
    output: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        description="Output of that metric; the reward key for harbor_reward."
    )
    weight: float = Field(default=1.0, description="Weight for the reducer weighted_mean; the others ignore it.")


class View(Model):
    """Turns metric outputs of a task into one named score, view.NAME."""

    reducer: Literal["single", "all", "any", "mean", "weighted_mean"] = Field(
        description="single: the first signal; all: minimum; any: maximum; mean; weighted_mean."
    )
    signals: tuple[ViewSignal, ...] = Field(
        min_length=1, max_length=64, description="The inputs, in order.", json_schema_extra={LIST_TYPE: "atomic"}
    )


class BuiltImage(Model):
    """An image that was built from the task's own files, by digest, with what the registry says about it."""

    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}$", max_length=512)] = Field(
        description="Where it is, as HOST/NAME@sha256:…; never a tag."
    )
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$", max_length=40)] = Field(
        description="Key of Dockerfile, build context, build arguments and platform; equal keys are built once."
    )
    platform: Annotated[str, Field(pattern=r"^[a-z0-9]+/[a-z0-9_]+(/[a-z0-9]+)?$", max_length=64)] = Field(
        default="linux/amd64", description="Platform that it was built for."
    )
    user: Annotated[str, Field(max_length=256)] = Field(default="", description="The image's USER; empty means root.")
    workdir: Annotated[str, Field(max_length=1024)] = Field(default="", description="The image's WORKDIR; empty means /.")
    entrypoint: tuple[Annotated[str, Field(max_length=4096)], ...] = Field(
        default=(), max_length=64, description="The image's ENTRYPOINT; it is kept.", json_schema_extra={LIST_TYPE: "atomic"}
    )
    env: tuple[Annotated[str, Field(max_length=1024)], ...] = Field(
        default=(),
        max_length=64,
        description="The image's ENV as NAME=VALUE; values that look like credentials are left out.",
        json_schema_extra={LIST_TYPE: "atomic"},
    )


class TaskImages(Model):
    """Images of the task that were built from its Dockerfiles."""

    environment: BuiltImage | None = Field(
        default=None, description="From environment/Dockerfile; it wins over docker_image of task.toml, as with Harbor's force-build."
    )
    verifier: BuiltImage | None = Field(default=None, description="From tests/Dockerfile, of a separate verifier.")


class TaskSpec(Model):
    """What the task is; a change publishes a new revision and leaves running jobs alone."""

    source: TaskSource = Field(description="The task's archive.")
    native_task_id: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        default=None, description="Harbor's name of the task, such as bench/hello-world; optional here, always checked against the archive."
    )
    images: TaskImages | None = Field(
        default=None, description="Images built from the archive's Dockerfiles, pinned; written by seatrial publish --build."
    )
    metrics: tuple[MetricSpec, ...] = Field(
        default=(),
        max_length=64,
        description="Metrics in addition to the verifier's rewards.",
        json_schema_extra={LIST_TYPE: "atomic"},
    )
    views: Annotated[FrozenMap[View], MaxEntries(64)] = Field(default={}, description="Named scores that combine this task's metrics.")
    metadata: JsonMap = Field(default={}, description="Anything worth keeping beside the task; any JSON object.")
    tags: tuple[Tag, ...] = Field(
        default=(),
        max_length=64,
        description="Tags of the revision that this spec publishes; latest is always set.",
        json_schema_extra={LIST_TYPE: "set", **cel(DIGEST_TAG)},
    )
    tag_pointers: TagPointers = tag_pointers_field()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.tags)) != len(self.tags):
            raise fault("tags", "tags must not repeat")
        if len({*self.tags, *self.tag_pointers}) > MAX_TAGS:
            raise fault("tags", f"tags and tagPointers name at most {MAX_TAGS} tags together")
        if both := sorted({*self.tags} & {*self.tag_pointers}):
            raise fault("tags", f"{both[0]} is in tags and in tagPointers: leave one out")
        return self


class TaskTimeouts(Model):
    """Time limits of task.toml, in seconds."""

    agent: float | None = Field(default=None, ge=0, description="Limit of the agent's run; absent means unlimited.")
    verifier: float | None = Field(default=None, ge=0, description="Limit of the verifier.")
    build: float | None = Field(default=None, ge=0, description="Limit of the environment's build and start.")


class TaskResources(Model):
    """What task.toml asks for."""

    cpus: float | None = Field(default=None, ge=0, description="CPU cores.")
    memory_mb: int | None = Field(default=None, ge=0, description="Memory in MB.")
    storage_mb: int | None = Field(default=None, ge=0, description="Storage in MB.")
    gpus: int | None = Field(default=None, ge=0, description="GPUs.")


class TaskSummary(Model):
    """A bounded projection of task.toml, for people; the archive is what runs."""

    image: Annotated[str, Field(max_length=512)] | None = Field(default=None, description="The environment's image, if the task names one.")
    timeouts: TaskTimeouts = Field(default=TaskTimeouts(), description="Time limits, in seconds.")
    resources: TaskResources = Field(default=TaskResources(), description="What the environment asks for.")
    steps: int = Field(default=0, ge=0, description="Number of steps; 0 for a single-step task.")
    verifier_mode: Literal["shared", "separate"] = Field(
        default="shared", description="shared: graded in the agent's environment; separate: in one of its own."
    )
    network: Literal["public", "no-network", "allowlist"] = Field(default="public", description="What the environment may reach.")


class TaskStatus(Model):
    """What the operator found out about the task."""

    observed_generation: int = Field(default=0, ge=0, description="The metadata.generation that this status was computed from.")
    revision: int | None = Field(default=None, ge=1, description="Number of the current revision.")
    digest: Sha256 | None = Field(default=None, description="SHA-256 of the revision's content, without its name.")
    tags: Annotated[FrozenMap[int], MaxEntries(64)] = Field(default={}, description="Revision number by tag.")
    native_task_id: Annotated[str, Field(max_length=255)] | None = Field(default=None, description="Harbor's name, from the archive.")
    summary: TaskSummary | None = Field(default=None, description="The main settings of task.toml.")
    conditions: tuple[Condition, ...] = conditions_field()


class Task(Resource):
    """A Harbor task: an instruction, an environment and a verifier, packed into one archive in the object store."""

    kind: Literal["Task"] = "Task"
    spec: TaskSpec = Field(description="What the task is; a change publishes a new revision.")
    status: TaskStatus = Field(default=TaskStatus(), description="What the operator found out; written by it alone.")

    SHORT_NAMES: ClassVar = ("tsk",)
    COLUMNS: ClassVar = (
        Column("Verified", ".status.conditions[?(@.type=='Verified')].status", description="Whether the archive is what the spec says."),
        Column("Revision", ".status.revision", "integer", "Number of the current revision."),
        Column("Age", ".metadata.creationTimestamp", "date", "Time since the object was made."),
        Column("Task", ".status.nativeTaskId", description="Harbor's name of the task.", priority=1),
        Column("Digest", ".status.digest", description="Digest of the current revision.", priority=1),
    )

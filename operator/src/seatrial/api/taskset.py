"""The kind Taskset: a set of tasks, pinned to revisions when it is published."""

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
    JsonMap,
    MaxEntries,
    Model,
    PinnedReference,
    Reference,
    Resource,
    Rule,
    Sha256,
    StoredFile,
    StoreKey,
    Tag,
    TagPointers,
    cel,
    conditions_field,
    fault,
    tag_pointers_field,
)

MAX_TASKS = 1000
"""Members listed in the object itself; larger sets use a manifest."""
MAX_SAMPLE = 20

_ONE_OF = Rule("has(self.tasks) != has(self.manifest)", "give exactly one of tasks and manifest")


class TasksetMetric(Model):
    """How rewards are combined over every job on the set."""

    type: Literal["mean", "sum", "min", "max"] = Field(description="mean, sum, min or max.")
    missing: Literal["skip", "zero"] = Field(default="skip", description="skip or zero, as in an EvalJob's metrics.")


class TasksetSpec(Model):
    """Which tasks belong to the set."""

    model_config = ConfigDict(json_schema_extra=cel(_ONE_OF))

    tasks: tuple[Reference, ...] | None = Field(
        default=None,
        max_length=MAX_TASKS,
        description=(
            "References to tasks: name or namespace/name, each optionally with #tag or #digest; at most 1,000. "
            "Exactly one of tasks and manifest."
        ),
        json_schema_extra={LIST_TYPE: "set"},
    )
    manifest: StoredFile | None = Field(
        default=None,
        description="A file of pinned members, one JSON object a line, for sets of any size. Exactly one of tasks and manifest.",
    )
    metric_script: StoredFile | None = Field(
        default=None,
        description="The set's own metric.py: every job on this set runs it over the rewards of its trials; its values are script.NAME.",
    )
    metrics: tuple[TasksetMetric, ...] = Field(
        default=(),
        max_length=16,
        description="Aggregates of every job on the set; those of the job come after them. Empty, and none in the job: mean.",
        json_schema_extra={LIST_TYPE: "atomic"},
    )
    description: Annotated[str, Field(max_length=4096)] = Field(default="", description="What the set is for.")
    metadata: JsonMap = Field(default={}, description="Anything worth keeping beside the set; any JSON object.")
    tags: tuple[Tag, ...] = Field(
        default=(),
        max_length=64,
        description="Tags of the revision that this spec publishes; latest is always set.",
        json_schema_extra={LIST_TYPE: "set", **cel(DIGEST_TAG)},
    )
    tag_pointers: TagPointers = tag_pointers_field()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.tasks is None) == (self.manifest is None):
            raise fault("one_of", _ONE_OF.message)
        if self.tasks is not None and len(set(self.tasks)) != len(self.tasks):
            raise fault("tasks", "tasks must not repeat")
        if len(set(self.tags)) != len(self.tags):
            raise fault("tags", "tags must not repeat")
        if len({*self.tags, *self.tag_pointers}) > MAX_TAGS:
            raise fault("tags", f"tags and tagPointers name at most {MAX_TAGS} tags together")
        if both := sorted({*self.tags} & {*self.tag_pointers}):
            raise fault("tags", f"{both[0]} is in tags and in tagPointers: leave one out")
        return self


class TasksetManifest(Model):
    """The pinned members in the object store."""

    ref: StoreKey = Field(description="Key of the manifest: one pinned member a line, sorted.")
    sha256: Sha256 = Field(description="SHA-256 of the manifest.")


class TasksetStatus(Model):
    """The published, pinned form of the set."""

    observed_generation: int = Field(default=0, ge=0, description="The metadata.generation that this status was computed from.")
    revision: int | None = Field(default=None, ge=1, description="Number of the current revision.")
    digest: Sha256 | None = Field(default=None, description="SHA-256 of the revision's content, without its name.")
    tags: Annotated[FrozenMap[int], MaxEntries(64)] = Field(default={}, description="Revision number by tag.")
    members: int | None = Field(default=None, ge=0, description="Number of tasks in the set.")
    manifest: TasksetManifest | None = Field(default=None, description="Where all pinned members are.")
    sample: tuple[PinnedReference, ...] = Field(
        default=(),
        max_length=MAX_SAMPLE,
        description="The first 20 pinned members, as namespace/name#digest.",
        json_schema_extra={LIST_TYPE: "atomic"},
    )
    conditions: tuple[Condition, ...] = conditions_field()


class Taskset(Resource):
    """A set of tasks, called dataset by Harbor; its members are pinned to revisions when it is published."""

    kind: Literal["Taskset"] = "Taskset"
    spec: TasksetSpec = Field(description="Which tasks belong to the set; a change publishes a new revision.")
    status: TasksetStatus = Field(default=TasksetStatus(), description="The pinned set; written by the operator alone.")

    SHORT_NAMES: ClassVar = ("tset",)
    COLUMNS: ClassVar = (
        Column("Pinned", ".status.conditions[?(@.type=='Pinned')].status", description="Whether all members are resolved."),
        Column("Members", ".status.members", "integer", "Number of tasks in the set."),
        Column("Age", ".metadata.creationTimestamp", "date", "Time since the object was made."),
        Column("Revision", ".status.revision", "integer", "Number of the current revision.", priority=1),
        Column("Digest", ".status.digest", description="Digest of the current revision.", priority=1),
    )

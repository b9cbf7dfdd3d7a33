"""Options that many commands share, as dataclasses; ``expand`` turns a parameter of such a class into its options."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from seatrial.effects.store import Store, StoreSettings
    from seatrial.sdk.cluster import Cluster, Raw
    from seatrial.sdk.results import JobFiles


class Output(enum.StrEnum):
    """Formats of listings. Tables are for people; the others are documented and stable."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    JSONL = "jsonl"
    CSV = "csv"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table, json, yaml, jsonl or csv.", show_default=True)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be sent, and send nothing.")]

_KUBECONFIG = typer.Option("--kubeconfig", help="Path of the kubeconfig.", show_default=False)
_CONTEXT = typer.Option("--context", help="Context in the kubeconfig.", show_default=False)
_S3_ENDPOINT = typer.Option(
    "--s3-endpoint", help="URL of the object store, or SEATRIAL_S3_ENDPOINT; else as the chart wrote it.", show_default=False
)
_S3_BUCKET = typer.Option("--s3-bucket", help="Bucket, or SEATRIAL_S3_BUCKET.", show_default=False)
_S3_REGION = typer.Option("--s3-region", help="Region, or SEATRIAL_S3_REGION.", show_default=False)
_NAMESPACE_HELP = "Namespace; else that of the context."


@dataclass(frozen=True)
class ClusterOptions:
    """Which cluster, as in kubectl."""

    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help=_NAMESPACE_HELP, show_default=False)] = None
    kubeconfig: Annotated[str | None, _KUBECONFIG] = None
    context: Annotated[str | None, _CONTEXT] = None


@dataclass(frozen=True)
class LongClusterOptions(ClusterOptions):
    """The same where -n already means something else."""

    namespace: Annotated[str | None, typer.Option("--namespace", help=_NAMESPACE_HELP, show_default=False)] = None


@dataclass(frozen=True)
class StoreFlags:
    """Which object store. Credentials come from SEATRIAL_S3_ACCESS_KEY and SEATRIAL_S3_SECRET_KEY, never from a flag."""

    s3_endpoint: Annotated[str | None, _S3_ENDPOINT] = None
    s3_bucket: Annotated[str | None, _S3_BUCKET] = None
    s3_region: Annotated[str | None, _S3_REGION] = None


class Session:
    """The cluster and the store of one command, connected on first use."""

    def __init__(self, options: ClusterOptions, store: StoreFlags = StoreFlags()) -> None:
        self._options, self._flags = options, store

    @functools.cached_property
    def cluster(self) -> Cluster:
        from seatrial.sdk.cluster import Cluster, ClusterSettings

        return Cluster.connect(ClusterSettings(self._options.kubeconfig, self._options.context, self._options.namespace))

    @functools.cached_property
    def settings(self) -> StoreSettings:
        from seatrial.sdk.storage import StoreOptions, store_settings

        given = StoreOptions(endpoint=self._flags.s3_endpoint, bucket=self._flags.s3_bucket, region=self._flags.s3_region)
        return store_settings(self.cluster, given)

    @functools.cached_property
    def store(self) -> Store:
        from seatrial.effects.store import Store

        return Store(self.settings)

    def files(self, job: Raw) -> JobFiles:
        """The folder of an EvalJob object.

        Raises:
            NotFound: the job has no plan, and so no trials; it says why.
        """
        from seatrial.cli.output import why_unplanned
        from seatrial.errors import NotFound
        from seatrial.sdk.results import JobFiles

        if why := why_unplanned(job):
            raise NotFound(why)
        return JobFiles.of(self.store, job)


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with each parameter that is annotated with a dataclass replaced by that dataclass's fields."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {name: item.annotation for name, item in signature.parameters.items() if is_dataclass(item.annotation)}
    parameters: list[inspect.Parameter] = []
    for name, item in signature.parameters.items():
        if name not in groups:
            parameters.append(item.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]))

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    return run

"""What all kinds share: the frozen base model, scalar types, references, conditions, parsing.

Why the server and we refuse the same objects: every bound, pattern and rule here is also in the generated CRD, and the files of
``tests/cases`` are run through both.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from seatrial.errors import InvalidSpec

CEL: Final = "x-kubernetes-validations"
LIST_TYPE: Final = "x-kubernetes-list-type"
LIST_MAP_KEYS: Final = "x-kubernetes-list-map-keys"
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING: Final = "x-kubernetes-int-or-string"

PLAINTEXT_CREDENTIAL: Final = "plaintext_credential"
"""Type of the pydantic error that the credential check raises."""


class Problem(NamedTuple):
    """One fault of an object; ``message`` never contains the faulty value."""

    path: str
    message: str


class PlaintextCredential(InvalidSpec):
    """A literal looks like a credential; the message names paths, never values."""


class Rule(NamedTuple):
    """A CEL rule of the CRD; ``message_expression`` replaces ``message`` where names must be shown."""

    rule: str
    message: str
    message_expression: str | None = None

    def raw(self) -> dict[str, str]:
        body = {"rule": self.rule, "message": self.message}
        if self.message_expression is not None:
            body["messageExpression"] = self.message_expression
        return body


def cel(*rules: Rule) -> dict[str, Any]:
    """``json_schema_extra`` that carries CEL rules."""
    return {CEL: [rule.raw() for rule in rules]}


def fault(kind: str, message: str) -> PydanticCustomError:
    """A validation error with our own words; braces in ``message`` are taken literally."""
    # A str variable is not a LiteralString for the type checker; the template has one placeholder and the text goes into it.
    return PydanticCustomError(kind, "{text}", {"text": message})


class Column(NamedTuple):
    """One ``additionalPrinterColumns`` entry."""

    name: str
    path: str
    type: Literal["string", "integer", "date"] = "string"
    description: str = ""
    priority: int = 0


class Model(BaseModel):
    """Base of every shape: frozen, camelCase outside, snake_case inside, unknown fields ignored unless asked."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        validate_default=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        ser_json_inf_nan="strings",
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        # As the server does: a null counts as absent, so that the default applies.
        if isinstance(value, Mapping):
            return {key: item for key, item in value.items() if item is not None}
        return value

    def raw(self) -> dict[str, Any]:
        """As JSON data with camelCase keys, without fields that are null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


# --- maps ---------------------------------------------------------------------------------------------------------------------------

V = TypeVar("V")


class FrozenDict(dict[str, V]):
    """A dict that refuses every change; pydantic reads and writes it like any other."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("this map is frozen: build a new one")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, V]]]:
        return type(self), (dict(self),)


def _freeze(value: Mapping[str, V]) -> Mapping[str, V]:
    return FrozenDict(value)


FrozenMap = Annotated[Mapping[str, V], AfterValidator(_freeze)]
"""A map that cannot be changed; JSON data inside it is shared, so builders copy it."""


class MaxEntries(NamedTuple):
    """Bound of a ``FrozenMap``, checked here and written into the schema: pydantic writes no ``max_length`` behind a validator."""

    limit: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "maxProperties": self.limit}

    def _check(self, value: Mapping[str, V]) -> Mapping[str, V]:
        if len(value) > self.limit:
            raise fault("too_long", f"at most {self.limit} entries, not {len(value)}")
        return value


JsonMap = Annotated[FrozenMap[JsonValue], MaxEntries(256), Field(json_schema_extra={PRESERVE: True})]
"""Any JSON object of at most 256 keys; the server stores it as it is."""


# --- scalars ------------------------------------------------------------------------------------------------------------------------

_DURATION_UNITS: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(str):
    """A positive length of time in whole seconds, such as ``90s``, ``30m`` or ``1h30m``; units d, h, m, s."""

    __slots__ = ()
    PATTERN: ClassVar[str] = r"^([1-9][0-9]{0,6}[dhms]){1,4}$"

    @property
    def seconds(self) -> int:
        return sum(int(number) * _DURATION_UNITS[unit] for number, unit in re.findall(r"([0-9]+)([dhms])", self))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema(pattern=cls.PATTERN, max_length=32))


_QUANTITY_UNITS: Final[Mapping[str, Decimal]] = {
    "m": Decimal("0.001"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
}


class Quantity(str):
    """An amount as Kubernetes writes it: ``2``, ``500m``, ``4Gi``. A whole number is accepted too."""

    __slots__ = ()
    PATTERN: ClassVar[str] = r"^[0-9]{1,15}([.][0-9]{1,9})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"

    @property
    def amount(self) -> Decimal:
        """In base units: cores or bytes."""
        number = self.rstrip("mkKMGTi")
        return Decimal(number) * _QUANTITY_UNITS[self[len(number) :]]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(pattern=cls.PATTERN, max_length=32)
        return core_schema.no_info_before_validator_function(
            lambda value: str(value) if type(value) is int else value, core_schema.no_info_after_validator_function(cls, text)
        )


QuantityField = Annotated[Quantity, Field(json_schema_extra={INT_OR_STRING: True})]


class StatusText(str):
    """Free text for status: control characters become spaces, longer text is cut to ``limit`` bytes of JSON, ending in ``…``."""

    __slots__ = ()

    @classmethod
    def cut(cls, value: str, limit: int) -> StatusText:
        text = "".join(" " if ord(char) < 0x20 or ord(char) == 0x7F or 0xD800 <= ord(char) <= 0xDFFF else char for char in value)
        sizes = list(itertools.accumulate(len(char.encode()) + (char in _ESCAPED) for char in text))
        if not sizes or sizes[-1] <= limit:
            return cls(text)
        return cls(text[: bisect.bisect_right(sizes, limit - len("…".encode()))] + "…")


_ESCAPED: Final = frozenset('"\\')
"""JSON writes these with one byte more."""


def _cut_to(limit: int) -> BeforeValidator:
    return BeforeValidator(lambda value: StatusText.cut(value, limit) if isinstance(value, str) else value)


Message = Annotated[str, _cut_to(1024), Field(max_length=1024)]
ShortMessage = Annotated[str, _cut_to(256), Field(max_length=256)]

_DNS_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_DNS_NAME: Final = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_FRAGMENT: Final = r"[A-Za-z0-9_.-]{1,128}"

DnsName = Annotated[str, Field(pattern=f"^{_DNS_NAME}$", max_length=253)]
"""Name of an object."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)]
"""64 lower-case hexadecimal digits."""
Reference = Annotated[str, Field(pattern=f"^({_DNS_LABEL}/)?{_DNS_NAME}(#{_FRAGMENT})?$", max_length=446)]
"""``name`` or ``namespace/name``, each optionally with ``#tag`` or ``#digest``."""
PinnedReference = Annotated[str, Field(max_length=446)]
"""``namespace/name#digest``."""
Image = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$", max_length=512)]
"""A container image; a digest is better than a tag."""
SecretKeyName = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]
Timestamp = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
"""RFC 3339, UTC."""
StoreKey = Annotated[str, Field(max_length=1024)]
"""Key in the object store."""

TAG_PATTERN: Final = f"^{_FRAGMENT}$"
DIGEST_TAG: Final = Rule("self.all(t, !t.matches('^[0-9a-f]{64}$'))", "a tag must not look like a digest")


def _tag(value: str) -> str:
    if re.fullmatch(r"[0-9a-f]{64}", value):
        raise fault("tag", "a tag must not look like a digest")
    return value


Tag = Annotated[str, Field(pattern=TAG_PATTERN, max_length=128), AfterValidator(_tag)]

MAX_TAGS: Final = 63
"""Beside ``latest``; the status has room for 64."""
LATEST_POINTER: Final = Rule("!('latest' in self)", "latest is moved by every publication and by nothing else")


def _pointer_tags(value: Mapping[str, V]) -> Mapping[str, V]:
    for tag in value:
        if tag == "latest":
            raise fault("tag", LATEST_POINTER.message)
        if not re.fullmatch(_FRAGMENT, tag) or len(tag) > 128:
            raise fault("tag", f"{tag[:40]!r} is not a tag: letters, digits, _, . and -")
        _tag(tag)
    return value


TagPointers = Annotated[
    FrozenMap[Annotated[str, Field(pattern=f"^{_FRAGMENT}$", max_length=128)]], MaxEntries(64), AfterValidator(_pointer_tags)
]


def tag_pointers_field() -> Any:
    """``tagPointers``, the same in Task and Taskset."""
    return Field(
        default={},
        description="Tags of other revisions: tag -> digest or tag of a published revision. They move freely; latest moves by itself.",
        json_schema_extra=cel(LATEST_POINTER),
    )


ARCHIVE_REF_RULE: Final = Rule(
    "!self.matches('(#|/)[.][.]?(/|$)')", "the path must be canonical: namespace/fileset#path without . and .. parts"
)


def _archive_ref(value: str) -> str:
    path = value.partition("#")[2]
    if any(part in (".", "..") for part in path.split("/")):
        raise fault("archive_ref", ARCHIVE_REF_RULE.message)
    return value


ArchiveRef = Annotated[
    str,
    Field(
        pattern=rf"^{_DNS_LABEL}/[A-Za-z0-9]([A-Za-z0-9_.-]{{0,251}}[A-Za-z0-9_-])?#[^/\\%?#:\x00-\x1f\x7f]+(/[^/\\%?#:\x00-\x1f\x7f]+)*$",
        max_length=1024,
        json_schema_extra=cel(ARCHIVE_REF_RULE),
    ),
    AfterValidator(_archive_ref),
]
"""``namespace/fileset#path``, canonical form only."""


class StoredFile(Model):
    """A file of a fileset in the object store, with its digest."""

    ref: ArchiveRef = Field(description="Where the file is: namespace/fileset#path, canonical form only.")
    sha256: Sha256 = Field(description="SHA-256 of the stored bytes, 64 lower-case hexadecimal digits; checked on every read.")


# --- conditions and object metadata -------------------------------------------------------------------------------------------------


class Condition(Model):
    """One aspect of an object's state, as metav1.Condition."""

    type: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9]*$", max_length=64, description="The aspect, in CamelCase; scripts wait for it by this name."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds: True, False or Unknown.")
    reason: str = Field(
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=64, description="Why, as one CamelCase word from a fixed list."
    )
    message: Message = Field(default="", description="What happened, whose fault it is, and the next step.")
    last_transition_time: Timestamp = Field(description="When status last changed.")
    observed_generation: int = Field(default=0, ge=0, description="The metadata.generation that this condition was computed from.")


def conditions_field() -> Any:
    """The ``conditions`` field of a status."""
    return Field(
        default=(),
        max_length=12,
        description="State by aspect; a condition that was ever set stays. `kubectl wait --for=condition=TYPE` reads them.",
        json_schema_extra={LIST_TYPE: "map", LIST_MAP_KEYS: ["type"]},
    )


def _known_metadata(value: object) -> object:
    # The server puts much more into metadata; even a strict parse must not refuse it.
    if not isinstance(value, Mapping):
        return value
    known = {name for field, info in ObjectMeta.model_fields.items() for name in (field, info.alias)}
    return {key: item for key, item in value.items() if key in known and item is not None}


class ObjectMeta(Model):
    """The part of metav1.ObjectMeta that is used here."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: FrozenMap[str] = {}
    annotations: FrozenMap[str] = {}


Metadata = Annotated[ObjectMeta, BeforeValidator(_known_metadata)]


class ObjectKey(NamedTuple):
    """Names an object of a known kind."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Resource(Model):
    """A whole object: a kind adds ``kind``, ``spec`` and ``status``."""

    api_version: Literal["seatrial.dev/v1alpha1"] = "seatrial.dev/v1alpha1"
    metadata: Metadata = ObjectMeta()

    SHORT_NAMES: ClassVar[tuple[str, ...]] = ()
    COLUMNS: ClassVar[tuple[Column, ...]] = ()
    RULES: ClassVar[tuple[Rule, ...]] = ()
    """CEL rules of the object as a whole."""

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.metadata.namespace, self.metadata.name)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read an object from the API server: unknown fields are ignored, because the server has pruned them.

        Raises:
            PlaintextCredential: a literal looks like a credential.
            InvalidSpec: anything else that the schema refuses; ``path`` is that of the first problem, the message names up to ten.
        """
        try:
            return cls.model_validate(_plain(raw), by_name=False)
        except ValidationError as error:
            raise _invalid(error) from None

    @classmethod
    def parse_strict(cls, raw: Mapping[str, Any]) -> Self:
        """Read an object from a user's file: unknown fields are refused with their path.

        Raises:
            PlaintextCredential, InvalidSpec: as ``parse``.
        """
        try:
            return cls.model_validate(_plain(raw), extra="forbid", by_name=False)
        except ValidationError as error:
            raise _invalid(error) from None

    @classmethod
    def problems(cls, raw: Mapping[str, Any]) -> tuple[Problem, ...]:
        """All faults of a user's object, unknown fields included; empty when it is good."""
        try:
            cls.model_validate(_plain(raw), extra="forbid", by_name=False)
        except ValidationError as error:
            return _problems(error)
        return ()


def _plain(value: Any) -> Any:
    # Kopf hands out read-only views, which do not survive a copy.
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _details(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_input=False, include_context=False)


_MESSAGES: Final[Mapping[str, str]] = {"extra_forbidden": "unknown field", "missing": "required"}


def _problems(error: ValidationError) -> tuple[Problem, ...]:
    details = _details(error)
    faulty = {item["loc"][:-1] for item in details}
    # A list whose only item is refused is also called too short: one fault, one message.
    return tuple(
        Problem(_path(item["loc"]), _MESSAGES.get(item["type"], item["msg"]))
        for item in details
        if not (item["type"] == "too_short" and item["loc"] in faulty)
    )


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part == "[key]":
            text += " (key)"
        else:
            text += f".{part}" if text else part
    return text or "object"


def _invalid(error: ValidationError) -> InvalidSpec:
    found = _problems(error)
    secret = any(item["type"] == PLAINTEXT_CREDENTIAL for item in _details(error))
    first, *rest = found
    message = first.message + "".join(f"; {path}: {text}" for path, text in rest[:9])
    if len(rest) > 9:
        message += f"; and {len(rest) - 9} more"
    return (PlaintextCredential if secret else InvalidSpec)(first.path, message)

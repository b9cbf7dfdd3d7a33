"""From a native task id to the name of a Kubernetes object.

Requirements: a DNS-1123 subdomain of at most 253 characters; stable; different ids keep different names even when they share a long
beginning; two ids that only differ in forbidden characters do collide, and ``publish`` names both. Source: nemo.md 11.1.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

MAX_CHARS: Final = 200
_HASH_CHARS: Final = 10
_FORBIDDEN: Final = re.compile(r"[^a-z0-9.]+")
# A subdomain's labels start and end with a letter or digit, so no dot may stand beside a dot or a hyphen.
_AROUND_DOTS: Final = re.compile(r"[-.]*\.[-.]*")


def object_name(native_id: str) -> str:
    """The object name of a task: lower case, everything but ``[a-z0-9.]`` becomes one hyphen, long names end in a hash.

    Labels longer than 63 characters are legal in an object name (the limit of 63 is for labels of DNS itself).

    >>> object_name("My-Org/Fix_the bug")
    'my-org-fix-the-bug'
    """
    name = _AROUND_DOTS.sub(".", _FORBIDDEN.sub("-", native_id.lower())).strip("-.")
    if name and len(name) <= MAX_CHARS:
        return name
    digest = hashlib.sha256(native_id.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    head = name[: MAX_CHARS - _HASH_CHARS - 1].rstrip("-.")
    return f"{head}-{digest}" if head else f"task-{digest}"


def name_collisions(native_ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Object names that more than one of the ids would get, with those ids in order."""
    owners: dict[str, list[str]] = {}
    for native_id in native_ids:
        owners.setdefault(object_name(native_id), []).append(native_id)
    return {name: tuple(ids) for name, ids in owners.items() if len(ids) > 1}

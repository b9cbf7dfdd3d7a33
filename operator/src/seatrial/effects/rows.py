"""Rows in the object store: numbered shards that are written once, and the tables at the end.

Why numbers with conditional puts: two writers cannot both append shard 7, so a leader that was replaced finds out at its next commit and
reads what the other wrote. Every hundredth shard a base takes the place of all before it, which bounds the reads of a restart.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from seatrial.api.evaljob import EvalJobSpec
from seatrial.contract import RESULT_BYTES, ContractBroken, verify_result
from seatrial.core import naming, rows
from seatrial.core.bundle import build_tables
from seatrial.core.frozen import FrozenPlan
from seatrial.core.reuse import cache_folder, cache_name, decode_entry, encode_entry, is_reusable
from seatrial.core.rows import Row
from seatrial.core.scripts import ScriptOutcome
from seatrial.core.trial import Found, read_result
from seatrial.effects.aiostore import AsyncStore
from seatrial.errors import AlreadyExists, InvalidSpec, NotFound

log = logging.getLogger(__name__)

SHARD_BYTES: Final = 256 * 1024 * 1024
BASE_EVERY: Final = 100
READS: Final = 16
CALLS: Final = 32
"""Of the store at a time, for small objects."""
ENTRY_BYTES: Final = 1024 * 1024

_SHARD: Final = re.compile(r"(\d{8})\.jsonl")
_BASE: Final = re.compile(r"base-(\d{8})\.jsonl")


Item = TypeVar("Item")


class LostRace(Exception):
    """Somebody else appended: read the rows again before anything is decided."""


class RowLog:
    """The rows of one job: what is committed, and where the next shard goes."""

    def __init__(self, store: AsyncStore, prefix: str, *, adopted: Sequence[Row] = ()) -> None:
        self._store, self._prefix, self._adopted = store, prefix, adopted
        self._next = 0
        self.by_trial: dict[str, tuple[Row, ...]] = rows.by_trial(adopted)

    async def load(self) -> None:
        """Read the newest base and the shards after it.

        Raises:
            Unavailable, Forbidden: the store; nothing is changed then.
        """
        folder = naming.rows_prefix(self._prefix)
        names = [entry.key.removeprefix(folder) for entry in await self._store.list(folder)]
        base = max((int(match[1]) for name in names if (match := _BASE.fullmatch(name))), default=-1)
        numbers = sorted(int(match[1]) for name in names if (match := _SHARD.fullmatch(name)) and int(match[1]) > base)
        keys = [f"{folder}base-{base:08d}.jsonl"] if base >= 0 else []
        keys += [naming.rows_key(self._prefix, number) for number in numbers]
        slots = asyncio.Semaphore(READS)

        async def read(key: str) -> tuple[Row, ...]:
            async with slots:
                data = await self._store.get(key, max_bytes=SHARD_BYTES)
            # A base of 10,000 rows takes a tenth of a second; the loop goes on meanwhile.
            return await asyncio.to_thread(rows.from_lines, data)

        shards = await asyncio.gather(*(read(key) for key in keys))
        self._next = max([base, *numbers], default=-1) + 1
        self.by_trial = rows.by_trial([*self._adopted, *(row for shard in shards for row in shard)])

    async def append(self, new: Sequence[Row]) -> None:
        """Commit rows as the next shard.

        Raises:
            LostRace: the shard's number was taken; call ``load``.
            Unavailable, Forbidden, DiskFull: the store; nothing is known about the outcome, and the same call may be repeated.
        """
        try:
            await self._store.put_new(naming.rows_key(self._prefix, self._next), rows.to_lines(new), content_type="application/x-ndjson")
        except AlreadyExists as error:
            raise LostRace from error
        number, self._next = self._next, self._next + 1
        touched = {row.trial for row in new}
        known = [row for trial in touched for row in self.by_trial.get(trial, ())]
        self.by_trial.update(rows.by_trial([*known, *new]))
        if self._next % BASE_EVERY == 0:
            key = f"{naming.rows_prefix(self._prefix)}base-{number:08d}.jsonl"
            kept = [row for trial in self.by_trial.values() for row in trial]
            await self._store.put(key, await asyncio.to_thread(rows.to_lines, kept), content_type="application/x-ndjson")


class ResultFinder:
    """Looks for committed results of retries whose Pods have no verdict."""

    def __init__(self, store: AsyncStore, prefix: str, key: bytes) -> None:
        self._store, self._prefix, self._key = store, prefix, key

    async def touched(self) -> dict[tuple[str, int], bool]:
        """All retries of which the store holds something, in one listing: True where ``result.json`` is there."""
        found: dict[tuple[str, int], bool] = {}
        for entry in await self._store.list(naming.trials_prefix(self._prefix)):
            parsed = naming.parse_trial_object(self._prefix, entry.key)
            if parsed is not None:
                trial, retry, name = parsed
                found[trial, retry] = found.get((trial, retry), False) or name == "result.json"
        return found

    async def find(self, trial: str, retry: int) -> Found:
        """The result of one retry; one without a valid signature does not count.

        Raises:
            Unavailable, Forbidden: the store; ask again.
        """
        key = naming.result_key(self._prefix, trial, retry)
        try:
            data = await self._store.get(key, max_bytes=RESULT_BYTES)
        except NotFound:
            return Found(None)
        except InvalidSpec as error:
            return Found(None, note=f"result.json does not count: {error}", touched=True)
        return read_found(data, key=self._key, trial=trial, retry=retry)


def read_found(data: bytes, *, key: bytes, trial: str, retry: int) -> Found:
    """What a stored ``result.json`` says."""
    try:
        body = verify_result(data, key)
        verdict = read_result(body, trial=trial, retry=retry, sha256=hashlib.sha256(data).hexdigest())
    except ContractBroken as error:
        log.warning("result without value", extra={"trial": trial, "retry": retry, "reason": str(error)})
        return Found(None, note=f"result.json does not count: {error}", touched=True)
    return Found(verdict, touched=True)


class Saved(NamedTuple):
    """Where the tables are."""

    summary_key: str


async def save_results(
    store: AsyncStore, plan: FrozenPlan, spec: EvalJobSpec, log_: RowLog, *, prefix: str, scripts: Sequence[ScriptOutcome] = ()
) -> Saved:
    """Write the tables of an ended job; their bytes depend on the plan and the rows alone, so a repetition changes nothing.

    ``summary.json`` comes last: where it is, everything else is.

    Raises:
        Unavailable, Forbidden, DiskFull: the store; the call may be repeated.
    """
    # A job of 10,000 trials takes a second; the loop goes on meanwhile.
    tables = await asyncio.to_thread(build_tables, plan, spec, dict(log_.by_trial), scripts=scripts)
    *others, last = tables.items()
    await asyncio.gather(*(store.put(f"{prefix}{name}", data, content_type=_type(name)) for name, data in others))
    if plan.identity is not None:
        await index_results(store, plan, log_.by_trial, prefix=prefix, replace=spec.cache.policy == "refresh")
    await store.put(f"{prefix}{last[0]}", last[1])
    return Saved(f"{prefix}summary.json")


async def find_cached(store: AsyncStore, plan: FrozenPlan) -> dict[str, Row]:
    """Entries of the cache for the trials of a plan, by name; what cannot be read or has another format is not served.

    Raises:
        Unavailable, Forbidden: the store.
    """
    assert plan.identity is not None
    folder = cache_folder(plan.namespace, plan.identity)
    # The digests of 10,000 names take a fifth of a second; the loop goes on meanwhile.
    wanted = await asyncio.to_thread(lambda: {cache_name(plan, trial) for trial in plan.trials})
    present = [name for entry in await store.list(folder) if (name := entry.key.removeprefix(folder)) in wanted]
    found: dict[str, Row] = {}

    async def read(name: str) -> None:
        try:
            row = decode_entry(await store.get(f"{folder}{name}", max_bytes=ENTRY_BYTES))
        except (NotFound, InvalidSpec):
            return
        if row is not None:
            found[name] = row

    await _each(present, read)
    return found


async def index_results(store: AsyncStore, plan: FrozenPlan, by_trial: Mapping[str, Sequence[Row]], *, prefix: str, replace: bool) -> None:
    """Put the valid results that ran here into the cache; the first committed one stays unless ``replace``.

    Raises:
        Unavailable, Forbidden, DiskFull: the store; the call may be repeated.
    """
    assert plan.identity is not None
    folder = cache_folder(plan.namespace, plan.identity)

    def entries() -> list[tuple[str, bytes]]:
        ended = ((trial, by_trial[trial.name][-1]) for trial in plan.trials if trial.name in by_trial)
        return [(f"{folder}{cache_name(plan, trial)}", encode_entry(row, folder=prefix)) for trial, row in ended if is_reusable(row)]

    async def write(entry: tuple[str, bytes]) -> None:
        key, data = entry
        if replace:
            await store.put(key, data)
            return
        try:
            await store.put_new(key, data)
        except AlreadyExists:
            try:
                known = decode_entry(await store.get(key, max_bytes=ENTRY_BYTES))
            except InvalidSpec:  # larger than any entry of ours
                known = None
            if known is None:
                await store.put(key, data)

    await _each(await asyncio.to_thread(entries), write)


async def _each(items: Iterable[Item], work: Callable[[Item], Awaitable[None]]) -> None:
    """``work`` on every item, a few at a time: as many tasks as items would be one long turn of the loop."""
    todo = iter(items)

    async def go_on() -> None:
        for item in todo:
            await work(item)

    await asyncio.gather(*(go_on() for _ in range(CALLS)))


def _type(name: str) -> str:
    return {"json": "application/json", "html": "text/html; charset=utf-8"}.get(name.rpartition(".")[2], "application/x-ndjson")

"""Helpers for tests of one's own metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

Schema = TypeVar("Schema", bound=BaseModel)


class FakeLLM:
    """A judge that gives the answers it was made with, one after the other, and remembers what it was asked."""

    def __init__(self, *answers: Mapping[str, Any] | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[list[dict[str, str]]] = []

    async def generate_object(self, schema: type[Schema], messages: Sequence[Mapping[str, str]]) -> Schema:
        """The next answer as an object of ``schema``; an exception among the answers is raised."""
        self.asked.append([dict(message) for message in messages])
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return schema.model_validate(answer)

"""The dotted keys of a schema, and messages about wrong ones and wrong values."""

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

SHORT_NAMES = {"s": "bag_size", "r": "step_ratio", "L": "sequence_length", "lr": "learning_rate"}
"""Keys by the names that papers and other trainers use."""
LONGEST_KEY = 100

_WANTED = {"bool": "true or false", "int": "a whole number", "float": "a number"}
"""The values that a key takes, by the first word of pydantic's type of a problem."""


def problem_of(schema: type[BaseModel], error: ValidationError) -> str:
    """Return the first problem of a schema's values in one line: the key, the value, and for an
    unknown key the one that was probably meant."""
    problems = error.errors(include_url=False)
    keys = [_key(schema, problem["loc"], problem["type"]) for problem in problems]
    keyed = list(zip(keys, problems, strict=True))
    key = keys[0] or "config"
    # A key that takes a word or a table has a problem as either; most people mean the word.
    of_key = [problem for other, problem in keyed if other == keys[0]]
    first = next((problem for problem in of_key if problem["type"] == "literal_error"), of_key[0])
    unknown = {
        other or "config": _near_key(_without_places(other), dotted_keys(schema))
        for other, problem in keyed
        if problem["type"] == "extra_forbidden"
    }
    # A missing key may be there under another name.
    key = next((other for other, near in unknown.items() if near == _without_places(key)), key)
    if key in unknown:
        message = f"unknown key; there are: {', '.join(_section_at(schema, key).model_fields)}"
        if unknown[key]:
            message = f"unknown key; did you mean {unknown[key]}?"
    elif first["type"] == "missing":
        message = f"missing; give it in the file or by --set {key}=…"
    else:
        wanted = _WANTED.get(first["type"].partition("_")[0])
        message = f"should be {wanted}" if wanted else first["msg"].removeprefix("Value error, ")
        message = message.replace("Input should", "should")
        message = message.replace("an object", "a table such as {}")
        if not isinstance(first.get("input"), dict | list):
            given = repr(first.get("input"))
            message = f"{given if len(given) < 80 else given[:79] + '…'}: {message}"
    more = len(set(keys)) - 1
    return f"{key}: {message}{f' (and {more} more)' if more else ''}"


def _near_key(given: str, keys: Iterable[str]) -> str | None:
    """Return the dotted key most like `given`, or None.

    It is a key of the same section with a similar name, or else one of exactly this name in another
    section, which goes first unless only a letter is wrong.
    """
    section, _, name = given.rpartition(".")
    own: dict[str, str] = {}
    others: dict[str, str] = {}
    for key in keys:
        place, _, word = key.rpartition(".")
        if place == section:
            own[word] = key
        else:
            others.setdefault(word, key)
    if not name or len(name) > LONGEST_KEY:
        return None
    meant = SHORT_NAMES.get(name, name)
    least = 0.6 if meant not in others else 0.85
    near = [meant] if meant in own else get_close_matches(meant.lower(), own, 1, least)
    return own[near[0]] if near else others.get(meant)


def _section_at(schema: type[BaseModel], key: str) -> type[BaseModel]:
    """Return the innermost section that a dotted key lies in."""
    for part in key.split(".")[:-1]:
        schema = sections_of(schema).get(part, schema)
    return schema


def _without_places(key: str) -> str:
    """Return a key such as `data.corpora.0.path` without its place in the list."""
    return re.sub(r"\.\d+(?=\.)", "", key)


def dotted_keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield all keys, dotted; those inside a section come before the section's own."""
    inner = sections_of(section)
    for name in section.model_fields:
        if name in inner:
            yield from dotted_keys(inner[name], f"{prefix}{name}.")
        yield f"{prefix}{name}"


def _key(schema: type[BaseModel], place: Sequence[int | str], problem: str) -> str:
    """Return a problem's key as a file names it, without pydantic's names for alternatives."""
    kept: list[str] = []
    section = schema
    for part in place[: -1 if problem == "extra_forbidden" else None]:
        if isinstance(part, int) or part in section.model_fields:
            kept.append(str(part))
        section = sections_of(section).get(str(part), section)
    return ".".join([*kept, *map(str, place[len(place) - (problem == "extra_forbidden") :])])


def takes_count(schema: type[BaseModel], key: str) -> bool:
    """Return whether a dotted key takes a whole number, and no other kind of value but None."""
    field = _section_at(schema, key).model_fields.get(key.rpartition(".")[2])
    kinds = set(_alternatives(field.annotation)) if field else set()
    return kinds - {NoneType} == {int}


def _alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the types of a union, without what annotates them."""
    if get_origin(annotation) is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for alternative in get_args(annotation):
            yield from _alternatives(alternative)
    else:
        yield annotation


@cache
def sections_of(schema: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the sections of a schema by their keys."""
    inner = {key: section_of(field.annotation) for key, field in schema.model_fields.items()}
    return {key: section for key, section in inner.items() if section is not None}


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the class of a section, also of one that is optional or in a list; else None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(section_of, get_args(annotation))), None)

"""The dotted keys of a pydantic schema, such as `schedule.steps`, and messages about keys that are
unknown, missing or have a wrong value. The schemas of configs, Slurm profiles and imported runs use
them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from tst_study.text import short

TABLE = "a table, such as {key = value}"


def problem_of(schema: type[BaseModel], error: ValidationError) -> str:
    """Describe the most telling problem that a validation found, in one line.

    The line names the key, quotes the wrong value (unless it is a table or a list), and says what
    is wrong. For an unknown key it suggests another key instead of quoting a value (`meant`).
    """
    problems = error.errors(include_url=False)
    first = min(problems, key=_rank)
    kind, given, keys = first["type"], first["input"], list(dotted_keys(schema))
    key = _key(first, keys)
    if kind == "extra_forbidden":
        return f"{key}: unknown key; {meant(key, keys)}"
    if kind == "missing":
        missing = [_key(each, keys) for each in problems if each["type"] == kind]
        it, name = ("it", key) if len(missing) == 1 else ("them", "KEY")
        return f"{', '.join(missing)}: missing; give {it} in the file or by --set {name}=…"
    message = first["msg"].removeprefix("Value error, ")
    for each in problems:
        # Where a word is allowed, a value of another kind may be allowed, too.
        if kind == "literal_error" and each is not first and _key(each, keys) == key:
            message += each["msg"].replace("Input should be", " or")
    message = message.replace("Input should", "should").replace("String should", "should")
    message = (
        message.replace("a valid boolean", "true or false")
        .replace("an object", TABLE)
        .replace("Tuple should have at least 1 item after validation, not 0", "should not be empty")
        .replace("a valid tuple", "a list")
        .replace("a valid array", "a list")
    )
    message = re.sub(r"a valid dictionary or instance of \w+", TABLE, message)
    value = "" if isinstance(given, dict | list) else short(given)
    return ": ".join(filter(None, (key, value, message)))


def _rank(problem: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return a sort key for problems, the most telling first.

    Unknown keys come first, because one of them may be the misspelt name of a missing key. Missing
    keys come last, because a wrong value may be why they are missing. If a key takes a word or a
    table, and a table was given, the complaint that the table is none of the words comes last, too.
    """
    kind, is_table = problem["type"], isinstance(problem["input"], dict | list)
    return kind != "extra_forbidden", kind == "missing" or (kind == "literal_error" and is_table)


def _key(problem: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the dotted key of a problem as a config file would spell it. Pydantic's path also
    names the alternative of a union that it tried; these parts are dropped."""
    known = {word for key in keys for word in key.split(".")}
    if problem["type"] == "extra_forbidden":
        known.add(problem["loc"][-1])
    return ".".join(str(part) for part in problem["loc"] if isinstance(part, int) or part in known)


def meant(given: str, keys: Sequence[str]) -> str:
    """Suggest a key in place of an unknown one: a key of the same section with a similar name, or
    else the keys of the same name in other sections, or else all keys of the section."""
    section, _, name = re.sub(r"\.\d+(?=\.)", "", given).rpartition(".")
    parts = [key.rpartition(".") for key in keys]
    own = {word: f"{place}{dot}{word}" for place, dot, word in parts if place == section}
    elsewhere = [f"{place}{dot}{word}" for place, dot, word in parts if word == name]
    near = [own[word] for word in get_close_matches(name, own, 1)] or elsewhere
    return f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(own)}"


def dotted_keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield all dotted keys of a schema. The keys inside a section come before the section's own
    key."""
    inner = sections_of(section)
    for name in section.model_fields:
        if name in inner:
            yield from dotted_keys(inner[name], f"{prefix}{name}.")
        yield f"{prefix}{name}"


@cache
def sections_of(schema: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the class of each of a schema's sections, by the section's key."""
    inner = {key: section_of(field.annotation) for key, field in schema.model_fields.items()}
    return {key: section for key, section in inner.items() if section is not None}


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the class of the section that a field holds, also if the section is optional or the
    item of a tuple; None if the field holds no section."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(section_of, get_args(annotation))), None)

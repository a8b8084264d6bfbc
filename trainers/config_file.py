"""Reading a YAML configuration, command-line overrides on top, into a pydantic model: errors name file and key."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from provgym.eval.problems import innermost_problems
from provgym.trainers.plain_yaml import dump_plain_yaml, load_plain_yaml

Model = TypeVar("Model", bound=BaseModel)


COMMAND_LINE = "command line"


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names file, key, what was found and what was expected."""


class Given(NamedTuple):
    """One value put on top of a file.

    Attributes:
        key: Dotted, such as ``optim.learning_rate`` or ``phases.0.steps``; ``*`` stands for every place of a list.
        value: Replaces what stood there.
        where: Who gave it, for error messages.
    """

    key: str
    value: Any
    where: str = COMMAND_LINE

    def __str__(self) -> str:
        return f"{self.where}: {'--' if self.where == COMMAND_LINE else ''}{self.key}"


def load_config(model: type[Model], path: str | Path | None, overrides: Sequence[str] = ()) -> Model:
    """Read ``path`` (or nothing), apply overrides, and validate.

    Args:
        model: The pydantic model.
        path: YAML file; None starts from the model's defaults.
        overrides: ``--optim.learning_rate 1e-4`` or ``--optim.learning_rate=1e-4``; they beat the file.

    Raises:
        ConfigError: If the file is missing or no mapping, a key is unknown, or a value is refused.
    """
    return load_with(model, path, parse_overrides(overrides))


def load_with(model: type[Model], path: str | Path | None, values: Sequence[Given]) -> Model:
    """Read ``path`` (or nothing), put values on top, the later over the earlier, and validate.

    Raises:
        ConfigError: As :func:`load_config`; the message says who gave a refused value.
    """
    data = {} if path is None else _read_yaml(Path(path))
    given: list[Given] = []
    for wanted in values:
        for place in _expand(data, wanted):
            # A copy: a later value may go into this one, which belongs to the caller.
            _put(data, place._replace(value=copy.deepcopy(place.value)))
            given.append(place)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = innermost_problems(error.errors())
        lines = [f"{_place(p, path, given)}: {_explain(model, p)}" for p in problems]
        raise ConfigError("\n  ".join(lines)) from error


def dump_config(config: BaseModel) -> str:
    """Return the resolved configuration as YAML."""
    return dump_plain_yaml(config.model_dump(mode="json"))


def changed_keys(path: Path, config: BaseModel, *, except_for: Sequence[str] = ()) -> list[str]:
    """Return what differs between a saved resolved configuration and ``config``, as ``key: old -> new``.

    Args:
        path: A file that :func:`dump_config` wrote; nothing is known to differ from one that isn't there.
        config: The configuration now.
        except_for: Top keys that may differ.

    Raises:
        ConfigError: If the file is damaged.
    """
    if not path.is_file():
        return []
    way_out = "put the file back that the run was begun with, or start over with --fresh"
    try:
        saved = _read_yaml(path)
    except ConfigError as error:
        raise ConfigError(f"{error}; {way_out}") from error
    if not saved:
        raise ConfigError(f"{path} holds no keys, expected a resolved configuration; {way_out}")
    old, new = _flat(saved), _flat(config.model_dump(mode="json"))
    keys = [k for k in dict.fromkeys((*old, *new)) if k.split(".")[0] not in except_for]
    return [f"{k}: {old.get(k)!r} -> {new.get(k)!r}" for k in keys if old.get(k) != new.get(k)]


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(data, dict | list) and data:
        pairs = data.items() if isinstance(data, dict) else enumerate(data)
        return {k: v for key, value in pairs for k, v in _flat(value, f"{prefix}{key}.").items()}
    return {prefix.removesuffix("."): data}


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.yaml")], n=3)
        hint = f"; did you mean {', '.join(str(path.parent / n) for n in near)}?" if near else ""
        raise ConfigError(f"configuration file {path} does not exist{hint}")
    try:
        data = load_plain_yaml(path.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping of keys, found {type(data).__name__}")
    return data


def parse_overrides(overrides: Sequence[str]) -> list[Given]:
    """Read ``--optim.learning_rate 1e-4`` and ``--optim.learning_rate=1e-4`` as values put on a file.

    Raises:
        ConfigError: If a word is no key, a value is missing, or it is not YAML.
    """
    pairs: list[Given] = []
    rest = list(overrides)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) < 3:
            raise ConfigError(f"command line: expected --key value, found {word!r}")
        key, has_value, text = word[2:].partition("=")
        if not has_value:
            if not rest:
                raise ConfigError(f"command line: --{key} lacks a value")
            text = rest.pop(0)
        try:
            pairs.append(Given(key.replace("-", "_"), load_plain_yaml(text)))
        except yaml.YAMLError as error:
            raise ConfigError(f"command line: --{key} {text!r} is not a YAML value: {error}") from error
    return pairs


def _expand(data: dict[str, Any], given: Given) -> list[Given]:
    """Write ``*`` out as every place of the list that stands there."""
    before, star, after = given.key.partition(".*")
    if not star:
        return [given]
    place: Any = data
    for part in before.split("."):
        if isinstance(place, list) and part.isdigit() and int(part) < len(place):
            place = place[int(part)]
        else:
            place = place.get(part) if isinstance(place, dict) else None
    if not isinstance(place, list):
        raise ConfigError(f"{given}: {before!r} holds {place!r}, expected a list for '*' to run over")
    return [g for i in range(len(place)) for g in _expand(data, given._replace(key=f"{before}.{i}{after}"))]


def _put(data: dict[str, Any], given: Given) -> None:
    *parents, last = given.key.split(".")
    place: Any = data
    for parent in parents:
        if isinstance(place, list):
            place = place[_list_index(place, parent, given)]
            continue
        if place.get(parent) is None:
            place[parent] = {}
        place = place[parent]
        if not isinstance(place, dict | list):
            raise ConfigError(f"{given} goes into {parent!r}, which holds {place!r}, not a mapping")
    if isinstance(place, list):
        place[_list_index(place, last, given)] = given.value
    else:
        place[last] = given.value


def _list_index(place: list[Any], text: str, given: Given) -> int:
    if not text.isdigit() or int(text) >= len(place):
        raise ConfigError(f"{given}: {text!r} must be an index below {len(place)}")
    return int(text)


def _place(problem: Any, path: str | Path | None, given: Sequence[Given]) -> str:
    """Say where a value came from: the file, or whoever put it on top."""
    key = [str(part) for part in problem["loc"]]
    for last in given[::-1]:
        words = last.key.split(".")
        if words[: len(key)] == key or key[: len(words)] == words:
            return last.where
    return COMMAND_LINE if path is None else str(path)


def _explain(model: type[BaseModel], problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"]) or "(top)"
    if problem["input"] is None and ":" in key:
        last = str(problem["loc"][-1])
        return f"key {key!r} has no value; YAML needs a space after a colon: {last.replace(':', ': ', 1)!r}"
    if problem["type"] == "extra_forbidden":
        return f"key {key!r} is unknown; {_suggest(model, problem['loc'])}"
    message = problem["msg"].removeprefix("Value error, ")
    # Checks of a whole section name its values themselves.
    found = "" if isinstance(problem["input"], dict) and message != problem["msg"] else f"; found {problem['input']!r}"
    return f"key {key!r}: {message}{found}"


def _suggest(model: type[BaseModel], loc: Sequence[Any]) -> str:
    """Say what an unknown key may have meant: a key beside it, one elsewhere, another library's name."""
    name = str(loc[-1])
    foreign: Mapping[str, str] = getattr(model, "foreign_names", {})
    if name in foreign:
        return f"here it is {foreign[name]!r}"
    known = _known_keys(model, loc[:-1])
    beside = difflib.get_close_matches(name, known, n=1)
    if beside:
        return f"did you mean {'.'.join(map(str, (*loc[:-1], beside[0])))!r}?"
    places = _all_places(model)
    elsewhere = difflib.get_close_matches(name, places, n=1)
    return f"did you mean {places[elsewhere[0]]!r}?" if elsewhere else f"known keys: {', '.join(sorted(known))}"


def _known_keys(model: type[BaseModel], path: Sequence[Any]) -> list[str]:
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part) if hasattr(current, "model_fields") else None
        candidates = [] if field is None else _models_in(field.annotation)
        if not candidates:
            return []
        current = candidates[0]
    return list(current.model_fields)


def _all_places(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Return the last part of every key of nested models, with the whole key."""
    places: dict[str, str] = {}
    for name, field in model.model_fields.items():
        places.setdefault(name, prefix + name)
        for inner in _models_in(field.annotation):
            places = _all_places(inner, f"{prefix}{name}.") | places
    return places


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for arg in getattr(annotation, "__args__", ()) for m in _models_in(arg)]

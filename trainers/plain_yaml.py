"""YAML whose scalars mean what they look like: ``1e-5`` is a number, ``no`` is text, ``010`` is ten.

PyYAML follows YAML 1.1, where ``1e-5`` is text, ``no`` is false and ``010`` is eight, and where a key given twice
silently keeps its last value. This reader follows the core schema of YAML 1.2 and refuses a repeated key. A field
that wants a truth value still takes ``no`` and ``off``: pydantic reads those words.

Source: YAML 1.2.2, section 10.3.2 (core schema).
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_SCALARS = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    ("tag:yaml.org,2002:float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("tag:yaml.org,2002:float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
)


class _PlainLoader(yaml.SafeLoader):
    """The reader; PyYAML takes constructors and resolvers as class attributes."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping, each key once."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float):
                continue  # the reader below refuses what cannot be a key
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"found key {key!r} a second time, expected each once", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_decimal(self, node: yaml.ScalarNode) -> int:
        """Read digits as a decimal number, leading zeros or not."""
        return int(self.construct_scalar(node))


class _PlainDumper(yaml.SafeDumper):
    """The writer: quotes a text that this reader, or one of YAML 1.1, would take for something else."""


for _tag, _pattern, _first in _SCALARS:
    for _side in (_PlainLoader, _PlainDumper):
        _side.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern})$"), list(_first))
_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_decimal)


def load_plain_yaml(text: str) -> Any:
    """Read one YAML document.

    Raises:
        yaml.YAMLError: If the text is not YAML, or a mapping names a key twice.

    Example:
        >>> load_plain_yaml("{rate: 1e-5, name: no, steps: 010, lora: null, scale: true}")
        {'rate': 1e-05, 'name': 'no', 'steps': 10, 'lora': None, 'scale': True}
    """
    return yaml.load(text, Loader=_PlainLoader)  # noqa: S506 - a SafeLoader


def dump_plain_yaml(data: Any) -> str:
    """Write one YAML document that :func:`load_plain_yaml`, and any other reader, reads as it was.

    Example:
        >>> print(dump_plain_yaml({"name": "1e5", "rate": 1e-5}), end="")
        name: '1e5'
        rate: 1.0e-05
    """
    text: str = yaml.dump(data, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True)
    return text

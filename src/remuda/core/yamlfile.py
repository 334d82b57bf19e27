"""Settings in YAML files and in `key=value` words. Plain data only: no tag builds an object."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from remuda.core.errors import ConfigError, first_line
from remuda.core.options import LARGEST, shown
from remuda.core.plan import Plan

MOST_BYTES = 8 << 20
"""Of a file of settings."""
MOST_VALUES = 250_000
"""In settings, with aliases written out: a few lines of them can stand for billions."""
DEEPEST = 50
"""Lists and mappings inside each other, in settings."""


class _Loader(yaml.SafeLoader):
    """Reads plain YAML, and stops early where it is not meant to be read by a person."""

    values = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next value, unless there are too many; aliases are counted later."""
        self.values += 1
        if self.values > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number of at most 64 bits."""
        value: int = super().construct_yaml_int(node) if len(node.value) < 100 else LARGEST + 1
        if abs(value) > LARGEST:
            raise ValueError(f"{node.value[:30]}… is larger than {LARGEST}")
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _parse(text: str) -> Any:
    """Plain YAML as values; whatever is raised is about the text."""
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _check_size(root)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _check_size(root: yaml.Node) -> None:
    """Raise if values lie too deep or, with every alias written out, are too many."""
    waiting, values = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        values += 1
        if values > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values, with aliases written out")
        if depth > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels")
        if isinstance(node, yaml.CollectionNode):
            own = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
            waiting.extend((child, depth + 1) for child in own)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; tags that would build objects are refused."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        content = _parse(text.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    except Exception as error:  # the file is foreign: whatever its reader raises is about the file
        raise ConfigError(f"config file {path} is not plain YAML: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"config file {path} should be a mapping of option names to values")
    return {str(name): value for name, value in content.items()}


def write_yaml(path: Path, plan: Plan) -> None:
    """The plan as a YAML file that `read_yaml` takes back."""
    path.write_text(yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False), encoding="utf-8")


def read_assignments(assignments: list[str]) -> dict[str, Any]:
    """`key=value` words as a mapping; values are YAML scalars or lists."""
    result: dict[str, Any] = {}
    for word in assignments:
        name, sign, text = word.partition("=")
        if not sign or not name:
            raise ConfigError(f"{word!r} is not of the form key=value")
        try:
            result[name] = _parse(text)
        except Exception as error:  # it is foreign: whatever its reader raises is about the word
            raise ConfigError(f"the value of {shown(word)} is not plain YAML: {first_line(error)}") from None
        if not text.strip():
            raise ConfigError(f"{word!r} has no value: give one, or leave it out")
        if isinstance(result[name], str):
            result[name] = _number(result[name])
    return result


def _number(text: str) -> Any:
    """YAML 1.1 takes 1e-3 for a word; people mean the number."""
    try:
        return float(text)
    except ValueError:
        return text

"""Settings from YAML files and `key=value` arguments. Plain data only: a tag that would build an object is an error."""

from __future__ import annotations

from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import yaml

from remuda.core.errors import ConfigError, first_line
from remuda.core.options import MAX_INT, short_repr
from remuda.core.plan import Plan

MAX_BYTES = 8 << 20
"""Largest file of settings that is read."""
MAX_VALUES = 250_000
"""Most values in a file of settings, counted after aliases are expanded: a few lines can expand to billions."""
MAX_DEPTH = 50
"""Deepest nesting of lists and mappings."""


class _Loader(yaml.SafeLoader):
    """Reads plain YAML and stops early if a file is too large for settings that a person wrote."""

    values = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Read the next value, unless there are too many. `_check_size` counts aliases later."""
        self.values += 1
        if self.values > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES:,} values")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Read a mapping, unless a key stands in it twice: YAML would keep the last one without a word."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                raise ValueError(f"{short_repr(key.value)} stands twice, again in line {key.start_mark.line + 1}")
            seen.add((key.tag, key.value))
        return node

    def construct_whole(self, node: yaml.ScalarNode) -> int | str:
        """Read an integer of at most 64 bits."""
        if ":" in node.value:  # YAML 1.1 counts to base 60: the schedule 1:0 would become 60
            return str(node.value)
        value: int = self.construct_yaml_int(node) if len(node.value) < 100 else MAX_INT + 1
        if abs(value) > MAX_INT:
            raise ValueError(f"{node.value[:30]}… is larger than {MAX_INT}")
        return value

    def construct_number(self, node: yaml.ScalarNode) -> float | str:
        """Read a number with a point."""
        return str(node.value) if ":" in node.value else float(self.construct_yaml_float(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_number)


def _parse(text: str) -> Any:
    """Parse plain YAML. Any exception it raises means that the text is not plain YAML."""
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
    """Raise ValueError if values are nested too deep or, with every alias expanded, too many."""
    pending, values = [(root, 1)], 0
    while pending:
        node, depth = pending.pop()
        values += 1
        if values > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES:,} values, with aliases expanded")
        if depth > MAX_DEPTH:
            raise ValueError(f"it has more than {MAX_DEPTH} levels")
        if isinstance(node, yaml.CollectionNode):
            children = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
            pending.extend((child, depth + 1) for child in children)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        content = _parse(text.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    except Exception as error:  # the YAML reader raises many types on hostile input
        raise ConfigError(f"config file {path} is not plain YAML: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"config file {path} should be a mapping of option names to values")
    return {str(name): value for name, value in content.items()}


def write_yaml(path: Path, plan: Plan) -> None:
    """Write the plan as a YAML file that `read_yaml` can read."""
    path.write_text(yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False), encoding="utf-8")


def read_assignments(assignments: list[str]) -> dict[str, Any]:
    """Read `key=value` arguments as a mapping; values are YAML scalars or lists."""
    result: dict[str, Any] = {}
    for word, following in zip_longest(assignments, assignments[1:], fillvalue="="):
        name, sign, text = word.partition("=")
        if not sign or not name:
            is_pair = word.isidentifier() and following.isprintable() and "=" not in following
            hint = f": write {word}={following}" if is_pair else ""
            raise ConfigError(f"{word!r} is not of the form key=value{hint}")
        try:
            result[name] = _parse(text)
        except Exception as error:  # as above
            raise ConfigError(f"the value of {short_repr(word)} is not plain YAML: {first_line(error)}") from None
        if not text.strip():
            raise ConfigError(f"{word!r} has no value: write key=value, or leave it out")
        if isinstance(result[name], str):
            result[name] = _number(result[name])
    return result


def _number(text: str) -> Any:
    """A float if the text is one: YAML 1.1 reads 1e-3 as a string."""
    try:
        return float(text)
    except ValueError:
        return text

"""Values as JSON that every reader takes, and how deep they are."""

from __future__ import annotations

import json
import math
from typing import Any


def to_json(value: Any, indent: int | None = None) -> str:
    """Standard JSON: values that are not finite become null."""

    def plain(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: plain(own) for key, own in item.items()}
        if isinstance(item, list | tuple):
            return [plain(own) for own in item]
        return None if isinstance(item, float) and not math.isfinite(item) else item

    return json.dumps(plain(value), indent=indent, allow_nan=False)


def is_shallow(value: Any, levels: int) -> bool:
    """Whether no list or mapping lies deeper than so many levels."""
    if not isinstance(value, dict | list):
        return True
    children = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(is_shallow(child, levels - 1) for child in children)

"""Which names of code in a file are followed.

A run directory is data, but its settings name code: a game, a body, learners, callbacks, as `module:name`. Such a name
is followed if the person at the keyboard says so (`--trust`, `trust=True`), or if the same person made the run. The
latter is proved by a signature beside the settings: an HMAC with a key that lies in the user's own configuration
directory. What remuda ships or what is installed as an entry point needs neither.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets  # a key that nobody can guess: the one thing that must not derive from a seed
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from remuda.adapters.inbound.factories import LIBRARIES
from remuda.core.code_names import is_code_name
from remuda.core.errors import ConfigError
from remuda.core.plan import FROZEN, learner_of
from remuda.core.yamlfile import read_yaml
from remuda.runs.storage import storage_errors

SIGNATURE = ".signature"
"""In a run directory: signatures of its settings, the newest first."""
ENTRY_POINTS = ("remuda.games", "remuda.learners", "remuda.callbacks")
SCHEDULE = re.compile(r"[-+.\deE]+(:[-+.\deE]+)+")
"""A value that changes over the run, e.g. 1:0.1:0.5, is no name."""
KEY_BYTES = 32
MAX_SIGNATURE_BYTES = 4096
Place = tuple[Any, ...]


class NoKeyError(Exception):
    """There is no key, and why."""


def check_trust(folder: Path, settings: Mapping[str, Any], trust: bool = False) -> None:
    """Raise unless every name of code in these settings, which were read in `folder`, may be followed."""
    if trust:
        return
    names, problem = names_of_code(settings), why_unsigned(folder, settings)
    if problem is not None:
        raise ConfigError(
            f"{folder} would import {', '.join(map(repr, names))}, and {problem}: "
            "if you know this code, add --trust (in Python trust=True)"
        )


def why_unsigned(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Why the names of code in these settings may not be followed; None if they may, or if there are none."""
    if not names_of_code(settings):
        return None
    try:
        expected = _signature(settings)
    except NoKeyError as error:
        return f"there is no key of yours ({error})"
    if any(hmac.compare_digest(expected, line) for line in _read(folder)):
        return None
    return "your key has not signed it: somebody else trained it, or its settings were edited"


def sign(folder: Path, settings: Mapping[str, Any]) -> None:
    """Sign settings that are about to be written into `folder`, if they name code and there is a key.

    The signature before is kept: a process that dies now leaves the old settings.
    """
    if not names_of_code(settings):
        return
    with suppress(NoKeyError), storage_errors(folder):
        lines = dict.fromkeys([_signature(settings), *_read(folder)[:1]])
        draft = folder / f"{SIGNATURE}.draft"
        draft.write_bytes(b"".join(line + b"\n" for line in lines))
        draft.replace(folder / SIGNATURE)


def sign_runs(folder: Path) -> None:
    """Sign every run below a directory of many runs that the user trusts."""
    for config in sorted(folder.rglob("config.yaml")):
        sign(config.parent, read_yaml(config))


def names_of_code(settings: Mapping[str, Any]) -> list[str]:
    """Texts among the settings that could make us import something that is neither shipped nor installed.

    Every text counts that has the form of such a name, whatever setting it belongs to: a new option cannot be missed.
    """
    texts = list(_texts(settings))
    any_library = any(_is_library_game(place, text) for place, text in texts)
    texts += [(place, learner_of(text)) for place, text in texts if learner_of(text) != text]  # of a learner's name
    found = {text for place, text in texts if _counts(place, text, any_library)}
    return sorted(found - _installed()) if found else []


def _counts(place: Place, text: str, any_library: bool) -> bool:
    if _is_library_game(place, text):
        return ":" in text.partition(":")[2]  # gymnasium imports `module` for the id `module:Env-v0`
    if text.startswith(f"{FROZEN}:") and ("learners" in place or place[-1:] == ("learner",)):
        return False  # the settings of that run are checked when it is opened
    if any_library and ":" in text:  # an environment that wraps others takes such ids too
        return not SCHEDULE.fullmatch(text)
    return is_code_name(text)


def _is_library_game(place: Place, text: str) -> bool:
    return place[-1:] == ("game",) and text.partition(":")[0] in LIBRARIES


def _texts(value: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Every text in a value, keys included, and the keys that lead to it."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, own in value.items():
            yield from _texts(key, place)
            yield from _texts(own, (*place, key))
    elif isinstance(value, list | tuple):
        for own in value:
            yield from _texts(own, place)


def _installed() -> set[str]:
    """Names of code that installed packages offer to remuda."""
    return {entry.value.partition("[")[0].strip() for group in ENTRY_POINTS for entry in entry_points(group=group)}


def _read(folder: Path) -> list[bytes]:
    try:
        with (folder / SIGNATURE).open("rb") as file:
            return file.read(MAX_SIGNATURE_BYTES).split()
    except OSError:
        return []


def _signature(settings: Mapping[str, Any]) -> bytes:
    """The HMAC of settings as they are read from a file."""
    return hmac.new(_key(), _canonical(settings).encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest().encode()


def _canonical(value: Any) -> str:
    """One text for equal values, another for any other."""
    if isinstance(value, Mapping):
        return f"{{{','.join(sorted(f'{_canonical(key)}:{_canonical(own)}' for key, own in value.items()))}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_canonical, value))}]"
    return f"{type(value).__name__} {value!r}"


def _key() -> bytes:
    """The user's key, made when it is first needed."""
    path = _key_path()
    try:
        if not path.exists():
            _make_key(path)
        mode = path.stat()
        if mode.st_uid != os.geteuid() or stat.S_IMODE(mode.st_mode) & 0o077:
            raise NoKeyError(f"{path} should be readable by you alone: chmod 600 {path}")
        key = path.read_bytes()
    except OSError as error:
        raise NoKeyError(f"{path} cannot be used: {error.strerror}") from None
    if len(key) != KEY_BYTES:
        raise NoKeyError(f"{path} is damaged: remove it, and a new one is made")
    return key


def _key_path() -> Path:
    given = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        base = Path(given) if Path(given).is_absolute() else Path.home() / ".config"
    except RuntimeError:
        raise NoKeyError("you have no home directory: set XDG_CONFIG_HOME") from None
    return base / "remuda" / "key"


def _make_key(path: Path) -> None:
    """Write a new key whole or not at all; of two processes that make one at once the first wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)

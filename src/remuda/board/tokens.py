"""Words that nobody can guess; they have nothing to do with the randomness of training."""

from __future__ import annotations

import secrets


def new_token() -> str:
    """A word for those who may ask."""
    return secrets.token_urlsafe(16)

"""The base of everything a checkpoint says in JSON: strict types, so that a damaged or foreign file is noticed."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class SavedState(BaseModel):
    """A part of the state of training that is numbers and text; arrays are saved beside it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

"""The base of all configurations: frozen, and strict about keys and types."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Strict(BaseModel):
    """Frozen; refuses unknown keys, numbers that are not finite, and truth values where a number is expected."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Pydantic would read true as 1.
        wanted = cls.model_fields[info.field_name or ""].annotation
        types = {wanted, *get_args(wanted)}
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if types & {int, float} and bool not in types and any(isinstance(part, bool) for part in parts):
            raise ValueError("found a truth value, expected a number")
        return value

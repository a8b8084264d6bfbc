"""How an OpenAI-compatible endpoint is reached, and which key it is sent."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

ENDPOINT_DIR = Path("runs") / "endpoint"
"""Where the command line keeps answers and ledger, over all evaluations."""

LEDGER_FILE = "ledger.jsonl"
_SET_BY_FIELDS = frozenset(["model", "messages", "temperature", "seed", "max_tokens", "max_completion_tokens"])
_NOT_READ = frozenset(["stream", "n"])


class EndpointConfig(BaseModel):
    """How an endpoint is reached.

    Attributes:
        base_url: Up to and including the version, such as ``http://localhost:8000/v1``.
        model: Name that the server knows.
        api_key_env: Environment variable that holds the key; None sends none. Keys are never stored.
        timeout_s: Of one attempt, from the first byte sent to the last received.
        deadline_s: Of one completion, all attempts and the waits between them.
        max_attempts: Per completion, the first included.
        max_wait_s: Longest wait between attempts; a server that asks for more (Retry-After) counts as failed.
        give_up_after: After so many completions in a row that failed because of the server or the way to it, further
            ones fail without being asked.
        max_concurrency: Requests in flight.
        max_tokens: Per completion.
        max_tokens_field: How the request names that limit; some servers know only one of the names.
        sends_seed: Whether the request names a seed; some servers refuse it. The cache always tells seeds apart.
        sends_temperature: The same for the temperature; without it the server's own is used, greedy or not.
        cache_dir: Folder of finished completions, so that none is paid for twice; None keeps none.
        ledger: JSONL file with one line for each request; None keeps none.
        extra_body: Further request fields, such as ``{"chat_template_kwargs": {"enable_thinking": false}}``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = Field(pattern=r"^https?://")
    model: str = Field(min_length=1)
    api_key_env: str | None = Field(default=None, min_length=1)
    timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    deadline_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    max_attempts: int = Field(default=5, ge=1)
    max_wait_s: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    give_up_after: int = Field(default=32, ge=1)
    max_concurrency: int = Field(default=16, ge=1)
    max_tokens: int = Field(default=256, ge=1)
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    sends_seed: bool = True
    sends_temperature: bool = True
    cache_dir: Path | None = None
    ledger: Path | None = None
    extra_body: dict[str, Any] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _is_plain(cls, value: str) -> str:
        parts = urlsplit(value)  # refuses what is no host or port at all
        if parts.username is not None or parts.password is not None:
            raise ValueError("holds a user name or password, which would be stored; use api_key_env")
        if not parts.hostname or parts.query or parts.fragment:
            raise ValueError("must be scheme, host and path alone, such as http://localhost:8000/v1")
        if parts.port == 0:
            raise ValueError("names port 0; give the port that the server listens on")
        try:
            parts.hostname.encode("idna")
        except UnicodeError as error:
            raise ValueError(f"names a host that can't be looked up: {error}") from error
        return value.rstrip("/")

    @field_validator("extra_body")
    @classmethod
    def _is_extra(cls, value: dict[str, Any]) -> dict[str, Any]:
        if found := sorted(_NOT_READ & set(value)):
            raise ValueError(f"{found} would change what is answered; one whole completion is read")
        if found := sorted(_SET_BY_FIELDS & set(value)):
            raise ValueError(f"{found} are set by fields of their own")
        return value

    @property
    def identity(self) -> str:
        """What decides the answers, as text: where they come from and how they are asked for, without the messages."""
        fields = (
            "base_url",
            "model",
            "max_tokens",
            "max_tokens_field",
            "sends_seed",
            "sends_temperature",
            "extra_body",
        )
        return json.dumps({name: getattr(self, name) for name in fields}, sort_keys=True)

    def read_key(self) -> str:
        """Return the key from the environment; empty if none is to be sent.

        Raises:
            ValueError: If the variable is unset, or holds what can't be a key; the value is not in the message.
        """
        if self.api_key_env is None:
            return ""
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise ValueError(f"api_key_env: the environment variable {self.api_key_env} is unset or empty; export it")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ValueError(
                f"api_key_env: {self.api_key_env} holds no key: found {len(key)} characters, expected printable "
                "ASCII without spaces"
            )
        return key


def read_endpoint_config(file: Path | None, folder: Path, given: Mapping[str, Any]) -> EndpointConfig:
    """Join a file of settings with what was given beside it.

    Args:
        file: YAML with fields of :class:`EndpointConfig`, or None.
        folder: Of cache and ledger, where the file names none.
        given: Fields that win over the file's; None is not given.

    Raises:
        FileNotFoundError: If the file is missing.
        ValueError: If it is no mapping, a field is refused, or ``base_url`` or ``model`` are given nowhere.
    """
    fields = {"cache_dir": folder, "ledger": folder / LEDGER_FILE} | _fields_of(file)
    fields |= {name: value for name, value in given.items() if value is not None}
    missing = [f"--{name.replace('_', '-')}" for name in ("base_url", "model") if name not in fields]
    if missing:
        raise ValueError(f"policy 'endpoint' lacks {' and '.join(missing)}, such as http://localhost:8000/v1")
    try:
        return EndpointConfig.model_validate(fields)
    except ValidationError as error:
        if file is not None:
            error.add_note(f"(settings of {file} and of the command line)")
        raise


def _fields_of(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is no YAML: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"{file} holds {type(found).__name__}, expected fields such as 'model: NAME'")
    return found

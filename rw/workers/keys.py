"""Workers' keys: where they come from, and how they are kept out of everything that is kept."""

from __future__ import annotations

import os
import pathlib
import re
import stat
from collections.abc import Mapping

from rw.errors import ConfigError
from rw.workers.config import WorkerEndpoint

SECRET_LENGTH = 12  # local servers take any key: shorter ones may be words, which a reply may hold for other reasons
MASK = "***"
_UNPRINTABLE = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def read_key(endpoint: WorkerEndpoint, environment: Mapping[str, str] | None = None) -> str | None:
    """The Worker's key from its environment variable or file; None where it needs none.

    Raises:
        ConfigError: the key is missing, others than the owner may read its file, or no HTTP header can carry it.
    """
    if endpoint.key_env is not None:
        where = f"the environment variable {endpoint.key_env}"
        key = (os.environ if environment is None else environment).get(endpoint.key_env, "").strip()
        if not key:
            raise ConfigError(f"Worker {endpoint.id} needs its key in {where}, which is not set")
    elif endpoint.key_file is not None:
        where = f"the file {endpoint.key_file}"
        key = _read_private_file(endpoint.id, pathlib.Path(endpoint.key_file).expanduser())
        if not key:
            raise ConfigError(f"Worker {endpoint.id} needs its key in {where}, which is empty")
    else:
        return None
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"Worker {endpoint.id}: {where} holds characters that no HTTP header may carry")
    return key


def _read_private_file(worker_id: str, path: pathlib.Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(
                os.fstat(file.fileno()).st_mode
            )  # of what is read, whatever the path means a moment later
            if mode & 0o077:
                raise ConfigError(
                    f"Worker {worker_id}: others may use the key in {path} (mode {mode:04o}); run: chmod 600 {path}"
                )
            return file.read().strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"Worker {worker_id}: its key file {path} is not text") from error
    except OSError as error:
        raise ConfigError(f"Worker {worker_id} needs its key in the file {path}: {error.strerror}") from error


class KeyMask:
    """Replaces a key by asterisks, spelled plainly or with JSON escapes. Servers echo keys; so may a model."""

    def __init__(self, key: str | None = None):
        self._pattern = re.compile("".join(map(_spellings, key))) if key else None
        self._is_secret = key is not None and len(key) >= SECRET_LENGTH

    def in_message(self, text: str) -> str:
        """Without the key, however short: nobody misses a word of an error message. Without what could steer a terminal
        or not be written to a file, too: servers are free to say anything."""
        return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", self._masked(text))

    def in_reply(self, text: str) -> str:
        """Without a key of SECRET_LENGTH characters or more."""
        return self._masked(text) if self._is_secret else text

    def _masked(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(MASK, text)


def _spellings(character: str) -> str:
    code = f"{ord(character):04x}"
    digits = "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in code)
    return rf"(?:{re.escape(character)}|\\{re.escape(character)}|\\u{digits})"

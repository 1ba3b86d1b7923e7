"""The child process of `scorer.Scorer`: reads requests from standard input, writes results to standard output.

Both ways a message is a four-byte length and a pickle; the first one says what is served. Imports neither jax nor
asyncio; ends when its input ends.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from rw.scoring.config import ScoringConfig

HEADER = struct.Struct(">I")  # length in bytes of the pickle that follows


def frame(message: Any) -> bytes:
    """A message as it travels."""
    body = pickle.dumps(message)
    return HEADER.pack(len(body)) + body


def served(name: str, config: ScoringConfig) -> Mapping[str, Callable]:
    """The functions named `module:attribute`: a mapping, or a function of the config that makes one."""
    module, attribute = name.split(":")
    found = getattr(importlib.import_module(module), attribute)
    return found(config) if callable(found) else found


def main() -> None:
    """Serves (key, response, query) until standard input ends; replies are (True, result) or (False, traceback)."""
    # Both may come to the whole process group; the parent decides when a step is over. A handler, since a signal that
    # is ignored stays so in the programs that a scorer starts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    requests = sys.stdin.buffer
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a scorer prints goes to standard error, not between the replies
    functions: Mapping[str, Callable] | None = None
    while header := requests.read(HEADER.size):
        message = pickle.loads(requests.read(*HEADER.unpack(header)))
        if functions is None:
            functions = served(*message)
            continue
        key, response, query = message
        try:
            reply = (True, functions[key](response, query))
        except Exception:
            reply = (False, traceback.format_exc())
        replies.write(frame(reply))
        replies.flush()


if __name__ == "__main__":
    main()

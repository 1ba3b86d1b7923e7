"""The child process of `scorer.Scorer`: reads requests from standard input, writes verdicts to standard output.

Both ways a message is a four-byte length and a pickle. Imports neither jax nor asyncio; ends when its input ends.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import struct
import sys
import traceback
from typing import Any

HEADER = struct.Struct(">I")  # length in bytes of the pickle that follows


def frame(message: Any) -> bytes:
    """A message as it travels."""
    body = pickle.dumps(message)
    return HEADER.pack(len(body)) + body


def main(scorers: str) -> None:
    """Serves the mapping named `module:attribute` until standard input ends."""
    # Both may come to the whole process group; the parent decides when a step is over.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    requests = sys.stdin.buffer
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a scorer prints goes to standard error, not between the replies
    module, attribute = scorers.split(":")
    functions = getattr(importlib.import_module(module), attribute)
    while header := requests.read(HEADER.size):
        dataset, answer, query = pickle.loads(requests.read(*HEADER.unpack(header)))
        try:
            reply = (True, functions[dataset](answer, query))
        except Exception:
            reply = (False, traceback.format_exc())
        replies.write(frame(reply))
        replies.flush()


if __name__ == "__main__":
    main(sys.argv[1])

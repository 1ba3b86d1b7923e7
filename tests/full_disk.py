"""A disk that is full, as far as this process goes."""

import contextlib
import resource


@contextlib.contextmanager
def room_for(size):
    """No file grows beyond so many bytes: a write that begins before them is cut there, a later one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

"""Questions as vectors, for learned routers: hashed n-grams weighted on training questions, or a local encoder.

What is fitted sees training questions alone. The encoder's package is imported only where one is asked for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.pipeline import Pipeline, make_pipeline, make_union

from rw.errors import ConfigError, DataError

WORD_BUCKETS = CHARACTER_BUCKETS = 2**10  # of few questions: twice as many learn nothing more, and cost time
MODEL_FILES = ("modules.json", "config.json")  # of an encoder's directory, one of them at least


class Embedding(Protocol):
    """Texts to vectors f32[N, D] of length 1, or 0 where nothing of a text is known."""

    name: str

    def __call__(self, texts: Sequence[str]) -> np.ndarray: ...


class HashedNgrams:
    """Words, pairs of words and runs of 3 to 5 characters in hashed buckets, by TF-IDF of the training questions."""

    name = "hashed n-grams"

    def __init__(self, train: Sequence[str]):
        if not train:
            raise DataError("learned routers need training questions, of which there are none")
        shared = {"alternate_sign": False, "norm": None}
        hashed = make_union(
            HashingVectorizer(ngram_range=(1, 2), n_features=WORD_BUCKETS, token_pattern=r"(?u)\w+", **shared),
            HashingVectorizer(analyzer="char_wb", ngram_range=(3, 5), n_features=CHARACTER_BUCKETS, **shared),
        )
        self._pipeline: Pipeline = make_pipeline(hashed, TfidfTransformer(sublinear_tf=True))
        self._pipeline.fit(list(train))

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return self._pipeline.transform(list(texts)).toarray().astype(np.float32)


class SentenceEncoder:
    """A sentence encoder on this machine: a directory, or a name that its package already keeps a copy of."""

    def __init__(self, model: str, name: str = "encoder"):
        """Raises ConfigError where the package or the model is missing; nothing is downloaded."""
        self.name = name
        try:
            _check_is_there(model)
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ConfigError(
                f"--encoder {model} needs the package sentence-transformers: pip install 'rw[encoder]'"
            ) from error
        try:
            self._model = SentenceTransformer(model, device="cpu", local_files_only=True)
        except (OSError, ValueError) as error:
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(f"--encoder {model} cannot be loaded from this machine: {reason}") from error

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        vectors = self._model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, np.float32)


def _check_is_there(model: str) -> None:
    """Raises ConfigError where nothing here can be that encoder: its package looks for it half a minute, elsewhere."""
    if os.path.isdir(model):
        if not any(os.path.isfile(os.path.join(model, name)) for name in MODEL_FILES):
            raise ConfigError(f"--encoder {model}: there is no model in that directory, no {' or '.join(MODEL_FILES)}")
    elif model.startswith((os.path.sep, ".", "~")):
        raise ConfigError(f"--encoder {model} is no directory")
    elif not _is_kept(model):
        raise ConfigError(
            f"--encoder {model}: there is no such directory, and this machine keeps no model of that name; name a "
            f"directory, or fetch the model first: hf download {model}"
        )


def _is_kept(name: str) -> bool:
    """Whether this machine keeps a model of the hub, whose own encoders may be named without their owner."""
    from huggingface_hub import snapshot_download  # which sentence-transformers brings

    for full in (name, f"sentence-transformers/{name}"):
        with contextlib.suppress(OSError, ValueError):  # not there, or no name of a model
            snapshot_download(full, cache_dir=os.environ.get("SENTENCE_TRANSFORMERS_HOME"), local_files_only=True)
            return True
    return False

"""Names, shapes and orientation of Hugging Face's Qwen3 arrays against ours. Knows no files."""

from __future__ import annotations

from rw.model.config import ModelConfig
from rw.model.qwen3 import EMBEDDING, LAYER_PREFIX, shapes_of


def is_turned(name: str, axes: int) -> bool:
    """Whether an array of that many axes without layers has them the other way round here: all projections do."""
    return axes == 2 and name != EMBEDDING


def hf_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every array by Hugging Face's name, in the order in which it has them: embedding, layers, norm, head."""
    top, layers = {}, {}
    for name, shape in expected_shapes(config).items():
        (layers if name.startswith(LAYER_PREFIX) else top)[name] = shape
    shapes = {EMBEDDING: top.pop(EMBEDDING)}
    for layer in range(config.n_layers):
        for name, shape in layers.items():
            inner = shape[:0:-1] if is_turned(name, len(shape) - 1) else shape[1:]
            shapes[f"{LAYER_PREFIX}{layer}.{name.removeprefix(LAYER_PREFIX)}"] = inner
    return shapes | {name: shape[::-1] if is_turned(name, len(shape)) else shape for name, shape in top.items()}


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every stacked parameter, without making any."""
    return {name: leaf.shape for name, leaf in shapes_of(config).items()}

"""A file imports only from lower layers or its own room; only rw/model knows flax; rollouts and Workers know no jax."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent / "rw"
LAYERS = {
    "types": 0, "errors": 0, "typed_values": 0.25, "imported": 0.5,
    "core": 1, "sharding": 1, "metrics": 1, "protocol": 1,
    "scoring": 2, "data": 2, "workers": 2, "model": 2,
    "sampler": 3, "learner": 3, "simulation": 3,
    "rollout": 4,
    "evaluation": 5, "serving": 5,
}  # fmt: skip
TOP = 6  # configuration and entries
WITHOUT_JAX = {"types", "errors", "imported", "protocol", "scoring", "data", "workers", "simulation", "rollout"}
FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0].removesuffix(".py")


def imported_names(path: pathlib.Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path):
    room = room_of(path)
    layer = LAYERS.get(room, TOP)
    for name in imported_names(path):
        parts = name.split(".")
        if parts[0] == "rw" and len(parts) > 1 and parts[1] != room and parts[1] != "__version__":
            below = LAYERS.get(parts[1], TOP)
            assert below < layer or (layer == TOP and below == TOP), f"{room} (layer {layer}) imports {name} ({below})"
        assert parts[0] != "flax" or room == "model", f"{path} imports flax; only rw/model may"
        assert parts[0] not in ("jax", "jaxlib") or room not in WITHOUT_JAX, f"{path} imports jax"
        assert parts[0] != "ml_collections" or layer == TOP, f"{path} imports ml_collections"

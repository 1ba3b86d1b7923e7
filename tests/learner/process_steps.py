"""Three recorded steps by one of several processes: what tests/learner/test_processes.py starts.

    python process_steps.py INDEX COUNT PORT DEVICES DATA,FSDP,TENSOR PACKING FILE

Each process writes its metrics, and the first gradient by term, the moments and updates of all steps, to FILE.INDEX.
COUNT 0 is one process without a mesh.
"""

import dataclasses
import json
import os
import sys

index, count, port, devices, shape, packing, path = sys.argv[1:]
index, count = int(index), int(count)
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"

import jax  # noqa: E402
import numpy as np  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

from rw.cluster import Membership, join  # noqa: E402
from rw.learner.optimizer import Optimizer, OptimizerConfig  # noqa: E402
from rw.learner.publish import publish  # noqa: E402
from rw.learner.state import fingerprint, init_state  # noqa: E402
from rw.learner.step import Learner  # noqa: E402
from rw.model.qwen3 import init_params  # noqa: E402
from rw.sharding import make_mesh, param_shardings, replicated  # noqa: E402
from tests.learner.recorded import (  # noqa: E402
    LEARNER,
    MODEL,
    STEPS,
    SUPPORT,
    recorded_groups,
    recorded_mode_candidates,
)


def whole(mesh, tree):
    """The tree as numpy arrays, whole on every process."""
    if mesh is not None:
        tree = jax.jit(lambda x: x, out_shardings=replicated(mesh))(tree)
    return jax.tree.map(np.asarray, tree)


def named(prefix, tree):
    return {f"{prefix}/{name}": array for name, array in tree.items()}


def main():
    is_joined = join(Membership(f"127.0.0.1:{port}", count, index)) if count else False
    assert is_joined == (count > 1)
    mesh = make_mesh(tuple(map(int, shape.split(","))), n_kv_heads=MODEL.n_kv_heads) if count else None
    shardings = (
        None if mesh is None else param_shardings(mesh, jax.eval_shape(lambda: init_params(jax.random.key(0), MODEL)))
    )
    params, reference = (init_params(jax.random.key(seed), MODEL, shardings) for seed in (0, 1))
    optimizer = Optimizer(OptimizerConfig(learning_rate=1e-3))
    config = dataclasses.replace(LEARNER, batch=dataclasses.replace(LEARNER.batch, packing=packing))
    learner = Learner(MODEL, optimizer, reference, config, mesh)
    state, rows, arrays = init_state(params, optimizer, seed=0), [], {}
    before = whole(mesh, state.params)
    for step in range(STEPS):
        groups = recorded_groups(step)
        for term in ("mode", "inner", "kl", "support") if step == 0 else ():
            gradient = learner.gradients(state.params, groups, (term,), mode_candidates=recorded_mode_candidates)[term]
            arrays |= named(f"gradient/{step}/{term}", whole(mesh, gradient))
        state, metrics = learner.step(
            state, groups, cold_start=step == 0, support_coefficient=SUPPORT, mode_candidates=recorded_mode_candidates
        )
        rows.append(metrics)
        arrays |= named(f"mu/{step}", whole(mesh, state.opt_state[1].mu))
        arrays |= named(f"nu/{step}", whole(mesh, state.opt_state[1].nu))
        after = whole(mesh, state.params)
        arrays |= named(f"update/{step}", {name: after[name] - before[name] for name in after})
        before = after
    weights = publish(state.params, MODEL, version=STEPS).params
    own = set(jax.local_devices())
    assert all(leaf.sharding.device_set <= own for leaf in jax.tree.leaves(weights))
    about = {"metrics": json.dumps(rows), "fingerprint": fingerprint(state.params)}
    arrays |= named("published", jax.tree.map(np.asarray, weights.top))
    save_file({name: np.ascontiguousarray(x) for name, x in arrays.items()}, f"{path}.{index}", about)


with jax.thread_guard(True):
    main()

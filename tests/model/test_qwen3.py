"""Parameters, layouts, padding and packing of the forward function."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.errors import ConfigError
from rw.model import qwen3
from rw.model.config import REMAT_POLICIES, ModelConfig
from rw.model.logprobs import token_logprobs

CONFIG = ModelConfig(
    vocab_size=61, d_model=20, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=28, rope_theta=5e6, remat="none"
)
PARAMS = qwen3.init_params(jax.random.key(0), CONFIG)
forward = jax.jit(lambda *args, **kwargs: qwen3.hidden_states(*args, **kwargs)[0], static_argnums=1)
random = np.random.default_rng(1)
SEQUENCES = [random.integers(0, 61, n).astype(np.int32) for n in (5, 11, 5)]


def rows(sequences, width, offsets):
    """Padded tokens (a real id as padding) and positions of sequences that start at `offsets`."""
    tokens = np.full((len(sequences), width), 7, np.int32)
    positions = np.full((len(sequences), width), -1, np.int32)
    for row, (sequence, offset) in enumerate(zip(sequences, offsets, strict=True)):
        tokens[row, offset : offset + len(sequence)] = sequence
        positions[row, offset : offset + len(sequence)] = np.arange(len(sequence))
    return tokens, positions


@jax.jit
def score(params, tokens, positions):
    hidden, _ = qwen3.hidden_states(params, CONFIG, tokens, positions)
    return token_logprobs(params, CONFIG, hidden[:, :-1], tokens[:, 1:], 0.8, chunk=4)


def test_parameters_carry_hugging_face_names_and_shapes():
    assert {name: x.shape for name, x in PARAMS.items()} == {
        "model.embed_tokens.weight": (61, 20),
        "model.layers.input_layernorm.weight": (2, 20),
        "model.layers.self_attn.q_proj.weight": (2, 20, 32),
        "model.layers.self_attn.k_proj.weight": (2, 20, 16),
        "model.layers.self_attn.v_proj.weight": (2, 20, 16),
        "model.layers.self_attn.o_proj.weight": (2, 32, 20),
        "model.layers.self_attn.q_norm.weight": (2, 8),
        "model.layers.self_attn.k_norm.weight": (2, 8),
        "model.layers.post_attention_layernorm.weight": (2, 20),
        "model.layers.mlp.gate_proj.weight": (2, 20, 28),
        "model.layers.mlp.up_proj.weight": (2, 20, 28),
        "model.layers.mlp.down_proj.weight": (2, 28, 20),
        "model.norm.weight": (20,),
    }
    untied = jax.eval_shape(lambda: qwen3.init_params(jax.random.key(0), dataclasses.replace(CONFIG, tied=False)))
    assert untied["lm_head.weight"].shape == (20, 61)


def test_layers_start_from_different_random_weights_and_norms_from_one():
    gate = PARAMS["model.layers.mlp.gate_proj.weight"]
    assert np.abs(gate[0] - gate[1]).max() > 0.1
    assert 0.9 < np.std(gate) * np.sqrt(20) < 1.1
    assert np.all(PARAMS["model.norm.weight"] == 1)


def test_a_tied_heads_first_logits_have_variance_one_at_any_width():
    for width in (32, 128):
        config = dataclasses.replace(CONFIG, vocab_size=2000, d_model=width)
        params = qwen3.init_params(jax.random.key(0), config)
        hidden, _ = qwen3.hidden_states(params, config, jnp.arange(50)[None], jnp.arange(50)[None])
        logits = hidden[0] @ params[qwen3.EMBEDDING].T
        assert float(jnp.std(logits)) == pytest.approx(1.0, rel=0.1)


def test_equal_keys_give_equal_parameters():
    again = qwen3.init_params(jax.random.key(0), CONFIG)
    other = qwen3.init_params(jax.random.key(1), CONFIG)
    name = "model.layers.self_attn.q_proj.weight"
    assert np.array_equal(PARAMS[name], again[name]) and not np.array_equal(PARAMS[name], other[name])


def test_scanned_and_unrolled_layers_agree():
    tokens, positions = rows(SEQUENCES, 12, (0, 1, 7))
    unstacked = qwen3.unstack(PARAMS, CONFIG)
    assert len(unstacked.layers) == 2 and unstacked.layers[0]["mlp.up_proj.weight"].shape == (20, 28)
    stacked, unrolled = forward(PARAMS, CONFIG, tokens, positions), forward(unstacked, CONFIG, tokens, positions)
    np.testing.assert_allclose(stacked, unrolled, atol=1e-5)


@pytest.mark.parametrize("offsets", [(0, 0, 0), (7, 1, 3)], ids=["right_padded", "left_padded"])
def test_batch_mates_and_padding_change_no_logprob(offsets):
    tokens, positions = rows(SEQUENCES, 12, offsets)
    together = np.asarray(score(PARAMS, tokens, positions))
    bucket = np.asarray(score(PARAMS, *rows(SEQUENCES, 20, offsets)))
    for row, (sequence, offset) in enumerate(zip(SEQUENCES, offsets, strict=True)):
        alone = score(PARAMS, sequence[None], np.arange(len(sequence), dtype=np.int32)[None])[0]
        real = slice(offset, offset + len(sequence) - 1)
        np.testing.assert_allclose(together[row, real], alone, atol=1e-5)
        np.testing.assert_allclose(bucket[row, real], alone, atol=1e-5)


def test_trailing_padding_may_hold_any_position():
    tokens, positions = rows(SEQUENCES, 12, (0, 0, 0))
    zeros = np.where(positions < 0, 0, positions)
    marked, unmarked = forward(PARAMS, CONFIG, tokens, positions), forward(PARAMS, CONFIG, tokens, zeros)
    for row, sequence in enumerate(SEQUENCES):
        np.testing.assert_array_equal(marked[row, : len(sequence)], unmarked[row, : len(sequence)])


def test_packed_rows_equal_rows_of_their_own():
    tokens = np.concatenate(SEQUENCES)[None]
    positions = np.concatenate([np.arange(len(s), dtype=np.int32) for s in SEQUENCES])[None]
    segments = np.repeat(np.array([1, 2, 3], np.int32), [len(s) for s in SEQUENCES])[None]
    packed = forward(PARAMS, CONFIG, tokens, positions, segment_mask=segments)[0]
    separate = forward(PARAMS, CONFIG, *rows(SEQUENCES, 12, (0, 0, 0)))
    expected = np.concatenate([separate[row, : len(s)] for row, s in enumerate(SEQUENCES)])
    np.testing.assert_allclose(packed, expected, atol=1e-5)


def test_a_row_of_padding_alone_leaves_gradients_finite():
    batch = rows([SEQUENCES[0], np.zeros(0, np.int32), SEQUENCES[1]], 12, (0, 0, 1))
    assert all(np.isfinite(g).all() for g in gradient_program("none")(PARAMS, *batch).values())


@functools.cache
def gradient_program(remat):
    """The compiled gradient of summed log-probabilities of three rows of 12."""

    def loss(params, tokens, positions):
        hidden, _ = qwen3.hidden_states(params, dataclasses.replace(CONFIG, remat=remat), tokens, positions)
        logprobs = token_logprobs(params, CONFIG, hidden[:, :-1], tokens[:, 1:], 0.8)
        return jnp.where(positions[:, 1:] >= 0, logprobs, 0.0).sum()

    return jax.jit(jax.grad(loss)).lower(PARAMS, *rows(SEQUENCES, 12, (0, 0, 0))).compile()


def test_rematerialisation_changes_memory_and_no_gradient():
    batch = rows(SEQUENCES, 12, (0, 0, 0))
    keeps_all, keeps_nothing = gradient_program("none"), gradient_program("nothing_saveable")
    kept, again = keeps_all(PARAMS, *batch), keeps_nothing(PARAMS, *batch)
    for name, x in kept.items():
        np.testing.assert_allclose(again[name], x, atol=1e-5, err_msg=name)
    assert temporaries(keeps_nothing) < temporaries(keeps_all)


@pytest.mark.parametrize("most, scans", [(1, 1), (2, 0)])  # CONFIG has two layers
def test_few_layers_stand_one_after_the_other_and_give_what_the_scan_gives(most, scans, monkeypatch):
    monkeypatch.setattr(qwen3, "MOST_UNROLLED", most)
    batch = rows(SEQUENCES, 12, (0, 0, 0))
    jaxpr = jax.make_jaxpr(lambda *batch: qwen3.hidden_states(PARAMS, CONFIG, *batch)[0])(*batch)
    assert str(jaxpr).count("scan[") == scans
    gradient = gradient_program.__wrapped__("none")(PARAMS, *batch)
    for name, x in gradient_program("nothing_saveable")(PARAMS, *batch).items():
        np.testing.assert_allclose(gradient[name], x, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("scans", [True, False])
@pytest.mark.parametrize("attention", ["xla", "chunked_xla"])
def test_states_asked_for_by_place_are_those_of_whole_rows_and_so_is_their_gradient(attention, scans):
    config = dataclasses.replace(
        CONFIG, attention=attention, attention_chunk=4, remat="nothing_saveable" if scans else "none"
    )
    tokens = np.random.default_rng(2).integers(0, 61, (2, 12))
    positions = np.array([[0, 1, 2, 3, 4, 3, 4, 5, -1, -1, -1, -1], [-1, 0, 1, 2, 3, 4, 5, 6, 3, 4, 5, 6]])
    sequences = np.array([[0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 3], [9, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]])
    prefixes = np.where(np.isin(sequences, (1, 2)), 0, sequences)
    places = np.array([[2, 3, 4, 2, 5, 7], [3, 7, 3, 8, 0, 0]])  # a prompt's last token is asked for by each of two
    real = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], bool)[..., None]

    def total(params, asks):
        options = {"segment_mask": sequences, "prefixes": prefixes, "places": places if asks else None}
        hidden, _ = qwen3.hidden_states(params, config, tokens, positions, **options)
        hidden = hidden if asks else hidden[np.arange(2)[:, None], places]
        return jnp.sum(jnp.sin(jnp.where(real, hidden, 0))), hidden

    (_, asked), gradient = jax.jit(jax.value_and_grad(total, has_aux=True), static_argnums=1)(PARAMS, True)
    (_, whole), expected = jax.jit(jax.value_and_grad(total, has_aux=True), static_argnums=1)(PARAMS, False)
    np.testing.assert_allclose(np.where(real, asked, 0), np.where(real, whole, 0), atol=2e-6)
    for name, x in expected.items():
        np.testing.assert_allclose(gradient[name], x, atol=1e-5, err_msg=name)


def temporaries(program):
    return program.memory_analysis().temp_size_in_bytes


@pytest.mark.full
@pytest.mark.parametrize("remat", [name for name in REMAT_POLICIES if name not in ("none", "nothing_saveable")])
def test_every_policy_gives_the_same_gradient(remat):
    batch = rows(SEQUENCES, 12, (0, 0, 0))
    kept, again = gradient_program("none")(PARAMS, *batch), gradient_program(remat)(PARAMS, *batch)
    for name, x in kept.items():
        np.testing.assert_allclose(again[name], x, atol=1e-5, err_msg=name)


@pytest.mark.full
def test_kept_attention_is_not_computed_a_third_time():
    def exponentials(remat):
        config = dataclasses.replace(CONFIG, remat=remat, attention="chunked_xla", attention_chunk=4)
        gradient = jax.grad(lambda params, *batch: qwen3.hidden_states(params, config, *batch)[0].sum())
        program = jax.jit(gradient).lower(PARAMS, *rows(SEQUENCES, 12, (0, 0, 0))).compile()
        return program.as_text().count(" exponential(")

    assert exponentials("attention_saveable") < exponentials("nothing_saveable")


def test_bfloat16_compute_of_published_weights_matches_the_learner():
    config = dataclasses.replace(CONFIG, compute_dtype="bfloat16")
    tokens, positions = rows(SEQUENCES, 12, (0, 0, 0))
    learner = forward(PARAMS, config, tokens, positions)
    published = qwen3.unstack(PARAMS, config)
    assert {x.dtype for x in jax.tree.leaves(published)} == {jnp.dtype("bfloat16")}
    sampler = forward(published, config, tokens, positions)
    exact = forward(PARAMS, CONFIG, tokens, positions)
    assert learner.dtype == jnp.bfloat16
    real = positions >= 0
    assert np.abs(learner.astype(np.float32) - sampler.astype(np.float32))[real].max() < 0.06  # 2 units of bfloat16
    assert np.abs(learner.astype(np.float32) - exact)[real].mean() < 0.03


def test_rotary_frequencies_follow_theta():
    config = ModelConfig(8, 8, 1, 2, 1, 4, 8, rope_theta=100.0)
    cos, sin = qwen3.rotary(jnp.array([[0, 3]]), config)
    np.testing.assert_allclose(cos[0, 1, 0], np.cos([3, 0.3, 3, 0.3]), atol=1e-6)
    np.testing.assert_allclose(sin[0, :, 0], [np.zeros(4), np.sin([3, 0.3, 3, 0.3])], atol=1e-6)
    turned = qwen3.rotate(jnp.array([[[[1.0, 0, 0, 0]], [[1.0, 0, 0, 0]]]]), cos, sin)
    np.testing.assert_allclose(turned[0, 1, 0], [np.cos(3), 0, np.sin(3), 0], atol=1e-6)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"n_kv_heads": 3}, r"n_kv_heads=3: must be a divisor of n_heads, one of \[1, 2, 4\]"),
        ({"head_dim": 7}, "head_dim=7: must be an even number"),
        ({"n_layers": 0}, "n_layers=0: must be an integer of at least 1"),
        ({"rope_theta": 0.0}, "rope_theta=0.0"),
        ({"norm_eps": 0.0}, "norm_eps=0.0"),
        ({"remat": "full"}, "remat='full': must be one of none, nothing_saveable"),
        ({"attention": "flash"}, "attention='flash': must be one of xla, chunked_xla"),
        ({"compute_dtype": "fp8"}, "compute_dtype='fp8': must be one of float32"),
    ],
)
def test_illegal_values_are_refused_with_the_legal_ones(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CONFIG, **change)

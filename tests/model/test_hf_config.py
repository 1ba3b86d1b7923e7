"""config.json of published Qwen3 models against ModelConfig, and what we would compute wrongly refused."""

import dataclasses
import json

import pytest

from rw.errors import CheckpointError, ConfigError
from rw.model.hf_config import check_fits, is_hf, model_config, read_config, written_config
from rw.run_config import QWEN3_4B

# As it is published with the weights of Qwen3-4B-Instruct-2507.
QWEN3_4B_INSTRUCT_2507 = """{
  "architectures": ["Qwen3ForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 151643,
  "eos_token_id": 151645,
  "head_dim": 128,
  "hidden_act": "silu",
  "hidden_size": 2560,
  "initializer_range": 0.02,
  "intermediate_size": 9728,
  "max_position_embeddings": 262144,
  "max_window_layers": 36,
  "model_type": "qwen3",
  "num_attention_heads": 32,
  "num_hidden_layers": 36,
  "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "rope_theta": 5000000,
  "sliding_window": null,
  "tie_word_embeddings": true,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.51.0",
  "use_cache": true,
  "use_sliding_window": false,
  "vocab_size": 151936
}"""


def write(directory, **changes):
    """The 4B's config.json with changes; a value of ... takes the key away."""
    config = {**json.loads(QWEN3_4B_INSTRUCT_2507), **changes}
    text = json.dumps({key: value for key, value in config.items() if value is not ...})
    (directory / "config.json").write_text(text)
    return directory


def test_the_published_4b_is_the_default_model_of_a_run(tmp_path):
    assert model_config(write(tmp_path)) == QWEN3_4B
    check_fits(tmp_path, dataclasses.replace(QWEN3_4B, param_dtype="bfloat16", attention="chunked_xla"))
    assert is_hf(tmp_path)


@pytest.mark.parametrize(
    "places",
    [
        {"rope_theta": 1e6},
        {"rope_theta": ..., "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
        {"rope_theta": 1000000, "rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"rope_theta": 1e6}},
    ],
)
def test_theta_is_found_wherever_a_version_keeps_it(tmp_path, places):
    assert model_config(write(tmp_path, **places)).rope_theta == 1e6


def test_every_difference_from_the_run_is_named(tmp_path):
    write(tmp_path, rope_theta=1e6, tie_word_embeddings=False)
    with pytest.raises(ConfigError) as caught:
        check_fits(tmp_path, QWEN3_4B)
    assert "rope_theta is 1000000.0 there and config.model.rope_theta is 5000000.0" in str(caught.value)
    assert "tie_word_embeddings is False there and config.model.tied is True" in str(caught.value)


@pytest.mark.parametrize(
    "ours",
    [
        {"vocab_size": 151_669}, {"d_model": 2048}, {"n_layers": 28}, {"n_heads": 16}, {"n_kv_heads": 4},
        {"head_dim": 80}, {"d_ff": 9216}, {"rope_theta": 1e6}, {"norm_eps": 1e-5}, {"tied": False}, {"qk_norm": False},
    ],
    ids=lambda ours: next(iter(ours)),
)  # fmt: skip
def test_no_field_may_differ(tmp_path, ours):
    with pytest.raises(ConfigError, match=next(iter(ours))):
        check_fits(write(tmp_path), dataclasses.replace(QWEN3_4B, **ours))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"model_type": "qwen3_moe"}, "model_type is 'qwen3_moe'"),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "architectures is"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"use_sliding_window": True, "sliding_window": 4096}, "use_sliding_window is True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e6}}, "linear"),
        ({"rope_parameters": {"rope_theta": 5e6, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_theta": ...}, "names no rope_theta"),
        ({"rope_parameters": {"rope_theta": 1e6}}, r"names \[1000000.0, 5000000.0\] rope_theta"),
        ({"head_dim": ...}, "lacks head_dim"),
        ({"rope_scaling": "yarn"}, "'yarn' is no description"),
        ({"rope_parameters": [1]}, "is no description"),
        ({"rope_theta": "5e6"}, "must be a number"),
        ({"layer_types": 36}, "layer_types is 36"),
        ({"vocab_size": "151936"}, "vocab_size is '151936'; it must be int"),
        ({"num_hidden_layers": 36.0}, "num_hidden_layers is 36.0"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6'; it must be float"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'; it must be bool"),
        ({"tie_word_embeddings": ...}, "lacks tie_word_embeddings"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(tmp_path, changes, message):
    with pytest.raises(CheckpointError, match=message):
        read_config(write(tmp_path, **changes))


def test_a_written_config_says_theta_in_both_places_and_keeps_what_it_does_not_know(tmp_path):
    carried = json.loads(QWEN3_4B_INSTRUCT_2507)
    written = written_config(QWEN3_4B, "float32", carried)
    assert written["rope_theta"] == written["rope_parameters"]["rope_theta"] == 5e6
    assert written["max_position_embeddings"] == 262144 and written["eos_token_id"] == 151645
    assert written["dtype"] == written["torch_dtype"] == "float32"
    assert model_config(write(tmp_path, **written)) == QWEN3_4B
    untied = written_config(dataclasses.replace(QWEN3_4B, tied=False), "bfloat16", carried)
    assert untied["tie_word_embeddings"] is False
    with pytest.raises(ConfigError, match="qk_norm"):
        written_config(dataclasses.replace(QWEN3_4B, qk_norm=False), "bfloat16", carried)


@pytest.mark.parametrize("text", ["", "[]", '{"model": {}}', "null", "[" * 100_000], ids=range(5))
def test_other_files_of_that_name_are_no_model(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert not is_hf(tmp_path)
    with pytest.raises(CheckpointError, match="config.json"):
        read_config(tmp_path)

"""A local sentence encoder in the place of hashed n-grams: a tiny model made here, and models that are not there."""

import numpy as np
import pytest

from rw.errors import ConfigError
from rw.evaluation.embeddings import SentenceEncoder

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] acid bond salt verse rhyme sonnet what of".split()


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizer

    folder = tmp_path_factory.mktemp("encoder")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    parts = folder / "bert"
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(parts)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertModel(config).save_pretrained(parts)
    words = models.Transformer(str(parts))
    SentenceTransformer(modules=[words, models.Pooling(16)], device="cpu").save(str(folder / "whole"))
    return folder / "whole"


@pytest.mark.full
def test_a_local_encoder_gives_vectors_of_length_one_by_text_alone(tiny_model):
    encoder = SentenceEncoder(str(tiny_model), "tiny")
    texts = ["what of acid", "what of sonnet rhyme"]
    vectors = encoder(texts)
    assert vectors.shape == (2, 16) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(SentenceEncoder(str(tiny_model))(texts[1:])[0], vectors[1], rtol=1e-4, atol=1e-6)
    assert encoder.name == "tiny"


@pytest.mark.full
def test_an_encoder_that_cannot_be_read_says_why(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be loaded from this machine: Unrecognized model"):
        SentenceEncoder(str(tmp_path))


def test_what_is_no_encoder_is_refused_at_once_and_not_fetched(tmp_path):
    with pytest.raises(ConfigError, match="is no directory"):
        SentenceEncoder("/nowhere/at/all")
    with pytest.raises(ConfigError, match=f"{tmp_path}: there is no model in that directory, no modules.json or"):
        SentenceEncoder(str(tmp_path))
    pytest.importorskip("huggingface_hub")
    for model in ("nodir", "nobody/has-this-model", "no/such/place"):
        with pytest.raises(ConfigError, match=f"{model}: there is no such directory, .* first: hf download {model}"):
            SentenceEncoder(model)

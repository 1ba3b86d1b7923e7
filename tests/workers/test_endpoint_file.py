"""Files of Workers: what they may say, and that every mistake is named by file, Worker and key."""

import pytest

from rw.errors import ConfigError
from rw.workers.config import WorkerEndpoint
from rw.workers.endpoint_file import load_endpoints

ONE = "workers:\n- {id: worker_1, description: d, base_url: 'http://h/v1', model: m"


def load(tmp_path, text):
    path = tmp_path / "workers.yaml"
    path.write_text(text, encoding="utf-8")
    return load_endpoints(path)


def test_all_fields_arrive_with_their_types(tmp_path):
    (endpoint,) = load(
        tmp_path,
        """
        workers:
          - id: worker_1
            description: >-
              Small model.
              Quick.
            base_url: https://host/api/v1
            model: a/b
            key_env: SOME_KEY
            extra_body: {provider: {only: [x], allow_fallbacks: false}}
            input_price: 1
            output_price: 0.5
            max_output_tokens: 100
            temperature: 0
            seed: null
            max_concurrent: 3
        """,
    )
    assert endpoint == WorkerEndpoint(
        "worker_1",
        "Small model. Quick.",
        "https://host/api/v1",
        "a/b",
        key_env="SOME_KEY",
        extra_body={"provider": {"only": ["x"], "allow_fallbacks": False}},
        input_price=1.0,
        output_price=0.5,
        max_output_tokens=100,
        temperature=0.0,
        seed=None,
        max_concurrent=3,
    )
    assert isinstance(endpoint.input_price, float)


def test_workers_may_share_keys_by_reference(tmp_path):
    first, second = load(
        tmp_path,
        """
        workers:
          - &shared {id: a, description: d, base_url: 'http://h/v1', model: m, key_env: K}
          - {<<: *shared, id: b, model: n}
        """,
    )
    assert (first.id, first.model, second.id, second.model, second.key_env) == ("a", "m", "b", "n", "K")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{ONE}, modle: x}}", "unknown config key worker_1.modle; did you mean 'model'?"),
        (f"{ONE}, model: x}}", "line 2: key 'model' stands twice in one mapping"),
        (f"{ONE}, max_concurrent: '8'}}", "worker_1.max_concurrent='8' must be of type int"),
        (f"{ONE}, max_concurrent: yes}}", "worker_1.max_concurrent=True must be of type int"),
        (f"{ONE}, input_price: 1e-2}}", "worker_1.input_price='1e-2' must be of type float"),
        (f"{ONE}, max_concurrent: 0}}", "Worker worker_1: max_concurrent=0 must be at least 1"),
        (f"{ONE}, extra_body: {{model: x}}}}", "Worker worker_1: extra_body may not set model"),
        (f"{ONE}, extra_body: {{day: 2020-01-01}}}}", "Worker worker_1: extra_body holds what JSON cannot"),
        (f"{ONE}, extra_body: {{itself: &a [*a]}}}}", "Worker worker_1: extra_body holds what JSON cannot: Circular"),
        (f"{ONE}, extra_body: {{deep: {'[' * 3000}{']' * 3000}}}}}", "cannot be read: maximum recursion depth"),
        (f"{ONE}, extra_body: {{day: 2020-13-01}}}}", "a value in it cannot be read: month must be in 1..12"),
        (f"{ONE}, seed: 1{'0' * 5000}}}", "a value in it cannot be read: "),
        (f"{ONE}, input_price: 1{'0' * 400}}}", "worker_1.input_price is a number of 401 digits"),
        (f"{ONE}, tokens_per_minute: .inf}}", "Worker worker_1: tokens_per_minute=inf must be > 0 and finite"),
        (f"{ONE}, temperature: .nan}}", "Worker worker_1: temperature=nan must be a number >= 0"),
        (f"{ONE}, extra_body: {{on: 1}}}}", "key 'on' is no text for YAML; quote it"),
        (f"{ONE}, extra_body: {{[a]: 1}}}}", "a key must be a text"),
        ("workers:\n- {id: worker_1, description: d}", "worker_1 lacks base_url, model"),
        ("workers:\n- {description: d}", "workers[0] lacks id, base_url, model"),
        ("workers:\n- {id: 1}", "workers[0].id=1 must be of type str"),
        ("workers:\n- {id: a, description: \"x\\ny\", base_url: 'http://h/v1', model: m}", "a.description has several"),
        (f"{ONE}}}\n- {{id: worker_1, description: d, base_url: 'http://h/v1', model: n}}", "worker_1 is used by more"),
        ("workers:\n- worker_1", "workers[0] must be a mapping"),
        ("workers: []", "'workers' must be a list of at least one Worker"),
        ("worker: []", "unknown config key worker; did you mean 'workers'?"),
        ("- a", "it must hold a key 'workers'"),
        ("", "it must hold a key 'workers'"),
        ("workers: [", "line 1: expected the node content"),
        ("workers: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: \0", "it is no YAML"),
    ],
)
def test_mistakes_are_named(tmp_path, text, says):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    message = str(error.value)
    assert message.startswith(f"file of Workers {tmp_path / 'workers.yaml'}: ") and says in message
    assert "\n" not in message


def test_a_pasted_key_is_refused_unprinted(tmp_path):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, f"{ONE}, key: sk-secret}}")
    assert "worker_1.key; did you mean 'key_env'?" in str(error.value) and "sk-secret" not in str(error.value)
    with pytest.raises(ConfigError) as error:
        load(tmp_path, f"{ONE}, api_key: sk-secret}}")
    said = str(error.value)
    assert (
        "worker_1.api_key would hold a key; name its place in key_env or key_file" in said and "sk-secret" not in said
    )


def test_a_file_that_is_not_there_is_named_with_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"no file of Workers at 'none.yaml' .seen from {tmp_path}."):
        load_endpoints("none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(ConfigError, match="binary.yaml: cannot be read"):
        load_endpoints("binary.yaml")

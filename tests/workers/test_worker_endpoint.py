"""Where a Worker's key may stand, and where it may not."""

import pytest

from rw.errors import ConfigError
from rw.workers.config import WorkerEndpoint


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"key_env": "sk-or-v1-0123"}, "key_env must be the name of an environment variable"),
        ({"key_env": ""}, "key_env must be the name of an environment variable"),
        ({"extra_body": {"api_key": "sk-or-v1-0123"}}, "extra_body.api_key holds a key"),
        ({"extra_body": {"a": [{"Api-Key": "sk-or-v1-0123"}]}}, "extra_body.Api-Key holds a key"),
        ({"key_env": "A", "key_file": "f"}, "key_env and key_file are both set"),
    ],
)
def test_a_key_in_a_config_is_refused_and_not_shown(fields, says):
    with pytest.raises(ConfigError) as error:
        WorkerEndpoint("worker_1", "d", "http://h/v1", "m", **fields)
    assert says in str(error.value) and "Worker worker_1" in str(error.value) and "sk-or" not in str(error.value)


def test_names_of_variables_are_taken():
    endpoint = WorkerEndpoint("w", "d", "http://h/v1", "m", key_env="_MY_KEY2", extra_body={"max_token": [{"key": 1}]})
    assert endpoint.key_env == "_MY_KEY2"


@pytest.mark.parametrize("base_url", ["http://h /v1", "http://h/v1\u2028", "http://h/v1\n", "ftp://h/v1", "http:///v1"])
def test_an_address_that_is_none_is_refused(base_url):
    with pytest.raises(ConfigError, match="is not an http.s. URL"):
        WorkerEndpoint("w", "d", base_url, "m")


@pytest.mark.parametrize("value", [{1}, float("nan"), b"x"])
def test_an_extra_body_that_is_no_json_is_refused(value):
    with pytest.raises(ConfigError, match="Worker w: extra_body holds what JSON cannot"):
        WorkerEndpoint("w", "d", "http://h/v1", "m", extra_body={"a": [value]})

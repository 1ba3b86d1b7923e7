"""The paper's six Workers as the example file states them."""

import pathlib
import re
from urllib.parse import urlsplit

from rw.workers.endpoint_file import load_endpoints
from rw.workers.pricing import Price, PriceTable

FILE = pathlib.Path(__file__).parents[2] / "configs" / "workers" / "paper_six.yaml"
GIVEAWAYS = re.compile(
    r"qwen|llama|gemma|gemini|google|meta|alibaba|openrouter|\$|usd|price|cheap|\d+b\b", re.IGNORECASE
)


def test_six_endpoints_with_the_papers_prices_and_thinking_off():
    endpoints = load_endpoints(FILE)
    prices = PriceTable.from_endpoints(endpoints)
    assert {endpoint.id: prices[endpoint.id] for endpoint in endpoints} == {
        "worker_1": Price(0.02, 0.05),
        "worker_2": Price(0.02, 0.05),
        "worker_3": Price(0.10, 0.30),
        "worker_4": Price(0.119, 0.20),
        "worker_5": Price(0.10, 0.32),
        "worker_6": Price(0.10, 0.40),
    }
    assert endpoints[0].extra_body == {"chat_template_kwargs": {"enable_thinking": False}}
    assert endpoints[5].extra_body == {"reasoning": {"enabled": False}}
    assert [endpoint.key_env for endpoint in endpoints] == [None] * 2 + ["OPENROUTER_API_KEY"] * 4
    assert {(w.temperature, w.seed, w.max_output_tokens) for w in endpoints} == {(0.2, 42, 4096)}


def test_workers_on_this_machine_have_a_port_each():
    local = [urlsplit(worker.base_url).netloc for worker in load_endpoints(FILE) if worker.key_env is None]
    assert len(set(local)) == len(local) == 2


def test_cards_tell_two_sentences_and_neither_name_nor_price():
    for endpoint in load_endpoints(FILE):
        description = endpoint.card.description
        assert not GIVEAWAYS.search(description), description
        assert len(re.findall(r"[.;](?: |$)", description)) in (2, 3)

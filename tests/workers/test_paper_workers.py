"""The paper's six Workers as the example config states them."""

import pathlib
import re
import runpy

from rw.workers.config import WorkerEndpoint
from rw.workers.pricing import Price, PriceTable

CONFIG = pathlib.Path(__file__).parents[2] / "configs" / "workers" / "paper_six.py"
GIVEAWAYS = re.compile(
    r"qwen|llama|gemma|gemini|google|meta|alibaba|openrouter|\$|usd|price|cheap|\d+b\b", re.IGNORECASE
)


def test_six_endpoints_with_the_papers_prices_and_thinking_off():
    get_workers = runpy.run_path(str(CONFIG))["get_workers"]
    endpoints = [WorkerEndpoint(**fields) for fields in get_workers(providers={"worker_5": "some-provider"})]
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
    assert endpoints[4].extra_body == {"provider": {"only": ["some-provider"], "allow_fallbacks": False}}
    assert endpoints[5].extra_body == {"reasoning": {"enabled": False}}
    assert [endpoint.key_env for endpoint in endpoints] == [None] * 2 + ["OPENROUTER_API_KEY"] * 4


def test_cards_tell_two_sentences_and_neither_name_nor_price():
    for fields in runpy.run_path(str(CONFIG))["get_workers"]():
        description = WorkerEndpoint(**fields).card.description
        assert not GIVEAWAYS.search(description), description
        assert len(re.findall(r"[.;](?: |$)", description)) in (2, 3)

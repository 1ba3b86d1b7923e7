"""The six Workers of RouteWeaver (Appendix B.3, Table 6) as plain values for `workers.endpoints` of a config.

    six = runpy.run_path(str(pathlib.Path(__file__).parent / "workers" / "paper_six.py"))  # from a file in configs/
    config.workers.kind = "http"
    config.workers.endpoints = six["get_workers"]()

worker_1 and worker_2 are served locally (vLLM, one port each); worker_3 to worker_6 come from OpenRouter and need the
key in OPENROUTER_API_KEY. Prices are the fixed reference prices of Table 7, in USD per million tokens: they measure
cost and need not be what is paid. The descriptions are ours; the router reads them with the id, no name and no price.
"""

OPENROUTER_URL = "https://openrouter.ai/api/v1"
OPENROUTER_KEY = "OPENROUTER_API_KEY"


def get_workers(local_urls=("http://127.0.0.1:8001/v1", "http://127.0.0.1:8002/v1"), providers=None):
    """The six endpoints as dicts with the fields of `rw.workers.config.WorkerEndpoint`.

    Args:
        local_urls: base URLs of worker_1 and worker_2.
        providers: OpenRouter provider slug by Worker id. The paper pins one provider a model without naming it. Pin
            one for runs that are to be compared: providers differ in quantisation and limits, and where none is given
            OpenRouter chooses for every call anew.
    """
    pinned = dict(providers or {})
    return [
        _local(
            "worker_1",
            local_urls[0],
            "Qwen/Qwen3-8B",
            "Compact general model with sound basic mathematics, code and multilingual skills. Quick and frugal; long "
            "chains of reasoning and rare facts are beyond it.",
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},  # or it thinks before it answers
        ),
        _local(
            "worker_2",
            local_urls[1],
            "meta-llama/Llama-3.1-8B-Instruct",
            "Compact model for everyday instructions, summaries and plain language. Follows formats well; weak at hard "
            "mathematics and programming.",
        ),
        _openrouter(
            "worker_3",
            "qwen/qwen3-30b-a3b-instruct-2507",
            "Sparse mid-sized model, strong in mathematics, programming and step-by-step logic. Knows less about "
            "people, places and events than larger models.",
            (0.10, 0.30),
            pinned.get("worker_3"),
        ),
        _openrouter(
            "worker_4",
            "google/gemma-3-27b-it",
            "Mid-sized dense model, balanced across science knowledge, writing and many languages. Dependable for "
            "explanations; less so for long programs.",
            (0.119, 0.20),
            pinned.get("worker_4"),
        ),
        _openrouter(
            "worker_5",
            "meta-llama/llama-3.3-70b-instruct",
            "Large dense model with broad world knowledge and good factual recall. Steady at following complex "
            "instructions; slower than the small ones.",
            (0.10, 0.32),
            pinned.get("worker_5"),
        ),
        _openrouter(
            "worker_6",
            "google/gemini-2.5-flash-lite",
            "Fast production model with wide knowledge, code and mathematics skills and a long context. A good second "
            "opinion and checker.",
            (0.10, 0.40),
            pinned.get("worker_6"),
            reasoning={"enabled": False},
        ),
    ]


def _local(worker_id, base_url, model, description, extra_body=None):
    return {
        "id": worker_id,
        "description": description,
        "base_url": base_url,
        "model": model,
        "extra_body": extra_body or {},
        "input_price": 0.02,
        "output_price": 0.05,
    }


def _openrouter(worker_id, model, description, prices, provider, reasoning=None):
    extra_body = {"provider": {"only": [provider], "allow_fallbacks": False}} if provider else {}
    if reasoning:
        extra_body["reasoning"] = reasoning
    return {
        "id": worker_id,
        "description": description,
        "base_url": OPENROUTER_URL,
        "model": model,
        "key_env": OPENROUTER_KEY,
        "extra_body": extra_body,
        "input_price": prices[0],
        "output_price": prices[1],
    }

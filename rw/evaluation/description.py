"""What was run, in words: from a run's config as config.json holds it, that of an older run too. Knows no result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SOURCES = {
    "simulated": (
        "**The Workers of this run are SIMULATED.** They are programs on loopback, not models. Each reads the "
        "message that a real Worker would read, really solves the step it is asked for, and then errs with a "
        "probability that depends on the domain, the difficulty and the role it was given; prices are made up too. "
        "The numbers show how much there was to learn in this world, and how much of it was learnt. They say nothing "
        "about real models."
    ),
    "replay": (
        "**The answers of this run are RECORDED.** What six real models once answered to these questions is "
        "replayed: a call is matched by the original question, whatever the sub-query says. So no mode can do more "
        "here than collect further opinions on the same question. Recorded costs hold the output only."
    ),
    "http": (
        "**The Workers of this run are LIVE endpoints.** Their answers may change between two runs, and what was "
        "lost to their failures is counted as infrastructure. Costs are tokens at the frozen price table, not an "
        "invoice."
    ),
}
UNKNOWN = "The config of this run does not say what kind of Workers it had."


def source_paragraph(config: Mapping[str, Any]) -> str:
    """What kind of Workers answered, and what that means for the numbers."""
    return SOURCES.get(config.get("workers", {}).get("kind"), UNKNOWN)


def essentials(config: Mapping[str, Any], summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what, value) of what one must know of a run; what an older config lacks is left out."""
    draw = (
        "" if summary["test_draw_seed"] is None else f" of draw {summary['test_draw_seed']}, which nothing else touches"
    )
    found = [
        ("seed", _text("{seed}", config)),
        ("steps", _text("{steps}, each of {queries_per_batch} questions × {rollouts_per_query} rollouts", config)),
        ("questions", _text("{data[source]}", config)),
        ("test", f"{summary['test_queries']} questions{draw}" if summary["test_queries"] else "none yet"),
        ("Workers", _text("{workers[kind]}", config)),
        ("router", model_words(config.get("model", {}))),
        ("initial router", _initial(config)),
        ("advantage", _text("{advantage[function]}, efficiency weight α = {reward[efficiency_weight]}", config)),
        (
            "exploration",
            _text(
                "modes all assigned for {schedule[cold_batches]} steps, none after step {schedule[autonomous_from]}",
                config,
            )
            if config.get("schedule", {}).get("progressive", True)
            else "the router chooses its mode from the first step",
        ),
        ("support term", _text("λ₀ = {support[coefficient]}, floor δ = {support[floor]}", config)),
        ("sampling", _text("temperature {sampling[temperature]}, top-p {sampling[top_p]}", config)),
        ("learning", _text("rate {optimizer[learning_rate]}, KL β = {loss[kl_coefficient]}", config)),
        ("reference cost", _text("{reward[reference_cost_usd]} USD", config)),
        ("config fingerprint", f"`{summary['config_fingerprint'][:16]}`"),
    ]
    return [(what, value) for what, value in found if value]


def model_words(model: Mapping[str, Any]) -> str:
    """The router's size in words; nothing where the config does not say."""
    count = parameter_count(model)
    if count is None:
        return ""
    size = f"{count / 1e6:.2f} million" if count < 1e9 else f"{count / 1e9:.2f} billion"
    layers = f"{model['n_layers']} layers of width {model['d_model']}"
    return f"Qwen3, {layers}, vocabulary {model['vocab_size']}: {size} parameters"


def parameter_count(model: Mapping[str, Any]) -> int | None:
    """Parameters of a model section; None where it is incomplete."""
    try:
        width, heads, head_dim = model["d_model"], model["n_heads"], model["head_dim"]
        attention = width * head_dim * (2 * heads + 2 * model["n_kv_heads"])
        norms = 2 * width + (2 * head_dim if model["qk_norm"] else 0)
        layer = attention + 3 * width * model["d_ff"] + norms
        embeddings = (1 if model["tied"] else 2) * model["vocab_size"] * width
        return embeddings + model["n_layers"] * layer + width
    except KeyError:
        return None


def _initial(config: Mapping[str, Any]) -> str:
    source = config.get("init", {}).get("source")
    if source == "warmstart":
        return _text(
            "warm start: {warmstart[steps]} supervised steps on scripted routers ({warmstart[policy]})", config
        )
    return {"random": "random parameters", "params": _text("parameters of {init[path]}", config)}.get(source, "")


def _text(form: str, config: Mapping[str, Any]) -> str:
    """The form filled in; empty where the config lacks a value."""
    try:
        return form.format(**config)
    except (KeyError, TypeError):
        return ""

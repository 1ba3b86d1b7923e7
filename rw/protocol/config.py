"""The protocol's switches and limits. Where paper and released code differ, a named switch decides, nothing else."""

from __future__ import annotations

import dataclasses

from rw.errors import ConfigError

SWITCHES: dict[str, tuple[str, ...]] = {
    "agentic_rules": ("released", "paper"),
    "outside_text": ("violation", "ignored"),
    "framing": ("turns", "released"),
    "catalogue": ("rules", "system"),
    "exhausted": ("zero", "judged", "invalid"),
    "observation_budget": ("each", "turn"),
    "multi_previous": ("reply", "none"),
}
LIMITS = ("response_budget", "prompt_limit", "mode_turn_limit", "observation_limit")

SINGLE_CALLS = 1
MULTI_CALLS = (2, 4)  # fewest before the answer, most
AGENTIC_CALLS = 8
AGENTIC_TURNS = 10  # router action turns, the mode turn not counted


@dataclasses.dataclass(frozen=True)
class ProtocolConfig:
    """Switches by name and limits in router tokens.

    Args:
        agentic_rules: `released` adds the rules that the authors' code enforces (a summarizer must close the work and
            has the last call reserved, verifiers need references, no duplicates); `paper` has none of them.
        outside_text: text outside the tags of a turn is a `violation`, or `ignored` together with the tags' case and a
            written `<observation`.
        framing: `turns` puts rules and observations into one user turn each; `released` leaves observations bare in the
            open assistant turn.
        catalogue: the Worker list stands in the mode's `rules` or in a `system` message.
        exhausted: an exhausted trajectory is `zero` (valid, wrong); `judged`, so that a router turn cut by the response
            budget is parsed as it stands; or always `invalid`.
        response_budget: all tokens after the prompt.
        prompt_limit: tokens of turn 1's prompt, frame included.
        mode_turn_limit: sampled tokens of the mode turn.
        observation_limit: tokens of one observation with its wrapper and marker.
        observation_budget: that limit for `each`, or for a `turn` min(4096, left - 1024) in equal shares, each of at
            least 256.
        multi_previous: a multi call after the first shows its Worker the previous `reply`, or `none`.
        templates: a packaged template set's name, or a directory.

    Raises:
        ConfigError: an illegal value, with the legal ones.
    """

    agentic_rules: str = "released"
    outside_text: str = "violation"
    framing: str = "turns"
    catalogue: str = "rules"
    exhausted: str = "zero"
    response_budget: int = 12288
    prompt_limit: int = 6144
    mode_turn_limit: int = 64
    observation_limit: int = 2048
    observation_budget: str = "each"
    multi_previous: str = "reply"
    templates: str = "default"

    def __post_init__(self) -> None:
        for name, legal in SWITCHES.items():
            if getattr(self, name) not in legal:
                raise ConfigError(f"protocol.{name}={getattr(self, name)!r} is not one of {', '.join(legal)}")
        for name in LIMITS:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"protocol.{name}={value!r} is not a whole number of at least 1")

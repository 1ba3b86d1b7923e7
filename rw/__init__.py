"""rw: train RouteWeaver, one LLM policy that chooses an execution mode and routes to frozen Workers, in JAX."""

__version__ = "0.1.0"

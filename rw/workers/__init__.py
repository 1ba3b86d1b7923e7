"""Everything between a rollout and a Worker: HTTP, retries, limits, prices, caps, ledger, journal, cassettes, and pools
served on loopback.

Knows neither the router's grammar nor rewards: a message goes in, a WorkerCall comes out.
"""

"""Serves a GGUF file with llama.cpp until its standard input ends: `llama_server.py MODEL KEY`; prints its address.

A process of its own, because the server computes in threads of whoever starts it, and prints to their terminal.
"""

import sys

import xllamacpp


def main(model: str, key: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.api_keys = [key]
    params.port = 0
    params.n_ctx = 1024
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # more of them wait for each other by spinning
    params.cache_prompt = False  # a prompt that is partly cached is computed in other shapes, hence to other last bits
    params.endpoint_slots = True
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])

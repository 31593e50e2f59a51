"""Serves a small language model that came in Python packages over HTTP, as llama.cpp does, until its input is closed.

    python tests/local_model_server.py MODEL.gguf --context 8192 --threads 1

Prints the address once the model is loaded.
"""

import argparse
import sys

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.n_ctx = arguments.context
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

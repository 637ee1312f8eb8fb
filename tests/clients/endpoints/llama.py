"""llama.cpp's server with a model, on a port of its choice: prints its URL, and serves until its stdin ends.

llama.py MODEL NAME KEY
"""

import sys

import xllamacpp


def main(model, name, key):
    settings = xllamacpp.CommonParams()
    settings.model.path = model
    settings.model_alias = {name} if isinstance(settings.model_alias, set) else [name]
    settings.api_keys = [key]
    settings.hostnames = ["127.0.0.1"]
    settings.port = 0
    settings.n_ctx = 16384
    # One prompt at a time: a second one is answered only after the first has finished or was cancelled.
    settings.n_parallel = 1
    settings.cpuparams.n_threads = 1
    settings.warmup = False
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)
    sys.stdin.read()


main(*sys.argv[1:])

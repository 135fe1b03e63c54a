"""llama.cpp's server of one model: python serve.py MODEL.gguf PORT [SLOTS]. Runs until TERM."""

import signal
import sys
import threading

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames = ["127.0.0.1"]
params.port = int(sys.argv[2])
params.n_parallel = int(sys.argv[3]) if len(sys.argv) > 3 else 4
params.n_ctx = 1024 * params.n_parallel
params.cpuparams.n_threads = 2
params.endpoint_metrics = True
params.warmup = True
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
server = xllamacpp.Server(params)
print("listening at", server.listening_address, flush=True)
ended.wait()

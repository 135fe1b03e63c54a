"""A server with OpenAI's streaming API and no model: python fake.py PORT [MODE [FOLDER]].

Modes: whole (default); fails (every third request has status 500); garbage (every stream is HTML);
dies (exits with code 7 at the fifth request); dies-late (at the 110th).
Under a profiler each token has an NVTX range, named as the steps of vLLM.
With a FOLDER it has a profiler of its own, /start_profile and /stop_profile, which writes a trace
there: of 4 prefill and 30 decode steps; in mode stop-fails the stop has status 500; in mode
no-trace it writes none; in mode start-fails it does not start.
"""

import gzip
import http.server
import json
import os
import sys
import threading
import time

from nvtx_ranges import range_of

# Names of vLLM, of one request per step.
PREFILL = "execute_context_1(9)_generation_0(0)"
DECODE = "execute_context_0(0)_generation_1(1)"
mode = sys.argv[2] if len(sys.argv) > 2 else "whole"
folder = sys.argv[3] if len(sys.argv) > 3 else None
lock = threading.Lock()
served = 0


def write_trace():
    """Writes what vLLM's torch profiler would, of one process."""
    names = ["execute_context_1(9)_generation_0(0)"] * 4
    names += ["execute_context_0(0)_generation_2(2)"] * 30
    events = []
    for at, name in enumerate(names):
        start = at * 1000.0
        place = {"ph": "X", "pid": 1, "tid": 1, "ts": start, "dur": 900.0}
        events.append({**place, "cat": "user_annotation", "name": name})
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 10, "dur": 5.0}
        events.append({**place, **call, "args": {"correlation": at + 1}})
        kernel = {"cat": "kernel", "name": "gemm", "tid": 7, "ts": start + 20, "dur": 500.0}
        shape = {"device": 0, "stream": 7, "grid": [1, 1, 1], "block": [64, 1, 1]}
        events.append({**place, **kernel, "args": {"correlation": at + 1, **shape}})
    trace = {"schemaVersion": 1, "baseTimeNanoseconds": 0, "traceEvents": events}
    with gzip.open(os.path.join(folder, "rank0.pt.trace.json.gz"), "wt") as file:
        json.dump(trace, file)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def event(self, data):
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def profile(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        action = self.path.strip("/").removesuffix("_profile")
        if action == "stop" and mode != "no-trace":
            write_trace()
        self.send_response(500 if mode == f"{action}-fails" else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self):
        global served
        if self.path in ("/start_profile", "/stop_profile"):
            self.profile()
            return
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with lock:
            served += 1
            number = served
        if number == {"dies": 5, "dies-late": 110}.get(mode):
            os._exit(7)
        if mode == "fails" and number % 3 == 0:
            self.send_response(500)
            self.send_header("content-length", "4")
            self.end_headers()
            self.wfile.write(b"oops")
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        if mode == "garbage":
            self.event("<html>")
            return
        for token in range(body["max_tokens"]):
            with range_of(DECODE if token else PREFILL):
                time.sleep(0.005)
            self.event(json.dumps({"choices": [{"delta": {"content": "a"}}]}))
        usage = {"prompt_tokens": 9, "completion_tokens": body["max_tokens"]}
        self.event(json.dumps({"choices": [], "usage": usage}))
        self.event("[DONE]")


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()

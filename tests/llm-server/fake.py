"""A server with OpenAI's streaming API and no model: python fake.py PORT [MODE].

Modes: whole (default); fails (every third request has status 500); garbage (every stream is HTML);
dies (exits with code 7 at the fifth request); dies-late (at the 110th).
"""

import http.server
import json
import os
import sys
import threading
import time

mode = sys.argv[2] if len(sys.argv) > 2 else "whole"
lock = threading.Lock()
served = 0


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

    def do_POST(self):
        global served
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
        for _ in range(body["max_tokens"]):
            time.sleep(0.005)
            self.event(json.dumps({"choices": [{"delta": {"content": "a"}}]}))
        usage = {"prompt_tokens": 9, "completion_tokens": body["max_tokens"]}
        self.event(json.dumps({"choices": [], "usage": usage}))
        self.event("[DONE]")


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()

#!/usr/bin/env python3
"""Engine of tests/gpu/engine.sh: continuous batching in PyTorch, with a count of its own steps.

    engine.py --steps steps.json --annotate vllm           24 requests and 8 late ones, then its end
    engine.py --steps steps.json --serve 8000              OpenAI's /v1/completions until SIGTERM
    torchrun --nproc-per-node 2 engine.py ...              tensor parallel, over NCCL

A step computes the prompts of all admitted requests in one forward, or one token of each running
request: the replay of a CUDA graph of the next larger batch size. The next tokens are chosen
outside the graph and copied to the host, which waits for them. Weights are random; tokens are ids,
printed as words. `--device cpu` runs without graphs. Needs PyTorch; uses Triton if it is installed.
"""

import argparse
import collections
import contextlib
import dataclasses
import http.server
import json
import os
import pathlib
import queue
import random
import signal
import threading
import time
import zlib

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from engine_model import PAGE, Batch, Decoder, Shape


# Adjustments of the clock would stretch the steps: its value at the start, and a steady one since.
STARTED_NS = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def now_ns():
    return STARTED_NS + time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--hidden", type=int, default=1024)
    add("--layers", type=int, default=16)
    add("--heads", type=int, default=16)
    add("--kv-heads", type=int, default=8)
    add("--head-dim", type=int, default=128)
    add("--intermediate", type=int, default=3072)
    add("--vocabulary", type=int, default=151936)
    add("--max-length", type=int, default=2048, help="tokens of a prompt and its output")
    add("--max-batch", type=int, default=24, help="requests that run at the same time")
    add("--max-tokens", type=int, default=8192, help="tokens of the prompts of one step")
    add("--graphs", choices=["full", "none"], default="full")
    add("--graph-sizes", default="1,2,4,8,16,24")
    add("--kernels", choices=["auto", "triton", "torch"], default="auto")
    add("--sample", choices=["argmax", "multinomial"], default="argmax")
    add("--sample-on", choices=["every", "first"], default="every", help="rank that samples")
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--seed", type=int, default=0)
    add("--requests", type=int, default=24, help="requests at the start of a turn")
    add("--late", type=int, default=8, help="requests of a turn that arrive later")
    add("--turns", type=int, default=1)
    add("--prompt", default="32:512", help="shortest and longest prompt, tokens")
    add("--output", default="8:48", help="shortest and longest output, tokens")
    add("--annotate", choices=["none", "vllm", "vllm-detailed", "sglang"], default="none")
    add("--torch-profile", type=pathlib.Path, metavar="FOLDER",
        help="traces of the captures, and of a window of steps")
    add("--profile-steps", default="8:18", help="first step of the window, and the one after it")
    add("--profile-stack", action="store_true", help="with Python's stacks")
    add("--serve", type=int, metavar="PORT")
    add("--steps", type=pathlib.Path, metavar="FILE", help="JSON of the steps that ran")
    return parser.parse_args()


class Request:
    def __init__(self, prompt, new_tokens, answer=None):
        self.prompt, self.new_tokens, self.answer = prompt, new_tokens, answer
        self.output, self.pages = [], []

    @property
    def length(self):
        return len(self.prompt) + len(self.output)


@dataclasses.dataclass
class Work:
    """One step: the prompts of its requests, or one token of each."""

    is_prefill: bool
    requests: list

    @property
    def queries(self):
        return [len(it.prompt) if self.is_prefill else 1 for it in self.requests]

    @property
    def keys(self):
        return [it.length for it in self.requests]


class Scheduler:
    """Prompts first, as many as fit; pages for the whole output are reserved at admission."""

    def __init__(self, pages, max_batch, max_tokens):
        self.free = collections.deque(range(1, pages))
        self.waiting, self.running = collections.deque(), []
        self.max_batch, self.max_tokens = max_batch, max_tokens

    def next(self):
        admitted, tokens = [], 0
        while self.waiting and len(self.running) + len(admitted) < self.max_batch:
            request = self.waiting[0]
            pages = -(-(len(request.prompt) + request.new_tokens) // PAGE)
            tokens += len(request.prompt)
            if pages > len(self.free) or (admitted and tokens > self.max_tokens):
                break
            request.pages = [self.free.popleft() for _ in range(pages)]
            admitted.append(self.waiting.popleft())
        if admitted:
            self.running += admitted
            return Work(True, admitted)
        return Work(False, list(self.running)) if self.running else None

    def finish(self, work, tokens):
        for request, token in zip(work.requests, tokens):
            request.output.append(token)
            ended = len(request.output) == request.new_tokens
            if request.answer:
                request.answer.put((token, ended))
            if ended:
                self.running.remove(request)
                self.free.extend(request.pages)


def step_name(style, work):
    """Name of the range of a step, as the engine of this style writes it."""
    requests, queries, keys = len(work.requests), work.queries, work.keys
    tokens = sum(queries)
    if style == "sglang":
        return f"step[EXTEND bs={requests} toks={tokens}]" if work.is_prefill else (
            f"step[DECODE bs={requests}]")
    if style == "vllm":
        parts = [f"{requests}({tokens})", "0(0)"]
    else:
        sums = (tokens, sum(keys), sum(q * q for q in queries),
                sum(q * k for q, k in zip(queries, keys)))
        parts = [f"{count}(sq%dsk%dsqsq%dsqsk%d)" % it
                 for count, it in ((requests, sums), (0, (0, 0, 0, 0)))]
    context, generation = parts if work.is_prefill else parts[::-1]
    total = f"{tokens}_" if style == "vllm-detailed" else ""
    return f"execute_{total}context_{context}_generation_{generation}"


class Engine:
    def __init__(self, args):
        self.args = args
        self.rank, local, self.world = (
            int(os.environ.get(name, other))
            for name, other in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")))
        self.cuda = args.device == "cuda"
        self.device = torch.device("cuda", local) if self.cuda else torch.device("cpu")
        self.control = None
        if self.cuda:
            torch.cuda.set_device(local)
        if self.world > 1:
            bound = {"device_id": self.device} if self.cuda else {}
            dist.init_process_group("nccl" if self.cuda else "gloo", **bound)
            self.control = dist.new_group(backend="gloo")
        shape = Shape(args.hidden, args.layers, args.heads, args.kv_heads, args.head_dim,
                      args.intermediate, args.vocabulary, args.max_length)
        self.width = -(-args.max_length // PAGE)
        pages = 1 + args.max_batch * self.width
        dtype = torch.bfloat16 if self.cuda else torch.float32
        self.model = Decoder(shape, self.device, dtype, pages, args.seed, self.rank, self.world,
                             args.kernels)
        self.scheduler = Scheduler(pages, args.max_batch, args.max_tokens)
        self.generator = torch.Generator(self.device).manual_seed(args.seed)
        self.steps, self.preparations, self.captures = [], [], []
        self.profiler, self.window = None, None
        if args.torch_profile and not args.serve:
            self.window = tuple(int(it) for it in args.profile_steps.split(":"))
        self.graphs = {}

    # Inputs of a forward.

    def hosted(self, values, dtype=torch.int64):
        return torch.tensor(values, dtype=dtype, pin_memory=self.cuda)

    def moved(self, batch):
        """The batch on the device, copied from pinned memory without waiting."""
        copies = {name: it.to(self.device, non_blocking=True) for name, it in vars(batch).items()
                  if isinstance(it, torch.Tensor)}
        return dataclasses.replace(batch, **copies)

    def prompt_batch(self, requests):
        tokens, positions, slots, starts = [], [], [], [0]
        for request in requests:
            length = len(request.prompt)
            tokens += request.prompt
            positions += range(length)
            slots += [request.pages[at // PAGE] * PAGE + at % PAGE for at in range(length)]
            starts.append(starts[-1] + length)
        return Batch(self.hosted(tokens), self.hosted(positions), self.hosted(slots),
                     starts=self.hosted(starts, torch.int32),
                     ends=self.hosted([it - 1 for it in starts[1:]]),
                     bounds=list(zip(starts, starts[1:])))

    def token_batch(self, requests, size):
        """One token of each request, and rows that pad the batch to `size`."""
        pad = size - len(requests)
        last = [it.length - 1 for it in requests]
        tokens = [(it.output or it.prompt)[-1] for it in requests] + [0] * pad
        slots = [it.pages[at // PAGE] * PAGE + at % PAGE for it, at in zip(requests, last)]
        tables = [it.pages + [0] * (self.width - len(it.pages)) for it in requests]
        tables += [[0] * self.width for _ in range(pad)]
        return Batch(self.hosted(tokens), self.hosted(last + [0] * pad),
                     self.hosted(slots + [0] * pad), tables=self.hosted(tables, torch.int32),
                     lengths=self.hosted([at + 1 for at in last] + [1] * pad, torch.int32))

    # Preparation: these forwards are not steps.

    @contextlib.contextmanager
    def preparing(self, kind, size):
        start = now_ns()
        yield
        self.synchronize()
        self.preparations.append(
            {"kind": kind, "requests": size, "start_ns": start, "end_ns": now_ns()})

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def prepare(self):
        prompt = Request([1] * 64, 1)
        prompt.pages = list(range(1, 5))
        prompts = self.moved(self.prompt_batch([prompt]))
        with self.preparing("warmup", 1):
            try:
                hidden = self.model.forward(prompts)
            except RuntimeError:
                if not self.model.flash:
                    raise
                self.model.flash = False
                hidden = self.model.forward(prompts)
            # The largest batch of the sampler, too.
            self.choose(hidden[-1:])
            self.choose(hidden[-1:].expand(self.args.max_batch, -1).contiguous())
        sizes = {int(it) for it in self.args.graph_sizes.split(",")}
        if self.args.graphs == "none" or not self.cuda:
            sizes = set()
        pool = None
        for size in sorted((it for it in sizes if it <= self.args.max_batch), reverse=True):
            batch = self.moved(self.token_batch([], size))
            with self.preparing("warmup", size):
                self.model.forward(batch)
            with self.preparing("capture", size):
                graph = torch.cuda.CUDAGraph()
                recorded = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")
                with self.traced_capture(size), recorded:
                    hidden = self.model.forward(batch)
                pool = pool or graph.pool()
                self.graphs[size] = (graph, batch, hidden)
        if not sizes:
            with self.preparing("warmup", self.args.max_batch):
                self.model.forward(self.moved(self.token_batch([], self.args.max_batch)))
            return
        if self.args.torch_profile and self.rank == 0:
            details = json.dumps(self.captures, indent=1)
            (self.args.torch_profile / "captures/execution_details.json").write_text(details)

    # Profiles by PyTorch.

    def profile(self):
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.cuda
        return profile(activities=activities, record_shapes=True,
                       with_stack=self.args.profile_stack)

    @contextlib.contextmanager
    def traced_capture(self, size):
        if not self.args.torch_profile:
            yield
            return
        folder = self.args.torch_profile / "captures"
        folder.mkdir(parents=True, exist_ok=True)
        with self.profile() as trace, record_function(f"capture_{size}_FULL"):
            yield
        names = [f"graph_capture_rank_{rank}.bs_{size}.json.gz" for rank in range(self.world)]
        trace.export_chrome_trace(str(folder / names[self.rank]))
        self.captures += [{"file": name, "batch_size": size, "mode": "FULL"} for name in names]

    def start_profile(self):
        if not self.args.torch_profile:
            torch.cuda.profiler.start() if self.cuda else None
        elif not self.profiler:
            self.profiler = self.profile()
            self.profiler.start()

    def stop_profile(self):
        self.synchronize()
        if not self.args.torch_profile:
            torch.cuda.profiler.stop() if self.cuda else None
        elif self.profiler:
            self.profiler.stop()
            self.args.torch_profile.mkdir(parents=True, exist_ok=True)
            windows = len(list(self.args.torch_profile.glob(f"window*_rank_{self.rank}.*")))
            name = f"window_{windows}_rank_{self.rank}.json.gz"
            self.profiler.export_chrome_trace(str(self.args.torch_profile / name))
            self.profiler = None
        self.write()

    @contextlib.contextmanager
    def annotated(self, work):
        if self.args.annotate == "none":
            yield
            return
        name = step_name(self.args.annotate, work) if work else "prepare"
        nvtx = torch.cuda.nvtx.range(name) if torch.version.cuda else contextlib.nullcontext()
        recorded = record_function(name) if self.profiler else contextlib.nullcontext()
        with nvtx, recorded:
            yield

    # Steps.

    def choose(self, hidden):
        """The next tokens, on the host."""
        logits = self.model.logits(hidden)
        if self.args.sample_on == "first" and self.rank > 0:
            tokens = torch.empty(len(hidden), dtype=torch.int64, device=self.device)
        elif self.args.sample == "argmax":
            tokens = logits.argmax(-1)
        else:
            weights = torch.softmax(logits.float(), -1)
            tokens = torch.multinomial(weights, 1, generator=self.generator).squeeze(1)
        if self.args.sample_on == "first" and self.world > 1:
            dist.broadcast(tokens, 0)
        return tokens.tolist()

    def execute(self, work):
        """Runs the forward of a step; returns its tokens and the size of its graph."""
        count = len(work.requests)
        if work.is_prefill:
            batch = self.moved(self.prompt_batch(work.requests))
            return self.choose(self.model.forward(batch)[batch.ends]), None
        size = min((it for it in self.graphs if it >= count), default=None)
        inputs = self.token_batch(work.requests, size or count)
        if size is None:
            return self.choose(self.model.forward(self.moved(inputs))), None
        graph, batch, hidden = self.graphs[size]
        for name in ("tokens", "positions", "slots", "tables", "lengths"):
            getattr(batch, name).copy_(getattr(inputs, name), non_blocking=True)
        graph.replay()
        return self.choose(hidden[:count]), size

    def step(self):
        start = now_ns()
        work = self.scheduler.next()
        if work is None:
            return
        if self.window and len(self.steps) == self.window[0]:
            self.start_profile()
            start = now_ns()
        row = {"class": "prefill" if work.is_prefill else "decode",
               "requests": len(work.requests), "tokens": sum(work.queries),
               "key_tokens": sum(work.keys)}
        with self.annotated(work):
            tokens, row["graph"] = self.execute(work)
        self.scheduler.finish(work, tokens)
        row |= {"start_ns": start, "end_ns": now_ns(), "profiled": self.profiler is not None}
        self.steps.append(row)
        if self.window and len(self.steps) == self.window[1]:
            self.stop_profile()

    @torch.inference_mode()
    def run(self, source):
        # The first range of a process takes milliseconds to open.
        with self.annotated(None):
            self.prepare()
        source.start()
        while True:
            message = source.take(len(self.steps), self.scheduler)
            if self.args.serve and self.control:
                shared = [message if self.rank == 0 else None]
                dist.broadcast_object_list(shared, 0, group=self.control)
                message = shared[0] if self.rank else message
            for order in message["orders"]:
                {"start": self.start_profile, "stop": self.stop_profile}[order]()
            for at, (prompt, new_tokens) in enumerate(message["requests"]):
                answer = source.answers[at] if source.answers else None
                self.scheduler.waiting.append(Request(prompt, new_tokens, answer))
            source.done(message)
            if message["ends"]:
                break
            self.step()
        if self.profiler:
            self.stop_profile()
        self.write()
        if self.world > 1:
            # The graphs hold operations of the group.
            self.synchronize()
            self.graphs.clear()
            dist.destroy_process_group()

    def write(self):
        if not self.args.steps:
            return
        own = {"pid": os.getpid(), "preparations": self.preparations, "steps": self.steps}
        every = [own] * self.world
        if self.control:
            dist.gather_object(own, None if self.rank else every, 0, group=self.control)
        if self.rank:
            return
        facts = {"torch": torch.__version__, "triton": self.model.triton,
                 "flash": self.model.flash, "ranks": self.world,
                 "gpu": torch.cuda.get_device_name() if self.cuda else None,
                 "arguments": {name: str(value) for name, value in vars(self.args).items()}}
        # The ranks run the same steps; their times differ.
        counted = {"engine": facts} | own | {"other_ranks": every[1:]}
        self.args.steps.write_text(json.dumps(counted, indent=0))


class Turns:
    """Requests of random lengths by the seed: most wait at the start of a turn, some come later."""

    answers = None

    def __init__(self, args, ends):
        self.args, self.ends = args, ends
        self.random = random.Random(args.seed)
        self.turn, self.arrivals, self.first = 0, [], 0

    def start(self):
        pass

    def drawn(self):
        prompt, output = ([int(it) for it in text.split(":")]
                          for text in (self.args.prompt, self.args.output))
        length = min(self.random.randint(*prompt), self.args.max_length - output[1])
        tokens = [self.random.randrange(self.args.vocabulary) for _ in range(length)]
        return tokens, self.random.randint(*output)

    def take(self, steps, scheduler):
        idle = not scheduler.waiting and not scheduler.running
        if idle and not self.arrivals and self.turn < self.args.turns:
            self.turn, self.first = self.turn + 1, steps
            at = [0] * self.args.requests
            at += sorted(self.random.randint(1, 40) for _ in range(self.args.late))
            self.arrivals = [(it, self.drawn()) for it in at]
            ended = False
        else:
            ended = idle and not self.arrivals
        # Without other work, the next requests come at once.
        now = steps - self.first
        if idle and self.arrivals:
            now = max(now, self.arrivals[0][0])
        due = [request for at, request in self.arrivals if at <= now]
        self.arrivals = self.arrivals[len(due):]
        return {"requests": due, "orders": [], "ends": ended or self.ends.is_set()}

    def done(self, message):
        pass


class Server:
    """Requests over HTTP. Rank 0 serves; the others receive its messages."""

    def __init__(self, args, ends, rank):
        self.args, self.ends, self.rank = args, ends, rank
        self.inbox, self.answers, self.notices = queue.Queue(), [], []

    def start(self):
        if self.rank == 0:
            handler = type("Handler", (Handler,), {"source": self})
            server = http.server.ThreadingHTTPServer(("127.0.0.1", self.args.serve), handler)
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
            print(f"serving on port {self.args.serve}", flush=True)

    def take(self, steps, scheduler):
        message = {"requests": [], "orders": [], "ends": False}
        self.answers, self.notices = [], []
        if self.rank:
            return message
        waits = not scheduler.waiting and not scheduler.running
        while not self.ends.is_set():
            try:
                kind, value, answer = self.inbox.get(timeout=0.1 if waits else 0)
            except queue.Empty:
                if waits:
                    continue
                break
            waits = False
            if kind == "request":
                message["requests"].append(value)
                self.answers.append(answer)
            else:
                message["orders"].append(value)
                self.notices.append(answer)
        message["ends"] = self.ends.is_set()
        return message

    def done(self, message):
        for notice in self.notices:
            notice.set()


class Handler(http.server.BaseHTTPRequestHandler):
    """A connection for each request; a stream ends with its connection."""

    source = None

    def log_message(self, *_):
        pass

    def reply(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def refuse(self, status, message):
        self.reply(status, {"error": {"message": message}})

    def do_GET(self):
        if self.path == "/health":
            self.reply(200, {})
        elif self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": "engine", "object": "model"}]})
        else:
            self.refuse(404, f"no path {self.path}")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path in ("/start_profile", "/stop_profile"):
            notice = threading.Event()
            self.source.inbox.put(("order", self.path[1:].split("_")[0], notice))
            notice.wait()
            return self.reply(200, {})
        if self.path != "/v1/completions":
            return self.refuse(404, f"no path {self.path}")
        try:
            asked = json.loads(body)
            prompt, new_tokens = asked["prompt"], int(asked.get("max_tokens") or 16)
            vocabulary = self.source.args.vocabulary
            # A word is the id that it was printed for, or any other by its letters.
            tokens = [int(it[1:]) if it[:1] == "w" and it[1:].isdigit() else zlib.crc32(it.encode())
                      for it in prompt.split()] if isinstance(prompt, str) else prompt
            tokens = [int(it) % vocabulary for it in tokens] or [0]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return self.refuse(400, f"invalid request: {error!r}")
        if new_tokens < 1 or len(tokens) + new_tokens > self.source.args.max_length:
            return self.refuse(400, f"{len(tokens)} + {new_tokens} tokens; expected at most "
                                    f"{self.source.args.max_length}")
        answer = queue.Queue()
        self.source.inbox.put(("request", (tokens, new_tokens), answer))
        usage = {"prompt_tokens": len(tokens), "completion_tokens": new_tokens,
                 "total_tokens": len(tokens) + new_tokens}
        if asked.get("stream"):
            return self.stream(answer, usage)
        text, ended = "", False
        while not ended:
            token, ended = answer.get()
            text += f"w{token} "
        self.reply(200, self.chunk(text, "length") | {"usage": usage})

    def stream(self, answer, usage):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        ended = False
        with contextlib.suppress(ConnectionError):
            while not ended:
                token, ended = answer.get()
                self.event(self.chunk(f"w{token} ", "length" if ended else None))
            self.event(self.chunk() | {"usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")

    def event(self, body):
        self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")

    @staticmethod
    def chunk(text=None, finish=None):
        choices = [] if text is None else [{"index": 0, "text": text, "finish_reason": finish}]
        return {"id": "cmpl-0", "object": "text_completion", "model": "engine", "choices": choices}


def main():
    args = arguments()
    ends = threading.Event()
    engine = Engine(args)
    if args.serve:
        source = Server(args, ends, engine.rank)
    else:
        source = Turns(args, ends)
    # Ranks without a server end with rank 0.
    if args.serve or engine.world == 1:
        signal.signal(signal.SIGTERM, lambda *_: ends.set())
    engine.run(source)


if __name__ == "__main__":
    main()

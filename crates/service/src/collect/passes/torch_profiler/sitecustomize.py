"""Records a process with the profiler of PyTorch, from the import of torch to the end.

Python executes this file at its start, because its folder is the first of PYTHONPATH. A process
that does not import torch is unchanged. A profiler that the program starts itself ends this one.
"""
import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))


class Recording:
    """The profiler of this process, and the file of its trace."""

    def __init__(self, torch, folder):
        from torch.profiler import profile, supported_activities

        self.pid = os.getpid()
        self.path = os.path.join(folder, f"process-{self.pid}.json.gz")
        self.lock = threading.Lock()
        self.profiler = profile(activities=supported_activities(), record_shapes=True)
        self.profiler.start()
        atexit.register(self.finish)
        self.end_before_others(profile)
        self.end_on_sigterm()
        self.record_nvtx(torch.cuda.nvtx, torch.profiler.record_function)

    def finish(self):
        """Ends the recording and writes the trace, once, in this process and not in a fork."""
        with self.lock:
            profiler, self.profiler = self.profiler, None
        if profiler is None or self.pid != os.getpid():
            return
        profiler.stop()
        unfinished = os.path.join(os.path.dirname(self.path), f"unfinished-{self.pid}.json.gz")
        profiler.export_chrome_trace(unfinished)
        os.replace(unfinished, self.path)

    def end_before_others(self, profile):
        """Only one profiler can record: one of the program has precedence."""
        start = profile.start

        def start_other(other):
            self.finish()
            return start(other)

        profile.start = start_other

    def end_on_sigterm(self):
        """A server without a handler of its own would be ended without a trace."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:

            def end(number, _):
                # A second one would interrupt the export of the trace.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                sys.exit(128 + number)

            signal.signal(signal.SIGTERM, end)

    @staticmethod
    def record_nvtx(nvtx, record_function):
        """Records the NVTX ranges that are opened by torch.cuda.nvtx: they are the stages."""
        push, pop, ranges = nvtx.range_push, nvtx.range_pop, threading.local()

        def range_push(message):
            depth = push(message)
            opened = record_function(str(message))
            opened.__enter__()
            ranges.__dict__.setdefault("open", []).append(opened)
            return depth

        def range_pop():
            if ranges.__dict__.get("open"):
                ranges.open.pop().__exit__(None, None, None)
            return pop()

        nvtx.range_push, nvtx.range_pop = range_push, range_pop


class TorchFinder(importlib.abc.MetaPathFinder):
    """Starts the recording when torch has been imported."""

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            try:
                Recording(module, self.folder)
            except Exception as error:
                print(f"llmprof: the profiler of PyTorch did not start: {error}", file=sys.stderr)

        spec.loader.exec_module = exec_module
        return spec


def run_next():
    """Executes the sitecustomize that this one hides, if there is one."""
    rest = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


folder = os.environ.get("LLMPROF_TORCH_PROFILER")
if folder:
    sys.meta_path.insert(0, TorchFinder(folder))
run_next()

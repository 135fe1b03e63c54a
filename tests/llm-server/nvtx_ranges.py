"""NVTX ranges without a library: the part of its binary interface that a profiler hands over.

A profiler names its injection in NVTX_INJECTION64_PATH. Without one, ranges cost nothing and are
recorded nowhere.
"""

import contextlib
import ctypes
import os

CALLBACKS, VERSION = 1, 3
CORE2, RANGE_PUSH, RANGE_POP, REGISTER_STRING, CREATE_DOMAIN = 5, 4, 5, 10, 12
SLOTS = 64
REGISTERED = 3


class Attributes(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint16), ("size", ctypes.c_uint16)]
    _fields_ += [(name, ctypes.c_int32) for name in ("category", "color_kind", "color")]
    _fields_ += [(name, ctypes.c_int32) for name in ("payload_kind", "reserved")]
    _fields_ += [("payload", ctypes.c_uint64), ("kind", ctypes.c_int32)]
    _fields_ += [("message", ctypes.c_void_p)]


Pointer, Slots = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
GetModule = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.POINTER(Slots), ctypes.POINTER(ctypes.c_uint32)
)
SetVersion = ctypes.CFUNCTYPE(None, ctypes.c_uint32)
GetTable = ctypes.CFUNCTYPE(Pointer, ctypes.c_uint32)


class CallbackTable(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("get", GetModule)]


class VersionTable(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("version", ctypes.c_uint32), ("pad", ctypes.c_uint32)]
    _fields_ += [("set", SetVersion)]


targets, modules = {}, {}


def table_of(module):
    """Slots of a module: pointers to the variables that the profiler sets to its functions."""
    if module not in modules:
        functions = (ctypes.c_void_p * SLOTS)()
        size = ctypes.sizeof(ctypes.c_void_p)
        slots = (ctypes.c_void_p * SLOTS)(
            *[ctypes.addressof(functions) + at * size for at in range(SLOTS)]
        )
        slots[0] = None
        targets[module], modules[module] = functions, slots
    return modules[module]


@GetModule
def get_module(module, slots, count):
    slots[0] = ctypes.cast(table_of(module), Slots)
    if count:
        count[0] = SLOTS
    return 1


callbacks = CallbackTable(ctypes.sizeof(CallbackTable), get_module)
version = VersionTable(ctypes.sizeof(VersionTable), 3, 0, SetVersion(lambda _: None))


@GetTable
def get_table(number):
    table = {CALLBACKS: callbacks, VERSION: version}.get(number)
    return ctypes.addressof(table) if table else None


def load():
    """The domain and the functions of the profiler; None without one."""
    path = os.environ.get("NVTX_INJECTION64_PATH")
    if not path:
        return None
    library = ctypes.CDLL(path)
    initialize = library.InitializeInjectionNvtx2
    initialize.argtypes, initialize.restype = [GetTable], ctypes.c_int
    if not initialize(get_table):
        return None
    function = lambda at, result, *kinds: ctypes.CFUNCTYPE(result, *kinds)(targets[CORE2][at])
    table_of(CORE2)
    if not targets[CORE2][RANGE_PUSH]:
        return None
    domain = function(CREATE_DOMAIN, Pointer, ctypes.c_char_p)(b"LLM")
    register = function(REGISTER_STRING, Pointer, Pointer, ctypes.c_char_p)
    push = function(RANGE_PUSH, ctypes.c_int, Pointer, ctypes.POINTER(Attributes))
    pop = function(RANGE_POP, ctypes.c_int, Pointer)
    return domain, register, push, pop


loaded, names = load(), {}


@contextlib.contextmanager
def range_of(name):
    """A range of the domain LLM on this thread."""
    if not loaded:
        yield
        return
    domain, register, push, pop = loaded
    if name not in names:
        names[name] = register(domain, name.encode())
    it = Attributes(version=3, size=ctypes.sizeof(Attributes), kind=REGISTERED, message=names[name])
    push(domain, ctypes.byref(it))
    try:
        yield
    finally:
        pop(domain)

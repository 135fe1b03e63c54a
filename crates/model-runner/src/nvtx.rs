//! NVTX ranges, by the ABI that profilers inject into a process.
//!
//! NVTX 3 has no library: a profiler names its own in `NVTX_INJECTION64_PATH`, and fills the
//! function slots that it is passed. Without a profiler nothing is loaded, and a push costs one
//! branch. Never fails: a broken injection means no ranges.

use std::{
    ffi::{CString, c_char, c_int, c_void},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

/// Slots of one module's function table; every module has fewer functions.
const SLOTS: usize = 32;
/// Modules that a profiler may request: 1 to 6.
const MODULES: usize = 7;
/// The module with domains and registered strings, and its slots.
const CORE2: usize = 5;
const RANGE_PUSH: usize = 4;
const RANGE_POP: usize = 5;
const REGISTER_STRING: usize = 10;
const DOMAIN_CREATE: usize = 12;

type Slot = AtomicPtr<c_void>;
type Handle = *mut c_void;

/// Slots for the profiler's functions: it keeps pointers to them, so they live as long as the
/// process.
static FUNCTIONS: [[Slot; SLOTS]; MODULES] =
    [const { [const { Slot::new(ptr::null_mut()) }; SLOTS] }; MODULES];

/// Pointers to the slots of each module, as required by the ABI.
struct SlotTables([[*const Slot; SLOTS]; MODULES]);
// SAFETY: the pointers are to `FUNCTIONS`, which is static and atomic.
unsafe impl Send for SlotTables {}
unsafe impl Sync for SlotTables {}
static TABLES: OnceLock<SlotTables> = OnceLock::new();

#[repr(C)]
struct Callbacks {
    size: usize,
    get_table: extern "C" fn(u32, *mut *const *const Slot, *mut u32) -> c_int,
}

#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set_injection_version: extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), get_table };
static VERSION: VersionInfo =
    VersionInfo { size: size_of::<VersionInfo>(), version: 3, reserved: 0, set_injection_version };

extern "C" fn set_injection_version(_version: u32) {}

extern "C" fn get_table(module: u32, table: *mut *const *const Slot, size: *mut u32) -> c_int {
    let tables = TABLES.get_or_init(|| {
        SlotTables(std::array::from_fn(|m| {
            std::array::from_fn(|s| &FUNCTIONS[m][s] as *const Slot)
        }))
    });
    let Some(slots) = tables.0.get(module as usize).filter(|_| module > 0) else { return 0 };
    // SAFETY: the profiler passes valid pointers to write to, or null.
    unsafe {
        if !table.is_null() {
            *table = slots.as_ptr();
        }
        if !size.is_null() {
            *size = SLOTS as u32;
        }
    }
    1
}

extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION).cast(),
        _ => ptr::null(),
    }
}

/// `nvtxEventAttributes_t`, version 3, with a registered string as its message.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: Handle,
}
const _: () = assert!(size_of::<Attributes>() == 48);
const REGISTERED: i32 = 3;

/// Passes the tables to the profiler in `NVTX_INJECTION64_PATH`; returns whether one attached.
fn attach() -> bool {
    static ATTACHED: OnceLock<bool> = OnceLock::new();
    *ATTACHED.get_or_init(|| {
        let Some(path) = std::env::var_os("NVTX_INJECTION64_PATH") else { return false };
        type Initialize = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;
        // SAFETY: loading a profiler's library runs its code, as requested by the variable.
        let attached = unsafe {
            libloading::Library::new(&path).and_then(|library| {
                let initialize = *library.get::<Initialize>(b"InitializeInjectionNvtx2\0")?;
                // The profiler stays for the life of the process.
                std::mem::forget(library);
                Ok(initialize(export_table) == 1)
            })
        };
        match attached {
            Ok(true) => true,
            Ok(false) => {
                let path = path.display();
                tracing::warn!(%path, "the NVTX injection library refused to attach");
                false
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "cannot load the NVTX injection library");
                false
            }
        }
    })
}

/// The function in a slot of the core module, if the profiler filled it.
fn function(slot: usize) -> Option<*mut c_void> {
    let function = FUNCTIONS[CORE2][slot].load(Ordering::Acquire);
    (!function.is_null()).then_some(function)
}

/// A string registered with the profiler: matched by its filters, and cheap to push.
#[derive(Debug, Clone, Copy)]
pub struct NvtxName(Handle);

impl NvtxName {
    /// The name without a profiler.
    pub const NONE: Self = Self(ptr::null_mut());
}

/// A domain of ranges; does nothing without a profiler.
#[derive(Debug, Clone, Copy)]
pub struct NvtxDomain(Option<AttachedDomain>);

#[derive(Debug, Clone, Copy)]
struct AttachedDomain {
    handle: Handle,
    push: unsafe extern "C" fn(Handle, *const Attributes) -> c_int,
    pop: unsafe extern "C" fn(Handle) -> c_int,
    register: unsafe extern "C" fn(Handle, *const c_char) -> Handle,
}

impl NvtxDomain {
    /// The domain without a profiler.
    pub const NONE: Self = Self(None);

    /// Creates a domain with the profiler, if one is attached.
    pub fn create(name: &str) -> Self {
        Self(attach().then(|| Self::live(name)).flatten())
    }

    fn live(name: &str) -> Option<AttachedDomain> {
        let name = CString::new(name).ok()?;
        let (create, push) = (function(DOMAIN_CREATE)?, function(RANGE_PUSH)?);
        let (pop, register) = (function(RANGE_POP)?, function(REGISTER_STRING)?);
        // SAFETY: the slots hold functions of these types by the ABI, and live as long as the
        // process.
        unsafe {
            let create: unsafe extern "C" fn(*const c_char) -> Handle = std::mem::transmute(create);
            let handle = create(name.as_ptr());
            (!handle.is_null()).then(|| AttachedDomain {
                handle,
                push: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(Handle, *const Attributes) -> c_int,
                >(push),
                pop: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Handle) -> c_int>(pop),
                register: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(Handle, *const c_char) -> Handle,
                >(register),
            })
        }
    }

    /// Registers a name for ranges of this domain.
    pub fn register(&self, name: &str) -> NvtxName {
        match (&self.0, CString::new(name)) {
            // SAFETY: the string ends in NUL, and the profiler copies it.
            (Some(live), Ok(name)) => {
                NvtxName(unsafe { (live.register)(live.handle, name.as_ptr()) })
            }
            _ => NvtxName::NONE,
        }
    }

    /// Opens a range on this thread.
    pub fn push(&self, name: NvtxName) {
        let Some(live) = &self.0 else { return };
        let attributes = Attributes {
            version: 3,
            size: size_of::<Attributes>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: 0,
            reserved: 0,
            payload: 0,
            message_type: REGISTERED,
            message: name.0,
        };
        // SAFETY: the attributes outlive the call.
        unsafe { (live.push)(live.handle, &attributes) };
    }

    /// Closes the innermost range of this domain on this thread.
    pub fn pop(&self) {
        if let Some(live) = &self.0 {
            // SAFETY: the handle came from this profiler.
            unsafe { (live.pop)(live.handle) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::CStr, sync::Mutex};

    use super::*;

    static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn record(call: String) {
        CALLS.lock().expect("no test panics while it records").push(call);
    }

    extern "C" fn create(name: *const c_char) -> Handle {
        // SAFETY: the ABI passes a NUL-terminated string.
        record(format!("domain {}", unsafe { CStr::from_ptr(name) }.to_string_lossy()));
        ptr::without_provenance_mut(0xd0)
    }

    extern "C" fn register(domain: Handle, name: *const c_char) -> Handle {
        // SAFETY: the ABI passes a NUL-terminated string.
        record(format!(
            "register {} in {:x}",
            unsafe { CStr::from_ptr(name) }.to_string_lossy(),
            domain.addr()
        ));
        ptr::without_provenance_mut(0x5a)
    }

    extern "C" fn push(domain: Handle, attributes: *const Attributes) -> c_int {
        // SAFETY: the ABI passes attributes that live through the call.
        let Attributes { version, size, message_type, message, .. } =
            unsafe { ptr::read(attributes) };
        record(format!(
            "push {:x} in {:x}, version {version} of {size} bytes, message type {message_type}",
            message.addr(),
            domain.addr()
        ));
        0
    }

    extern "C" fn pop(domain: Handle) -> c_int {
        record(format!("pop in {:x}", domain.addr()));
        0
    }

    /// Fills the slots as a profiler does: through the exported tables only.
    fn inject(functions: &[(usize, *mut c_void)]) {
        let mut slots: *const *const Slot = ptr::null();
        let mut size = 0;
        // SAFETY: table 1 is `Callbacks`, by the ABI.
        let callbacks = unsafe { &*export_table(1).cast::<Callbacks>() };
        assert_eq!((callbacks.get_table)(CORE2 as u32, &raw mut slots, &raw mut size), 1);
        for &(slot, function) in functions {
            assert!(slot < size as usize);
            // SAFETY: the table has `size` pointers to slots.
            unsafe { (**slots.add(slot)).store(function, Ordering::Release) };
        }
    }

    #[test]
    #[ignore = "a measurement, see bench/README.md; needs --release and --nocapture"]
    fn cost_of_a_range_without_profiler() {
        const RANGES: u32 = 100_000_000;
        let domain = NvtxDomain::create("LLM");
        assert!(domain.0.is_none(), "a profiler is attached");
        let name = domain.register("decode_step");
        let started = std::time::Instant::now();
        for _ in 0..RANGES {
            std::hint::black_box(&domain).push(std::hint::black_box(name));
            std::hint::black_box(&domain).pop();
        }
        println!("{:.2} ns per range", started.elapsed().as_secs_f64() * 1e9 / f64::from(RANGES));
    }

    #[test]
    fn a_profiler_that_fills_the_slots_receives_every_range() {
        assert_eq!(get_table(0, ptr::null_mut(), ptr::null_mut()), 0, "module 0 does not exist");
        assert_eq!(
            get_table(MODULES as u32, ptr::null_mut(), ptr::null_mut()),
            0,
            "a module past the last does not exist"
        );
        inject(&[
            (DOMAIN_CREATE, create as *mut c_void),
            (REGISTER_STRING, register as *mut c_void),
            (RANGE_PUSH, push as *mut c_void),
            (RANGE_POP, pop as *mut c_void),
        ]);
        let domain = NvtxDomain(NvtxDomain::live("LLM"));
        let name = domain.register("prefill");
        domain.push(name);
        domain.pop();
        let calls = CALLS.lock().expect("no test panics while it records");
        assert_eq!(
            calls[..],
            [
                "domain LLM",
                "register prefill in d0",
                "push 5a in d0, version 3 of 48 bytes, message type 3",
                "pop in d0"
            ]
        );
    }
}

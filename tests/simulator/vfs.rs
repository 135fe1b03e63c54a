//! A virtual file system of SQLite over simulated disks, for one connection at a time.
//!
//! The only place with unsafe code. A database's folder names its disk.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{CStr, c_char, c_int, c_void},
    mem::size_of,
    path::{Path, PathBuf},
    ptr, slice,
    sync::{LazyLock, Mutex, Once, PoisonError},
};

use rusqlite::ffi;

use super::disk::{Disk, Fault, File, Operation};

/// Name of the file system.
pub const NAME: &str = "simulated";

static DISKS: LazyLock<Mutex<HashMap<PathBuf, Disk>>> = LazyLock::new(Mutex::default);

/// Registers the file system, and the disk of the databases in a folder.
pub fn register(folder: &Path, disk: &Disk) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(register_vfs);
    disks().insert(folder.to_owned(), disk.clone());
}

/// Forgets the disk of a folder.
pub fn unregister(folder: &Path) {
    disks().remove(folder);
}

fn disks() -> std::sync::MutexGuard<'static, HashMap<PathBuf, Disk>> {
    DISKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open file as SQLite allocates it.
#[repr(C)]
struct Handle {
    methods: *const ffi::sqlite3_io_methods,
    open: *mut Open,
}

/// An open file.
struct Open {
    disk: Disk,
    process: u64,
    name: String,
    /// Content of a file without a name.
    temporary: Option<File>,
    shared_memory: Vec<Box<[u64]>>,
}

impl Open {
    fn access<T>(
        &mut self,
        operation: Option<Operation>,
        act: impl FnOnce(&mut File) -> T,
    ) -> Result<T, Fault> {
        if let Some(temporary) = &mut self.temporary {
            return Ok(act(temporary));
        }
        let name = &self.name;
        self.disk.access(self.process, operation, |files| match files.get_mut(name) {
            Some(file) => act(file),
            None => act(&mut File::default()),
        })
    }
}

fn code(fault: Fault, otherwise: c_int) -> c_int {
    if fault == Fault::Full { ffi::SQLITE_FULL } else { otherwise }
}

/// The open file behind a handle, which [`open`] has made.
unsafe fn of<'a>(file: *mut ffi::sqlite3_file) -> &'a mut Open {
    unsafe { &mut *(*file.cast::<Handle>()).open }
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let handle = unsafe { &mut *file.cast::<Handle>() };
    handle.methods = ptr::null();
    let opened = if name.is_null() {
        Open {
            disk: Disk::default(),
            process: 0,
            name: String::new(),
            temporary: Some(File::default()),
            shared_memory: Vec::new(),
        }
    } else {
        let Some((name, disk)) = (unsafe { found(name) }) else { return ffi::SQLITE_CANTOPEN };
        if flags & ffi::SQLITE_OPEN_MAIN_DB != 0 {
            disk.connect();
        }
        let process = disk.process_number();
        let create = flags & ffi::SQLITE_OPEN_CREATE != 0;
        let exists = disk.access(process, None, |files| {
            if create {
                files.entry(name.clone()).or_default();
            }
            files.contains_key(&name)
        });
        if exists != Ok(true) {
            return ffi::SQLITE_CANTOPEN;
        }
        Open { disk, process, name, temporary: None, shared_memory: Vec::new() }
    };
    handle.open = Box::into_raw(Box::new(opened));
    handle.methods = &raw const METHODS.0;
    if !out_flags.is_null() {
        unsafe { *out_flags = flags };
    }
    ffi::SQLITE_OK
}

/// The name of a file, and its disk.
unsafe fn found(name: *const c_char) -> Option<(String, Disk)> {
    let name = unsafe { CStr::from_ptr(name) }.to_str().ok()?.to_owned();
    let disk = disks().get(Path::new(&name).parent()?)?.clone();
    Some((name, disk))
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    let handle = unsafe { &mut *file.cast::<Handle>() };
    drop(unsafe { Box::from_raw(handle.open) });
    ffi::SQLITE_OK
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    into: *mut c_void,
    count: c_int,
    at: i64,
) -> c_int {
    let into = unsafe { slice::from_raw_parts_mut(into.cast::<u8>(), count as usize) };
    match unsafe { of(file) }.access(None, |it| it.read(at as usize, into)) {
        Ok(read) if read < count as usize => ffi::SQLITE_IOERR_SHORT_READ,
        Ok(_) => ffi::SQLITE_OK,
        Err(fault) => code(fault, ffi::SQLITE_IOERR_READ),
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    count: c_int,
    at: i64,
) -> c_int {
    let from = unsafe { slice::from_raw_parts(from.cast::<u8>(), count as usize) };
    let written =
        unsafe { of(file) }.access(Some(Operation::Write), |it| it.write(at as usize, from));
    written.map_or_else(|fault| code(fault, ffi::SQLITE_IOERR_WRITE), |()| ffi::SQLITE_OK)
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, length: i64) -> c_int {
    let done = unsafe { of(file) }.access(None, |it| it.truncate(length as usize));
    done.map_or_else(|fault| code(fault, ffi::SQLITE_IOERR_TRUNCATE), |()| ffi::SQLITE_OK)
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    let synced = unsafe { of(file) }.access(Some(Operation::Sync), File::sync);
    synced.map_or_else(|fault| code(fault, ffi::SQLITE_IOERR_FSYNC), |()| ffi::SQLITE_OK)
}

unsafe extern "C" fn size(file: *mut ffi::sqlite3_file, length: *mut i64) -> c_int {
    match unsafe { of(file) }.access(None, |it| it.len()) {
        Ok(found) => {
            unsafe { *length = found as i64 };
            ffi::SQLITE_OK
        }
        Err(fault) => code(fault, ffi::SQLITE_IOERR_FSTAT),
    }
}

unsafe extern "C" fn lock(_: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn is_reserved(_: *mut ffi::sqlite3_file, reserved: *mut c_int) -> c_int {
    unsafe { *reserved = 0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn control(_: *mut ffi::sqlite3_file, _: c_int, _: *mut c_void) -> c_int {
    ffi::SQLITE_NOTFOUND
}

unsafe extern "C" fn sector_size(_: *mut ffi::sqlite3_file) -> c_int {
    512
}

unsafe extern "C" fn characteristics(_: *mut ffi::sqlite3_file) -> c_int {
    0
}

unsafe extern "C" fn map_shared(
    file: *mut ffi::sqlite3_file,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    found: *mut *mut c_void,
) -> c_int {
    let memory = &mut unsafe { of(file) }.shared_memory;
    let region = region as usize;
    while extend != 0 && memory.len() <= region {
        memory.push(vec![0; bytes as usize / 8].into_boxed_slice());
    }
    let region = memory.get_mut(region);
    unsafe { *found = region.map_or(ptr::null_mut(), |it| it.as_mut_ptr().cast()) };
    ffi::SQLITE_OK
}

unsafe extern "C" fn lock_shared(_: *mut ffi::sqlite3_file, _: c_int, _: c_int, _: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn barrier(_: *mut ffi::sqlite3_file) {}

unsafe extern "C" fn unmap_shared(_: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    ffi::SQLITE_OK
}

/// A connection deletes an empty log when it closes, which may be after the end of its process:
/// then the file belongs to another one. It stays.
unsafe extern "C" fn delete(_: *mut ffi::sqlite3_vfs, name: *const c_char, _: c_int) -> c_int {
    let Some((name, disk)) = (unsafe { found(name) }) else { return ffi::SQLITE_IOERR_DELETE };
    if name.ends_with("-wal") {
        return ffi::SQLITE_OK;
    }
    match disk.access(disk.process_number(), None, |files| files.remove(&name)) {
        Ok(_) => ffi::SQLITE_OK,
        Err(_) => ffi::SQLITE_IOERR_DELETE,
    }
}

unsafe extern "C" fn exists(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    _: c_int,
    answer: *mut c_int,
) -> c_int {
    let found = unsafe { found(name) }.is_some_and(|(name, disk)| {
        disk.access(disk.process_number(), None, |files: &mut BTreeMap<_, File>| {
            files.get(&name).is_some_and(|file| file.len() > 0)
        }) == Ok(true)
    });
    unsafe { *answer = c_int::from(found) };
    ffi::SQLITE_OK
}

unsafe extern "C" fn full_name(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    size: c_int,
    into: *mut c_char,
) -> c_int {
    let name = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
    if name.len() > size as usize {
        return ffi::SQLITE_CANTOPEN;
    }
    unsafe { ptr::copy_nonoverlapping(name.as_ptr().cast(), into, name.len()) };
    ffi::SQLITE_OK
}

unsafe extern "C" fn randomness(
    _: *mut ffi::sqlite3_vfs,
    count: c_int,
    into: *mut c_char,
) -> c_int {
    unsafe { ptr::write_bytes(into, 7, count as usize) };
    count
}

unsafe extern "C" fn pause(_: *mut ffi::sqlite3_vfs, microseconds: c_int) -> c_int {
    microseconds
}

/// No query asks for the time.
unsafe extern "C" fn current_time(_: *mut ffi::sqlite3_vfs, days: *mut f64) -> c_int {
    unsafe { *days = 2_461_000.5 };
    ffi::SQLITE_OK
}

/// Constant, so threads may share it.
struct Methods(ffi::sqlite3_io_methods);
unsafe impl Sync for Methods {}

static METHODS: Methods = Methods(ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(size),
    xLock: Some(lock),
    xUnlock: Some(lock),
    xCheckReservedLock: Some(is_reserved),
    xFileControl: Some(control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(map_shared),
    xShmLock: Some(lock_shared),
    xShmBarrier: Some(barrier),
    xShmUnmap: Some(unmap_shared),
    xFetch: None,
    xUnfetch: None,
});

fn register_vfs() {
    let vfs = ffi::sqlite3_vfs {
        iVersion: 1,
        szOsFile: size_of::<Handle>() as c_int,
        mxPathname: 512,
        pNext: ptr::null_mut(),
        zName: c"simulated".as_ptr(),
        pAppData: ptr::null_mut(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(exists),
        xFullPathname: Some(full_name),
        xDlOpen: None,
        xDlError: None,
        xDlSym: None,
        xDlClose: None,
        xRandomness: Some(randomness),
        xSleep: Some(pause),
        xCurrentTime: Some(current_time),
        xGetLastError: None,
        xCurrentTimeInt64: None,
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    };
    // SQLite keeps the pointer.
    let vfs = Box::leak(Box::new(vfs));
    assert_eq!(unsafe { ffi::sqlite3_vfs_register(vfs, 0) }, ffi::SQLITE_OK);
}

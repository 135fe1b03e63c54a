//! The service's environment variables; no other module reads them.
//!
//! A process's environment block can be read by all processes of its user, and Nsight Systems
//! stores the blocks that it sees in reports. So the service starts itself again with the harmless
//! variables only, and receives the others in a sealed file in memory ([`hide_variables`]).

use std::{
    env,
    ffi::{CString, OsStr, OsString},
    fs::File,
    io::{self, Read, Seek, Write},
    os::{
        fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::PathBuf,
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
    unistd::execve,
};

/// Variables of the service for every child: paths, devices, threads. None contains a secret.
pub const PASSED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_CACHE_PATH",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "OMP_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "RUST_LOG",
    "RUST_BACKTRACE",
];
/// Further variables that stay in the environment block: settings of processes, marks by which they
/// are found, and libraries that the loader reads before this program starts.
const VISIBLE: &[&str] = &[
    "TMPDIR",
    "TOKIO_WORKER_THREADS",
    "LLMPROF_RUN_ID",
    "LLMPROF_FOLDER_ID",
    "LLMPROF_TARGET",
    "LD_PRELOAD",
    HIDDEN_FILE,
];
/// Start of the variables of libfaketime, a preloaded library.
const FAKETIME: &[u8] = b"FAKETIME";
/// Variable with the file descriptor of the hidden variables.
const HIDDEN_FILE: &str = "LLMPROF_HIDDEN_VARIABLES";

/// Path of model-runner when tools.model_runner is empty.
const RUNNER: &str = "LLMPROF_MODEL_RUNNER";

/// Removes all but harmless variables from the environment block of this process, by executing the
/// program again, and restores them for this process only. Called by `main` before it starts a
/// thread.
pub fn hide_variables() -> io::Result<()> {
    if let Some(file) = env::var_os(HIDDEN_FILE) {
        return restore_variables(&file);
    }
    let is_visible = |name: &OsStr| {
        PASSED.iter().chain(VISIBLE).any(|it| name == *it) || name.as_bytes().starts_with(FAKETIME)
    };
    let (visible, hidden): (Vec<_>, Vec<_>) =
        env::vars_os().partition(|(name, _)| is_visible(name));
    if hidden.is_empty() {
        return Ok(());
    }
    let mut file = File::from(memfd_create(c"llmprof", MFdFlags::MFD_ALLOW_SEALING)?);
    for (name, value) in &hidden {
        file.write_all(&assignment(name, value))?;
        file.write_all(&[0])?;
    }
    file.rewind()?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::all()))?;
    let descriptor = (HIDDEN_FILE.into(), OsString::from(file.as_raw_fd().to_string()));
    let block = visible.into_iter().chain([descriptor]);
    let block: Vec<CString> =
        block.filter_map(|(name, value)| CString::new(assignment(&name, &value)).ok()).collect();
    let args: Vec<CString> =
        env::args_os().filter_map(|arg| CString::new(arg.into_vec()).ok()).collect();
    // On success this process is the new program.
    execve(c"/proc/self/exe", &args, &block)?;
    Ok(())
}

fn assignment(name: &OsStr, value: &OsStr) -> Vec<u8> {
    [name.as_bytes(), b"=", value.as_bytes()].concat()
}

/// Sets the variables in the file of this descriptor.
fn restore_variables(descriptor: &OsStr) -> io::Result<()> {
    let invalid = || io::Error::other(format!("invalid {HIDDEN_FILE} {}", descriptor.display()));
    let descriptor: RawFd =
        descriptor.to_str().and_then(|text| text.parse().ok()).ok_or_else(invalid)?;
    // SAFETY: this program left the descriptor open for this purpose, before it executed itself.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    let mut block = Vec::new();
    if let Err(error) = file.read_to_end(&mut block) {
        // Not a descriptor of this process: nothing to close.
        let _ = file.into_raw_fd();
        return Err(error);
    }
    // SAFETY: no other thread exists yet.
    unsafe { env::remove_var(HIDDEN_FILE) };
    for entry in block.split(|byte| *byte == 0) {
        let Some(end) = entry.iter().position(|byte| *byte == b'=') else { continue };
        let (name, value) =
            (OsStr::from_bytes(&entry[..end]), OsStr::from_bytes(&entry[end + 1..]));
        if !name.is_empty() {
            // SAFETY: no other thread exists yet.
            unsafe { env::set_var(name, value) };
        }
    }
    Ok(())
}

/// All variables, for the settings among them.
pub(super) fn settings() -> impl Iterator<Item = (String, String)> {
    env::vars()
}

/// All variables, from which a child gets an allowed part.
pub fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    env::vars_os()
}

/// Folders in which programs are searched.
pub fn search_path() -> Vec<PathBuf> {
    env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default()
}

/// Folder for temporary files, without links in its path.
pub fn temp_dir() -> PathBuf {
    let folder = env::temp_dir();
    folder.canonicalize().unwrap_or(folder)
}

/// Path of model-runner, if the environment sets it.
pub fn model_runner() -> Option<PathBuf> {
    env::var_os(RUNNER).map(PathBuf::from)
}

/// CUDA_VISIBLE_DEVICES of the service, which a scheduler sets.
pub fn visible_devices() -> Option<String> {
    env::var("CUDA_VISIBLE_DEVICES").ok()
}

/// The running executable, also after its file was replaced.
pub const SELF: &str = "/proc/self/exe";

/// Path of the running executable.
pub fn executable() -> std::io::Result<PathBuf> {
    env::current_exe()
}

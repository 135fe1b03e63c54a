//! The service's environment variables; no other module reads them.

use std::{env, ffi::OsString, path::PathBuf};

/// Path of model-runner when tools.model_runner is empty.
const RUNNER: &str = "LLMPROF_MODEL_RUNNER";

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

/// Folder for temporary files.
pub fn temp_dir() -> PathBuf {
    env::temp_dir()
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

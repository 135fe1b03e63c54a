//! Files of a run's folder: prepared, written, read back and set aside.

use std::{ffi::OsStr, fs, io, path::Path};

use llmprof_core::{
    domain::{
        subject::{RunSpec, SubjectKind},
        yaml::to_yaml,
    },
    layout,
};

use super::RunningJob;
use crate::{
    artifact::finished_passes::{self, EarlierPasses},
    runtime::{self, work::SlicedWork},
};

/// Prepares the run's folder, which exists: a removed run's folder is not created again. From
/// earlier attempts, keeps the journal, the executor's files, imported captures, and finished
/// passes with complete files; returns these passes.
pub fn prepare(dir: &Path, spec: &RunSpec, work: &SlicedWork) -> io::Result<EarlierPasses> {
    // Imported captures cannot be collected again.
    let imported = layout::IMPORTED.iter().filter(|_| spec.kind() == SubjectKind::Import);
    let names: Vec<&str> = layout::KEPT.iter().chain(imported).copied().collect();
    let earlier = finished_passes::read(dir, work)?;
    let passes = earlier.complete.as_ref().map_or(&[][..], |it| &it.passes);
    finished_passes::remove_others(dir, passes, &names)?;
    fs::write(dir.join(layout::SPEC), serde_json::to_vec_pretty(spec)?)?;
    Ok(earlier)
}

/// Renames a file that failed its checks, `run.sqlite` to `run.rejected.sqlite`: it stays as
/// evidence, and no report reads it.
pub(super) fn reject(path: &Path) {
    let name = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let rejected = format!("{}.rejected.{}", name(path.file_stem()), name(path.extension()));
    match fs::rename(path, path.with_file_name(rejected)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot set aside a rejected file");
        }
        _ => {}
    }
}

/// Runs blocking `work`; an error becomes one line.
pub(super) async fn blocking<T: Send + 'static, E: std::error::Error>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, String> {
    let done = runtime::blocking(move || work().map_err(|error| llmprof_core::chain(&error))).await;
    done.unwrap_or_else(|error| Err(error.to_string()))
}

pub(super) fn json(value: &impl serde::Serialize) -> Result<String, String> {
    serde_json::to_string_pretty(value).map_err(|error| error.to_string())
}

pub(super) fn yaml(value: &impl serde::Serialize) -> Result<String, String> {
    to_yaml(value).map_err(|error| error.to_string())
}

impl RunningJob<'_> {
    /// The same as [`blocking`]; a failure of the host requeues the run.
    pub(super) async fn blocking<T: Send + 'static, E: std::error::Error + Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, String> {
        match runtime::blocking(work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => {
                self.note_exhaustion(&error);
                Err(llmprof_core::chain(&error))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// The same for work of unbounded size, which ends with the job.
    pub(super) async fn stoppable<T: Send + 'static>(
        &self,
        act: impl FnOnce(&SlicedWork) -> io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        runtime::stoppable(&SlicedWork::new(self.stop), act).await.map_err(|error| {
            self.note_exhaustion(&error);
            llmprof_core::chain(&error)
        })
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), String> {
        fs::write(self.dir.join(name), text).map_err(|error| {
            self.note_exhaustion(&error);
            format!("cannot write {name}: {error}")
        })
    }
}

//! Files of a run's folder: prepared, written, read back and set aside.

use std::{ffi::OsStr, fs, io, path::Path};

use llmprof_core::{
    domain::subject::{RunSpec, SubjectKind},
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
    yaml_serde::to_string(value).map_err(|error| error.to_string())
}

/// The same for values without texts of several lines, with floats such as `1e-6` as `1.0e-6`:
/// readers of YAML 1.1, such as PyYAML, take `1e-6` for a text.
pub(super) fn yaml_1_1(value: &impl serde::Serialize) -> Result<String, String> {
    let line = |line: &str| match line.split_once(": ").filter(|(_, value)| is_float(value)) {
        Some((key, value)) => {
            let (digits, exponent) = value.split_once('e').unwrap_or((value, "0"));
            let sign = if exponent.starts_with('-') { "" } else { "+" };
            format!("{key}: {digits}.0e{sign}{exponent}\n")
        }
        None => format!("{line}\n"),
    };
    Ok(yaml(value)?.lines().map(line).collect())
}

/// True for a float with an exponent and without a point.
fn is_float(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'e' | b'-'));
    plain && text.contains('e') && text.parse::<f64>().is_ok()
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_have_a_point_and_texts_are_unchanged() {
        let value =
            json!({ "a": 1e-6, "b": 1e300, "c": 2.5e-7, "d": 7, "e": "1e-6", "f": "x 1e-6" });
        let text = yaml_1_1(&value).unwrap();
        for line in ["a: 1.0e-6", "b: 1.0e+300", "c: 2.5e-7", "d: 7", "f: x 1e-6"] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        let read: serde_json::Value = yaml_serde::from_str(&text).unwrap();
        assert_eq!(read, value);
    }
}

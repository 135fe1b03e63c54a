//! Profiling presets: the bundled ones, overridden by those of a folder.

use std::path::Path;

use super::{ConfigError, entries, read};
use crate::domain::{
    mode::Mode,
    profiling::{self, Presets, Profiling},
};

/// Loads the bundled presets, each overridden by the settings of `MODE.toml` in `folder`.
pub fn profiling(folder: Option<&Path>) -> Result<Presets, ConfigError> {
    let invalid = |mode: &str| {
        let name = mode.to_owned();
        move |source| ConfigError::Profiling { name, source }
    };
    let mut presets = Presets::new();
    for (mode, _) in profiling::PRESETS {
        presets.insert(*mode, Profiling::bundled(*mode).map_err(invalid(mode.as_str()))?);
    }
    for path in folder.map(entries).transpose()?.unwrap_or_default() {
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let mode = path.file_stem().and_then(|stem| stem.to_str()?.parse::<Mode>().ok());
        let Some((mode, preset)) = mode.and_then(|mode| Some((mode, presets.get_mut(&mode)?)))
        else {
            return Err(ConfigError::UnknownPreset { path });
        };
        let origin = path.display().to_string();
        let change = toml::from_str(&read(&path)?)
            .map_err(|source| ConfigError::Syntax { origin, source })?;
        *preset = preset.with_changes(change).map_err(invalid(mode.as_str()))?;
    }
    Ok(presets)
}

//! Profiling presets: the bundled ones, and a folder's presets, which override them or have names
//! of their own.

use std::path::Path;

use llmprof_core::domain::{
    mode::Mode,
    profiling::{self, Preset, Presets, ProfilingError},
    settings::Settings,
};

use super::{ConfigError, entries, read};

/// Maximum length of a description, characters.
const MAX_DESCRIPTION: usize = 200;

/// Loads the bundled presets, and `NAME.toml` of each file in `folder`: the changes of the bundled
/// preset of that name, or a new preset, which changes the bundled one in its key `base`.
pub fn profiling(folder: Option<&Path>) -> Result<Presets, ConfigError> {
    let invalid = |mode: &Mode| {
        let name = mode.to_string();
        move |source| ConfigError::Profiling { name, source }
    };
    let mut presets = Presets::new();
    for (mode, _) in profiling::PRESETS {
        let preset = Preset::bundled(&mode).map_err(invalid(&mode))?;
        presets.insert(mode, preset);
    }
    let bundled = presets.clone();
    for path in folder.map(entries).transpose()?.unwrap_or_default() {
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let mode = path.file_stem().and_then(|stem| stem.to_str()?.parse::<Mode>().ok());
        let Some(mode) = mode else { return Err(ConfigError::PresetName { path }) };
        let origin = path.display().to_string();
        let change = toml::from_str(&read(&path)?)
            .map_err(|source| ConfigError::Syntax { origin, source })?;
        let preset = changed(&bundled, &mode, change).map_err(invalid(&mode))?;
        presets.insert(mode, preset);
    }
    Ok(presets)
}

/// The preset of one file.
fn changed(bundled: &Presets, mode: &Mode, mut change: Settings) -> Result<Preset, ProfilingError> {
    let mut text = |key: &str| match change.remove(key) {
        None => Ok(None),
        Some(serde_json::Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(ProfilingError::Wrong(format!("{key}: {other} is not a text"))),
    };
    let (base, description) = (text("base")?, text("description")?);
    let known = || bundled.keys().map(Mode::as_str).collect::<Vec<_>>().join(", ");
    let base = match (bundled.get(mode), base) {
        (Some(_), Some(_)) => {
            let message = format!("base: {mode} is a bundled preset, which the file changes");
            return Err(ProfilingError::Wrong(message));
        }
        (Some(preset), None) => preset,
        (None, name) => {
            let name = name.unwrap_or_else(|| Mode::default().to_string());
            let base = name.parse().ok().and_then(|base: Mode| bundled.get(&base));
            base.ok_or_else(|| {
                ProfilingError::Wrong(format!("base: unknown {name:?}; expected {}", known()))
            })?
        }
    };
    let is_new = !bundled.contains_key(mode);
    let fallback = || if is_new { String::new() } else { base.description.clone() };
    let description = description.unwrap_or_else(fallback);
    if description.chars().count() > MAX_DESCRIPTION || description.chars().any(char::is_control) {
        let message = format!(
            "description: expected one line of at most {MAX_DESCRIPTION} characters, found \
             {description:?}"
        );
        return Err(ProfilingError::Wrong(message));
    }
    Ok(Preset { description, profiling: base.profiling.with_changes(change)? })
}

//! Settings: embedded defaults, a file over them, the environment over both.
//!
//! `conf/default.toml` is the manual and the list of what exists: a key that it lacks is refused. No setting is read elsewhere.

mod models;
mod targets;

use std::path::{Path, PathBuf};

pub use models::{FoundModels, Models, RefusedModel, models, why_refused};
use serde::{Deserialize, Serialize};
pub use targets::{example_targets, targets};
use toml::{Table, Value};

use crate::{
    analyze::device::{Devices, DevicesError},
    profiling::{self, Presets, Profiling, ProfilingError},
    run::Mode,
};

const DEFAULTS: &str = include_str!("../conf/default.toml");
const DEVICES: &str = include_str!("../conf/devices.toml");
/// Environment variables that begin so are settings.
const PREFIX: &str = "LLMPROF__";

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{origin} is not valid TOML")]
    Syntax { origin: String, source: toml::de::Error },
    #[error("{origin}: unknown setting {key}{}", nearest.as_ref().map(|near| format!("; did you mean {near}?")).unwrap_or_default())]
    UnknownKey { origin: String, key: String, nearest: Option<String> },
    #[error("a setting has the wrong type")]
    Type { source: toml::de::Error },
    #[error("conf/devices.toml is not as it should be")]
    Devices { source: DevicesError },
    #[error("model {name}: {message}")]
    Model { name: String, message: String },
    #[error("profiling preset {name}")]
    Profiling { name: String, source: ProfilingError },
    #[error("{origin}: command {name}: {message}")]
    Target { origin: String, name: String, message: String },
    #[error("{} is none of deep.toml, light.toml and basic.toml", path.display())]
    NoPreset { path: PathBuf },
}

/// All settings, as [`DEFAULTS`] explains them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    pub server: Server,
    pub worker: Worker,
    pub tools: Tools,
    pub limits: Limits,
    pub executor: Executor,
    pub access: Access,
    pub retention: Retention,
    pub webhooks: Webhooks,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Server {
    pub listen: String,
    pub data: PathBuf,
    pub inputs: PathBuf,
    pub models: PathBuf,
    pub profiling: PathBuf,
    pub targets: PathBuf,
    pub header_s: u32,
    pub behind_proxy: bool,
    pub hosts: Vec<String>,
    pub tls: Tls,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// When a token must be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Asked {
    /// Always, but for a service on a loopback address for which no token was ever made.
    Auto,
    Required,
    Off,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Access {
    pub tokens: Asked,
    pub origins: Vec<String>,
    pub requests_per_s_per_address: u32,
    pub requests_per_s_per_token: u32,
    pub concurrent_requests: u32,
    pub queued_runs_per_owner: u64,
    pub running_runs_per_owner: u32,
    pub disk_bytes_per_owner: u64,
}

impl Default for Access {
    fn default() -> Self {
        let defaults: Config = toml::from_str(DEFAULTS).expect("a test reads the defaults");
        defaults.access
    }
}

/// What is kept of old runs; budgets of 0: any amount.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Retention {
    pub as_they_are: u32,
    pub pack: bool,
    pub most_runs: u64,
    pub most_days: u32,
    pub most_bytes: u64,
    pub every_s: u32,
}

/// Who is told that a run has ended.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Webhooks {
    pub urls: Vec<String>,
    pub secret_file: PathBuf,
    pub private_hosts: Vec<String>,
    pub timeout_s: u32,
    pub retry_s: u32,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Worker {
    pub devices: Vec<String>,
    pub paused: bool,
    pub lease_s: u32,
    pub grace_s: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tools {
    pub model_runner: PathBuf,
    pub nsys: PathBuf,
    pub ncu: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub log_bytes: u64,
    pub free_bytes: u64,
    pub run_bytes: u64,
    pub run_s: u32,
    /// Absent in orders that were written without.
    #[serde(default)]
    pub capture_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Executor {
    pub kind: ExecutorKind,
    pub slurm: Slurm,
}

/// Who carries runs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorKind {
    Local,
    Slurm,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Slurm {
    pub program: PathBuf,
    pub jobs: u32,
    pub poll_s: u32,
    pub lost_s: u32,
    pub gpus: u32,
    pub types: Vec<String>,
    pub partition: String,
    pub account: String,
    pub qos: String,
    pub constraint: String,
    pub exclusive: bool,
    pub extra: Vec<String>,
    pub analyze_apart: bool,
    pub analyze_partition: String,
    pub analyze_extra: Vec<String>,
}

impl Config {
    /// Reads the settings: the file at `path` over the defaults, `environment` over both.
    pub fn load(path: Option<&Path>, environment: impl Iterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        let mut settings = table("the defaults", DEFAULTS)?;
        if let Some(path) = path {
            let text = read(path)?;
            let origin = path.display().to_string();
            merge(&mut settings, table(&origin, &text)?, &origin, "")?;
        }
        for (variable, value) in environment.filter(|(name, _)| name.starts_with(PREFIX)) {
            let keys: Vec<String> = variable[PREFIX.len()..].split("__").map(str::to_lowercase).collect();
            let value =
                keys.iter().rev().fold(scalar(&value), |value, key| Value::Table(Table::from_iter([(key.clone(), value)])));
            if let Value::Table(over) = value {
                merge(&mut settings, over, &variable, "")?;
            }
        }
        settings.try_into().map_err(|source| ConfigError::Type { source })
    }
}

/// An environment variable's value: TOML where it is, else a text.
fn scalar(text: &str) -> Value {
    toml::from_str::<Table>(&format!("v = {text}"))
        .ok()
        .and_then(|mut table| table.remove("v"))
        .unwrap_or_else(|| Value::String(text.to_owned()))
}

fn table(origin: &str, text: &str) -> Result<Table, ConfigError> {
    toml::from_str(text).map_err(|source| ConfigError::Syntax { origin: origin.to_owned(), source })
}

/// Puts `over` over `base`, key by key; a key that `base` lacks is refused with the nearest one that it has.
fn merge(base: &mut Table, over: Table, origin: &str, path: &str) -> Result<(), ConfigError> {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(base)), Value::Table(over)) => merge(base, over, origin, &format!("{path}{key}."))?,
            (Some(known), value) => *known = value,
            (None, _) => {
                let near = nearest(&key, base.keys().map(String::as_str)).map(|near| format!("{path}{near}"));
                return Err(ConfigError::UnknownKey { origin: origin.to_owned(), key: format!("{path}{key}"), nearest: near });
            }
        }
    }
    Ok(())
}

/// The known word most like `word`, if any is like it at all.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|known| (strsim::jaro_winkler(word, known), known))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

/// Reads the bundled presets, and over each the settings that `MODE.toml` in `folder` changes.
pub fn profiling(folder: Option<&Path>) -> Result<Presets, ConfigError> {
    let refused = |mode: &str| {
        let name = mode.to_owned();
        move |source| ConfigError::Profiling { name, source }
    };
    let mut presets = Presets::new();
    for (mode, _) in profiling::PRESETS {
        presets.insert(*mode, Profiling::bundled(*mode).map_err(refused(mode.as_str()))?);
    }
    for path in folder.map(entries).transpose()?.unwrap_or_default() {
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let mode = path.file_stem().and_then(|stem| stem.to_str()?.parse::<Mode>().ok());
        let Some((mode, preset)) = mode.and_then(|mode| Some((mode, presets.get_mut(&mode)?))) else {
            return Err(ConfigError::NoPreset { path });
        };
        let origin = path.display().to_string();
        let change = toml::from_str(&read(&path)?).map_err(|source| ConfigError::Syntax { origin, source })?;
        *preset = preset.changed(change).map_err(refused(mode.as_str()))?;
    }
    Ok(presets)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let failed = |source| ConfigError::Read { path: folder.to_owned(), source };
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    paths.sort();
    Ok(paths)
}

/// Reads the peaks of known devices.
pub fn devices() -> Result<Devices, ConfigError> {
    Devices::from_toml(DEVICES).map_err(|source| ConfigError::Devices { source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::load(None, variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn the_environment_goes_over_the_defaults() {
        let config =
            load(&[("LLMPROF__WORKER__LEASE_S", "5"), ("LLMPROF__SERVER__DATA", "/srv/llmprof"), ("HOME", "/root")]).unwrap();
        assert_eq!((config.worker.lease_s, config.server.data), (5, PathBuf::from("/srv/llmprof")));
        assert_eq!(config.server.listen, "127.0.0.1:8080");
    }

    #[test]
    fn a_list_in_the_environment_is_toml() {
        let config = load(&[("LLMPROF__WORKER__DEVICES", r#"["cpu"]"#)]).unwrap();
        assert_eq!(config.worker.devices, ["cpu"]);
    }

    #[test]
    fn an_unknown_setting_is_refused_with_the_nearest_one() {
        let error = load(&[("LLMPROF__WORKER__LEASES", "5")]).unwrap_err();
        assert_eq!(error.to_string(), "LLMPROF__WORKER__LEASES: unknown setting worker.leases; did you mean worker.lease_s?");
    }

    #[test]
    fn a_file_goes_over_the_defaults_and_a_wrong_type_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("llmprof.toml");
        std::fs::write(&path, "[worker]\ngrace_s = 3\n").unwrap();
        assert_eq!(Config::load(Some(&path), std::iter::empty()).unwrap().worker.grace_s, 3);
        std::fs::write(&path, "[worker]\ngrace_s = \"soon\"\n").unwrap();
        assert!(matches!(Config::load(Some(&path), std::iter::empty()), Err(ConfigError::Type { .. })));
    }

    #[test]
    fn bundled_models_are_valid_and_a_folder_goes_over_them() {
        let bundled = models(None).unwrap().models;
        assert_eq!(bundled.keys().collect::<Vec<_>>(), ["deepseek-ocr", "deepseek-ocr-tiny", "llama-tiny", "qwen3-0.6b"]);
        let dir = tempfile::tempdir().unwrap();
        let text = include_str!("../conf/models/deepseek-ocr-tiny.toml").replace("vocab = 8192", "vocab = 9000");
        std::fs::write(dir.path().join("mine.toml"), text).unwrap();
        assert_eq!(models(Some(dir.path())).unwrap().models["mine"].decoder.vocab, 9000);
    }

    #[test]
    fn a_folder_goes_over_the_presets_key_by_key_and_what_it_names_wrongly_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep.toml");
        std::fs::write(&path, "[ncu]\ntop_n = 9\n").unwrap();
        let (changed, bundled) = (profiling(Some(dir.path())).unwrap(), profiling(None).unwrap());
        assert_eq!((changed[&Mode::Deep].ncu.top_n, bundled[&Mode::Deep].ncu.top_n), (9, 5));
        assert_eq!((&changed[&Mode::Deep].nsys, &changed[&Mode::Light]), (&bundled[&Mode::Deep].nsys, &bundled[&Mode::Light]));
        std::fs::write(&path, "[ncu]\ntop = 9\n").unwrap();
        let error = profiling(Some(dir.path())).unwrap_err();
        assert_eq!(crate::chain(&error), "profiling preset deep: unknown setting ncu.top; did you mean ncu.top_n?");
        std::fs::rename(&path, dir.path().join("deeper.toml")).unwrap();
        assert!(matches!(profiling(Some(dir.path())), Err(ConfigError::NoPreset { .. })));
    }

    #[test]
    fn a_published_folder_is_a_model_with_the_weights_beside_its_config() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("Llama-mini");
        std::fs::create_dir(&folder).unwrap();
        let config = r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 512,
            "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}"#;
        std::fs::write(folder.join("config.json"), config).unwrap();
        assert_eq!(models(Some(dir.path())).unwrap().models["Llama-mini"].weights, None);
        std::fs::write(folder.join("model.safetensors"), "").unwrap();
        let model = &models(Some(dir.path())).unwrap().models["Llama-mini"];
        assert_eq!((model.weights.as_deref(), model.decoder.kv_heads), (Some(folder.as_path()), 2));
    }
}

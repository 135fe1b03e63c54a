//! Settings: embedded defaults, overridden by a file and by environment variables.
//!
//! `conf/default.toml` lists and explains every setting; unknown keys are rejected. No other module
//! reads settings files or the service's environment.

mod devices;
pub mod environment;
mod models;
mod presets;
mod targets;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

pub use devices::{devices, devices_with};
use llmprof_core::domain::{
    bounded_read::read_bounded_text,
    device_peaks::DevicesError,
    profiling::ProfilingError,
    settings::{self, Settings, UnknownSetting},
    subject::SubjectKind,
    webhook_event::WebhookEvent,
};
pub use models::{FoundModels, Models, RefusedModel, models, rejection};
pub use presets::profiling;
use serde::{Deserialize, Serialize};
use serde_json::Value;
pub use targets::{example_targets, targets};

const DEFAULTS: &str = include_str!("../../../../conf/default.toml");
/// Maximum size of a file; a device such as `/dev/zero` has no end.
const MAX_FILE: u64 = 16 << 20;
/// Expected value of `limits.run_bytes`.
const RUN_BYTES: &str = "1048576 bytes or more, for the logs and reports of a run";
/// Prefix of environment variables that are settings.
const PREFIX: &str = "LLMPROF__";
/// Old keys of settings, with the new ones.
const RENAMED: &[(&str, &str)] = &[
    ("retention.as_they_are", "retention.keep_newest"),
    ("retention.most_runs", "retention.max_runs"),
    ("retention.most_days", "retention.max_days"),
    ("retention.most_bytes", "retention.max_bytes"),
    ("retention.every_s", "retention.interval_s"),
    ("executor.slurm.lost_s", "executor.slurm.lost_after_s"),
    ("executor.slurm.analyze_apart", "executor.slurm.separate_analysis_job"),
];

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{origin} is not valid TOML")]
    Syntax { origin: String, source: toml::de::Error },
    #[error("{origin}: {setting}")]
    UnknownKey { origin: String, setting: UnknownSetting },
    #[error("invalid type of a setting")]
    Type { source: serde_path_to_error::Error<serde_json::Error> },
    #[error("invalid {key} = {value}; expected {expected}")]
    Value { key: &'static str, value: u64, expected: &'static str },
    #[error("{path} is not a table of devices")]
    Devices { path: PathBuf, source: DevicesError },
    #[error("model {name}: {message}")]
    Model { name: String, message: String },
    #[error("profiling preset {name}")]
    Profiling { name: String, source: ProfilingError },
    #[error("{origin}: command {name}: {message}")]
    Target { origin: String, name: String, message: String },
    #[error(
        "invalid name of the preset {}; expected NAME.toml with at most 32 lower-case letters, \
         digits, _ and -, a letter first",
        path.display()
    )]
    PresetName { path: PathBuf },
}

/// All settings; [`DEFAULTS`] explains each.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    pub server: ServerSettings,
    pub worker: WorkerSettings,
    pub tools: ToolSettings,
    pub limits: RunLimits,
    pub executor: ExecutorSettings,
    pub access: AccessSettings,
    pub inputs: InputSettings,
    pub retention: RetentionSettings,
    pub sessions: SessionSettings,
    pub sweeps: SweepSettings,
    pub webhooks: WebhookSettings,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ServerSettings {
    pub listen: String,
    pub data: PathBuf,
    pub inputs: PathBuf,
    pub models: PathBuf,
    pub profiling: PathBuf,
    pub targets: PathBuf,
    pub header_s: u32,
    pub write_s: u32,
    pub connections: u32,
    pub connections_per_address: u32,
    pub behind_proxy: bool,
    pub hosts: Vec<String>,
    pub tls: TlsSettings,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TlsSettings {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Limits on stored inputs; 0: no limit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct InputSettings {
    pub upload_bytes: u64,
    pub bytes_per_owner: u64,
    pub total_bytes: u64,
    pub unused_days: u32,
}

/// Requests that need a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenPolicy {
    /// All, except to a service on a loopback address without any token.
    Auto,
    Required,
    Off,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct AccessSettings {
    pub tokens: TokenPolicy,
    pub session_s: u32,
    pub origins: Vec<String>,
    pub requests_per_s_per_address: u32,
    pub requests_per_s_per_token: u32,
    pub concurrent_requests: u32,
    pub queued_runs_per_owner: u64,
    pub running_runs_per_owner: u32,
    pub disk_bytes_per_owner: u64,
    pub uploads: u32,
    pub uploads_per_owner: u32,
    pub upload_bytes_per_s: u32,
    pub upload_window_s: u32,
    pub audit_bytes: u64,
    pub audit_files: u32,
}

impl Default for AccessSettings {
    fn default() -> Self {
        Config::default().access
    }
}

/// Retention of ended runs; budgets of 0 are unlimited.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RetentionSettings {
    pub keep_newest: u32,
    pub pack: bool,
    pub max_runs: u64,
    pub max_days: u32,
    pub max_bytes: u64,
    pub interval_s: u32,
    pub scrub_days: u32,
    pub scrub_bytes_per_s: u64,
}

/// Servers that stay for several runs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct SessionSettings {
    pub lifetime_s: u32,
    pub max_lifetime_s: u32,
    pub per_owner: u32,
}

/// Grids of submissions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct SweepSettings {
    pub max_points: u32,
    pub queued: u32,
    pub max_queued: u32,
    pub max_minutes: u32,
    pub per_owner: u32,
}

/// Notification of ended runs and regressions.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct WebhookSettings {
    pub urls: Vec<String>,
    pub slack_urls: Vec<String>,
    pub events: Vec<WebhookEvent>,
    pub secret_file: PathBuf,
    pub private_hosts: Vec<String>,
    pub timeout_s: u32,
    pub retry_s: u32,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct WorkerSettings {
    pub devices: Vec<String>,
    pub paused: bool,
    pub lease_s: u32,
    pub grace_s: u32,
    pub stop_s: u32,
    pub background_wait_s: u32,
    pub exhausted_wait_s: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSettings {
    pub model_runner: PathBuf,
    pub nsys: PathBuf,
    pub ncu: PathBuf,
    /// Absent in job specs of old versions: the built-in table alone.
    #[serde(default)]
    pub devices: PathBuf,
    /// Absent in job specs of old versions, whose operator could not forbid it: false.
    #[serde(default)]
    pub system_wide_sampling: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunLimits {
    pub log_bytes: u64,
    pub free_bytes: u64,
    pub run_bytes: u64,
    pub run_s: u32,
    /// Absent in job specs of old versions, as the next three.
    #[serde(default)]
    pub capture_bytes: u64,
    #[serde(default)]
    pub host_busy_pct: u32,
    #[serde(default)]
    pub capture_memory_bytes: u64,
    #[serde(default)]
    pub capture_cpu_s: u32,
}

impl RunLimits {
    /// Maximum bytes of a run's folder. An import's capture and its export come on top: both were
    /// within their own limits.
    pub fn folder_bytes(&self, kind: SubjectKind) -> u64 {
        let captures = if kind == SubjectKind::Import { 2 } else { 0 };
        self.run_bytes.saturating_add(self.capture_bytes.saturating_mul(captures))
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ExecutorSettings {
    pub kind: ExecutorKind,
    pub slurm: SlurmSettings,
}

/// Executor of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorKind {
    Local,
    Slurm,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct SlurmSettings {
    pub program: PathBuf,
    pub jobs: u32,
    pub poll_s: u32,
    pub lost_after_s: u32,
    pub gpus: u32,
    pub types: Vec<String>,
    pub partition: String,
    pub account: String,
    pub qos: String,
    pub constraint: String,
    pub exclusive: bool,
    pub extra: Vec<String>,
    pub separate_analysis_job: bool,
    pub analyze_partition: String,
    pub analyze_extra: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        toml::from_str(DEFAULTS).expect("a test parses the defaults")
    }
}

impl Config {
    /// Loads the settings: the defaults, overridden by the file at `path` and the environment.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        Self::load_with(path, environment::settings())
    }

    /// Loads the settings with `environment` instead of the service's environment.
    pub fn load_with(
        path: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut settings = table("the defaults", DEFAULTS)?;
        if let Some(path) = path {
            let text = read(path)?;
            let origin = path.display().to_string();
            merge(&mut settings, table(&origin, &text)?, &origin)?;
        }
        for (variable, value) in environment.filter(|(name, _)| name.starts_with(PREFIX)) {
            let keys: Vec<String> =
                variable[PREFIX.len()..].split("__").map(str::to_lowercase).collect();
            let value = keys.iter().rev().fold(scalar(&value), |value, key| {
                Value::Object(Settings::from_iter([(key.clone(), value)]))
            });
            if let Value::Object(over) = value {
                merge(&mut settings, over, &variable)?;
            }
        }
        let config: Self = serde_path_to_error::deserialize(Value::Object(settings))
            .map_err(|source| ConfigError::Type { source })?;
        config.check()?;
        Ok(config)
    }

    /// Rejects values outside of their range.
    fn check(&self) -> Result<(), ConfigError> {
        let Self { server, access, .. } = self;
        for (key, value, min, expected) in [
            ("server.write_s", server.write_s.into(), 1, "1 second or more"),
            ("server.connections", server.connections.into(), 16, "16 or more"),
            ("sessions.lifetime_s", self.sessions.lifetime_s.into(), 10, "10 seconds or more"),
            ("sessions.max_lifetime_s", self.sessions.max_lifetime_s.into(), 10, "10 or more"),
            ("sweeps.max_points", self.sweeps.max_points.into(), 1, "1 or more"),
            ("sweeps.queued", self.sweeps.queued.into(), 1, "1 or more"),
            ("sweeps.max_queued", self.sweeps.max_queued.into(), 1, "1 or more"),
            ("sweeps.max_minutes", self.sweeps.max_minutes.into(), 1, "1 minute or more"),
            ("access.session_s", access.session_s.into(), 60, "60 seconds or more"),
            ("access.uploads", access.uploads.into(), 1, "1 or more"),
            ("access.uploads_per_owner", access.uploads_per_owner.into(), 1, "1 or more"),
            ("access.upload_window_s", access.upload_window_s.into(), 1, "1 second or more"),
            ("inputs.upload_bytes", self.inputs.upload_bytes, 65_536, "65536 bytes or more"),
            ("limits.run_bytes", self.limits.run_bytes, 1 << 20, RUN_BYTES),
            ("limits.run_s", self.limits.run_s.into(), 1, "1 second or more"),
            ("access.audit_bytes", access.audit_bytes, 65_536, "65536 bytes or more"),
            ("access.audit_files", access.audit_files.into(), 1, "1 or more"),
        ] {
            if value < min {
                return Err(ConfigError::Value { key, value, expected });
            }
        }
        Ok(())
    }
}

/// Value of an environment variable: TOML if it parses, else a text.
fn scalar(text: &str) -> Value {
    toml::from_str::<Settings>(&format!("v = {text}"))
        .ok()
        .and_then(|mut table| table.remove("v"))
        .unwrap_or_else(|| Value::String(text.to_owned()))
}

fn table(origin: &str, text: &str) -> Result<Settings, ConfigError> {
    toml::from_str(text).map_err(|source| ConfigError::Syntax { origin: origin.to_owned(), source })
}

/// Merges `over`, which comes from `origin`, into `base`. The error for a renamed setting names its
/// new key.
fn merge(base: &mut Settings, over: Settings, origin: &str) -> Result<(), ConfigError> {
    settings::merge(base, over).map_err(|mut setting| {
        if let Some((_, key)) = RENAMED.iter().find(|(old, _)| *old == setting.key) {
            setting.nearest = Some((*key).to_owned());
        }
        ConfigError::UnknownKey { origin: origin.to_owned(), setting }
    })
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let read = File::open(path).and_then(|file| read_bounded_text(file, MAX_FILE));
    read.map_err(|source| ConfigError::Read { path: path.into(), source })
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let failed = |source| ConfigError::Read { path: folder.to_owned(), source };
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests;

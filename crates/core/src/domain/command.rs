//! Commands that the operator of a host allows by name: program, arguments, parameters and
//! profiling settings.
//!
//! Plain values; starts nothing. A parameter fills a part of one argument and never reaches a
//! shell.

mod call;
mod gate;
mod load;
mod param;
mod plan;
mod template;

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

pub use self::{
    call::CommandCall,
    gate::GateSettings,
    load::{LOAD_PROGRAM, LoadOption, LoadTemplate, MinSteps, WindowSettings},
    param::{MAX_TEXT, Param, ParamValue, is_param},
    plan::{CallError, ClientPlan, CommandPlan},
    template::{ArgumentPiece, ArgumentTemplate},
};
use self::{
    load::{LOCAL_URL, is_local},
    param::is_name,
    template::{OUT, PORT, Template, TemplatePart},
};
use crate::domain::{named_values::named_values, stated_model::ModelStatement};

/// Maximum number of GPUs of a command.
pub const MAX_GPUS: u32 = 16;
/// Maximum number of parameters of a command.
pub const MAX_PARAMS: usize = 64;
/// Maximum delay, duration and wait for readiness, seconds.
const MAX_S: u32 = 1800;

/// Commands by name.
pub type Commands = BTreeMap<String, CommandTarget>;

named_values! {
    /// Kind of a command: one that ends by itself, or a server.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    CommandKind {
        /// Ends by itself: each repeat is a process of its own and its wall time is reported.
        Program = "program",
        /// Serves until it is stopped; its client is timed.
        Server = "server",
    }
}

/// An allowed command as the operator wrote it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandTarget {
    /// Description for those who submit it.
    pub description: String,
    #[serde(default = "program")]
    pub kind: CommandKind,
    /// Absolute path, or a name to find next to `llmprof` and on PATH.
    pub program: PathBuf,
    /// Arguments with placeholders: `{param}`, `{out}` for a folder for its files, `{port}` for a
    /// free port of a server; `{{` is a brace.
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub params: BTreeMap<String, Param>,
    /// Variables of the service that are passed on, in addition to the variables of every child.
    #[serde(default)]
    pub pass_env: Vec<String>,
    /// Variables set for the command.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working folder; a new one in the run's folder when absent.
    #[serde(default)]
    pub folder: Option<PathBuf>,
    /// Stages by range: `prefill=ctx@vllm`.
    #[serde(default)]
    pub stages: Vec<String>,
    #[serde(default, alias = "within")]
    pub include_ranges: Vec<String>,
    #[serde(default, alias = "without")]
    pub exclude_ranges: Vec<String>,
    /// Default delay between its start and the recording of nsys, seconds.
    #[serde(default)]
    pub delay_s: u32,
    /// Default duration of the recording of nsys, seconds; 0: to the end.
    #[serde(default)]
    pub duration_s: u32,
    /// Default number of GPUs; 0: none needed.
    #[serde(default = "one")]
    pub gpus: u32,
    /// Maximum number of GPUs of a request; `gpus` when absent.
    #[serde(default)]
    pub gpus_max: Option<u32>,
    /// Readiness check of a server.
    #[serde(default)]
    pub ready: Option<ReadyCheck>,
    /// Program to run against a ready server.
    #[serde(default)]
    pub client: Option<Client>,
    /// Load of a ready server by llmprof's own client, in place of a program.
    #[serde(default)]
    pub load: Option<LoadTemplate>,
    /// Recording within the load.
    #[serde(default)]
    pub window: Option<WindowSettings>,
    /// Profiler of the server itself, which records the window in place of nsys.
    #[serde(default)]
    pub gate: Option<GateSettings>,
    /// The model that it runs; texts may have placeholders.
    #[serde(default)]
    pub computes: Option<ModelStatement>,
    /// Run it once more under the profiler of PyTorch, for its operators and their shapes.
    #[serde(default)]
    pub torch_profiler: bool,
}

/// Readiness check of a server: a response with a 2xx status, or a line of output with a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadyCheck {
    /// `http://127.0.0.1:{port}/health`; only URLs of this host.
    #[serde(default)]
    pub url: Option<String>,
    #[serde(default)]
    pub log: Option<String>,
    /// Seconds until the server must be ready.
    #[serde(default = "ready_within_s")]
    pub within_s: u32,
}

/// A program to run against a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    pub program: PathBuf,
    #[serde(default)]
    pub args: Vec<String>,
}

/// True if `name` is a valid command name.
pub fn is_command(name: &str) -> bool {
    is_name(name, 64, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(), b"._-")
}

fn too_many_params(key: &str, count: usize) -> String {
    format!("{key}: {count} parameters, at most {MAX_PARAMS} are allowed")
}

fn program() -> CommandKind {
    CommandKind::Program
}

fn one() -> u32 {
    1
}

fn ready_within_s() -> u32 {
    120
}

impl CommandTarget {
    /// Validates the command; an error is one line that names the key.
    pub fn check(&self, name: &str) -> Result<(), String> {
        if !is_command(name) {
            return Err(
                "invalid name; expected at most 64 lower-case letters, digits, '.', '_' and '-'"
                    .into(),
            );
        }
        check_program(&self.program)?;
        if self.params.len() > MAX_PARAMS {
            return Err(too_many_params("params", self.params.len()));
        }
        for (name, param) in &self.params {
            if !is_param(name) || [OUT, PORT].contains(&name.as_str()) {
                return Err(format!(
                    "params.{name}: invalid name; expected at most 32 lower-case letters, digits \
                     and '_', other than {OUT} and {PORT}"
                ));
            }
            param.check().map_err(|why| format!("params.{name}: {why}"))?;
        }
        self.check_templates()?;
        self.check_environment()?;
        if self.folder.as_ref().is_some_and(|folder| !folder.is_absolute()) {
            return Err("folder: not an absolute path".into());
        }
        for (key, value) in [("delay_s", self.delay_s), ("duration_s", self.duration_s)] {
            if value > MAX_S {
                return Err(format!("{key}: {value} is more than {MAX_S}"));
            }
        }
        let max = self.max_gpus();
        if max > MAX_GPUS || self.gpus > max {
            return Err(format!(
                "gpus: {} to {max} is not a range of at most {MAX_GPUS} GPUs",
                self.gpus
            ));
        }
        self.check_kind()
    }

    /// Maximum number of GPUs of a request.
    pub fn max_gpus(&self) -> u32 {
        self.gpus_max.unwrap_or(self.gpus)
    }

    fn check_templates(&self) -> Result<(), String> {
        let client =
            self.client.iter().flat_map(|client| &client.args).map(|text| ("client.args", text));
        let load: Vec<String> = self.load.iter().flat_map(LoadTemplate::args).collect();
        let client = client.chain(load.iter().map(|text| ("load", text)));
        let url = self
            .ready
            .iter()
            .filter_map(|ready| ready.url.as_ref())
            .map(|text| ("ready.url", text));
        let mut used = Vec::new();
        self.check_computes()?;
        for (key, text) in self.args.iter().map(|text| ("args", text)).chain(client).chain(url) {
            let template =
                Template::parse(text).map_err(|why| format!("{key}: {text:?}: {why}"))?;
            for part in &template.0 {
                let TemplatePart::Placeholder(name) = part else { continue };
                match (self.params.get(name), name.as_str()) {
                    (Some(Param::Flag { .. }), _) if template.0.len() > 1 => {
                        return Err(format!("{key}: {text:?}: a flag must be a whole argument"));
                    }
                    (Some(_), _) if key == "ready.url" => {
                        return Err(format!("{key}: only {{{PORT}}} is allowed as a placeholder"));
                    }
                    (Some(_), _) => used.push(name.clone()),
                    (None, OUT) if key != "ready.url" => {}
                    (None, PORT) if self.kind == CommandKind::Server => {}
                    (None, PORT) => return Err(format!("{key}: {{{PORT}}} is only for a server")),
                    (None, _) => {
                        return Err(format!("{key}: {text:?}: unknown parameter {name}"));
                    }
                }
            }
        }
        match self.params.keys().find(|name| !used.contains(name)) {
            Some(name) => Err(format!("params.{name}: no argument contains {{{name}}}")),
            None => Ok(()),
        }
    }

    /// Checks the placeholders in the statement of its model.
    fn check_computes(&self) -> Result<(), String> {
        for (field, text) in self.computes.iter().flat_map(ModelStatement::texts) {
            let template = Template::parse(text)
                .map_err(|why| format!("computes.{field}: {text:?}: {why}"))?;
            for part in &template.0 {
                let TemplatePart::Placeholder(name) = part else { continue };
                match self.params.get(name) {
                    None => {
                        return Err(format!(
                            "computes.{field}: {text:?}: unknown parameter {name}"
                        ));
                    }
                    Some(Param::Flag { .. }) => {
                        return Err(format!("computes.{field}: {text:?}: {name} is a flag"));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    fn check_environment(&self) -> Result<(), String> {
        for name in self.pass_env.iter().chain(self.env.keys()) {
            if !is_name(name, 128, |byte| byte.is_ascii_alphabetic() || byte == b'_', b"0123456789")
            {
                return Err(format!("environment: {name:?} is not a valid variable name"));
            }
            if name.starts_with("LLMPROF") || name == "CUDA_VISIBLE_DEVICES" || name == "TMPDIR" {
                return Err(format!("environment: {name} is reserved for the service"));
            }
        }
        match self.env.iter().find(|(_, value)| value.contains('\0')) {
            Some((name, _)) => Err(format!("env.{name}: contains a NUL byte")),
            None => Ok(()),
        }
    }

    fn check_kind(&self) -> Result<(), String> {
        let Some(ready) = &self.ready else {
            return match self.kind {
                CommandKind::Server => {
                    Err("ready: missing; a server needs a readiness check by url or log".into())
                }
                CommandKind::Program if self.client.is_some() => {
                    Err("client: only for a server".into())
                }
                CommandKind::Program if self.load.is_some() => {
                    Err("load: only for a server".into())
                }
                CommandKind::Program => Ok(()),
            };
        };
        if self.kind == CommandKind::Program {
            return Err("ready: only for a server".into());
        }
        if !(1..=MAX_S).contains(&ready.within_s) {
            return Err(format!("ready.within_s: {} is not between 1 and {MAX_S}", ready.within_s));
        }
        match (&ready.url, &ready.log) {
            (Some(url), None) if is_local(url) => {}
            (Some(_), None) => {
                return Err(format!("ready.url: {LOCAL_URL}"));
            }
            (None, Some(log)) if !log.trim().is_empty() => {}
            _ => return Err("ready: needs either url or log".into()),
        }
        if (self.window.is_some() || self.gate.is_some()) && self.load.is_none() {
            return Err("window: a window and a gate need a load".into());
        }
        self.window.as_ref().map_or(Ok(()), |window| window.check())?;
        self.gate.as_ref().map_or(Ok(()), GateSettings::check)?;
        if let Some(load) = &self.load {
            if self.client.is_some() {
                return Err("load: a server has either a client or a load".into());
            }
            if !is_local(load.url()) {
                return Err(format!("load.url: {LOCAL_URL}"));
            }
            return Ok(());
        }
        match &self.client {
            Some(client) => check_program(&client.program).map_err(|why| format!("client.{why}")),
            None if self.duration_s == 0 => {
                Err("duration_s: must be above 0 for a server without a client".into())
            }
            None => Ok(()),
        }
    }
}

fn check_program(program: &std::path::Path) -> Result<(), String> {
    let bare = program.components().count() == 1 && !program.as_os_str().is_empty();
    if program.is_absolute() || bare {
        Ok(())
    } else {
        Err("program: expected an absolute path or a bare name".into())
    }
}

//! Commands that the operator of a host allows by name: what each starts, what it may be told, and how it is watched.
//!
//! Plain values and their checks; nothing is started here. A parameter is a part of one argument and never a line for a shell.

mod param;
mod plan;
mod template;

use std::{collections::BTreeMap, fmt, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::{
    param::{MOST_TEXT, Param, ParamValue},
    plan::{CallError, ClientPlan, CommandPlan},
    template::{Piece, Pieces},
};
use self::{
    param::{is_name, is_param},
    template::{OUT, PORT, Part, Template},
};
use super::{UnknownWord, whole::maybe_whole, words};

/// Most GPUs that a command may ask for.
pub const MOST_GPUS: u32 = 16;
/// Most parameters of a command.
pub const MOST_PARAMS: usize = 64;
/// Longest delay, duration and wait for readiness, seconds.
const LONGEST_S: u32 = 1800;

/// Commands by name.
pub type Commands = BTreeMap<String, CommandTarget>;

words! {
    /// Whether a command ends by itself.
    CommandKind {
        /// It ends by itself: each repeat is a process of its own, and its wall time is what is told.
        Program = "program",
        /// It serves until it is ended; what is timed is its client.
        Server = "server",
    }
}

/// A command that is allowed, as the operator wrote it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandTarget {
    /// What it is, for whoever submits it.
    pub description: String,
    #[serde(default = "program")]
    pub kind: CommandKind,
    /// Absolute path, or a name that is looked for beside `llmprof` and on the search path.
    pub program: PathBuf,
    /// Arguments with `{param}` in them; `{out}` is a folder for its files, `{port}` a free port of a server, `{{` a brace.
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub params: BTreeMap<String, Param>,
    /// Variables of the service that it sees besides those that every child sees.
    #[serde(default)]
    pub pass_env: Vec<String>,
    /// Variables that are set for it.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working folder; one of the run's own when absent.
    #[serde(default)]
    pub folder: Option<PathBuf>,
    /// Which ranges are stages: `prefill=ctx@vllm`.
    #[serde(default)]
    pub stages: Vec<String>,
    #[serde(default)]
    pub within: Vec<String>,
    #[serde(default)]
    pub without: Vec<String>,
    /// Seconds after its start until nsys records, where the request does not say.
    #[serde(default)]
    pub delay_s: u32,
    /// Seconds that nsys records, where the request does not say; 0: to the end.
    #[serde(default)]
    pub duration_s: u32,
    /// GPUs that it gets, where the request does not say; 0: it needs none.
    #[serde(default = "one")]
    pub gpus: u32,
    /// Most GPUs that a request may ask for; `gpus` when absent.
    #[serde(default)]
    pub gpus_max: Option<u32>,
    /// How a server is known to be ready.
    #[serde(default)]
    pub ready: Option<Ready>,
    /// What is run against a server that is ready.
    #[serde(default)]
    pub client: Option<Client>,
}

/// How a server is known to be ready: by an answer with a status of 2xx, or by a line of its output that holds a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    /// `http://127.0.0.1:{port}/health`; of this host alone.
    #[serde(default)]
    pub url: Option<String>,
    #[serde(default)]
    pub log: Option<String>,
    /// Seconds that it may take.
    #[serde(default = "ready_within_s")]
    pub within_s: u32,
}

/// A program that is run against a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    pub program: PathBuf,
    #[serde(default)]
    pub args: Vec<String>,
}

/// A command as a run asks for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandCall {
    /// Name of a command that this host allows (`GET /targets`).
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-z0-9][a-z0-9._-]{0,63}$", example = "torch-generate")]
    pub command: String,
    /// Its parameters by name; those that have a default may be left out.
    #[serde(default)]
    #[schema(example = json!({ "tokens": 64, "model": "llama-3-8b" }))]
    pub params: BTreeMap<String, ParamValue>,
    /// GPUs that it gets at once; as many as the command's `gpus` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "maybe_whole")]
    #[schema(minimum = 1, maximum = 16)]
    pub gpus: Option<u32>,
}

impl CommandCall {
    /// Says whether its words have the form that the contract gives them.
    pub fn check_form(&self) -> Result<(), String> {
        if !is_command(&self.command) {
            return Err(format!("target.command: {:?} is no name of a command", self.command));
        }
        if self.params.len() > MOST_PARAMS {
            return Err(format!("target.params: {} are more than {MOST_PARAMS}", self.params.len()));
        }
        if let Some(gpus) = self.gpus.filter(|gpus| !(1..=MOST_GPUS).contains(gpus)) {
            return Err(format!("target.gpus: {gpus} is not between 1 and {MOST_GPUS}"));
        }
        for (name, value) in &self.params {
            if !is_param(name) {
                return Err(format!("target.params: {name:?} is no name of a parameter"));
            }
            value.check_form().map_err(|why| format!("target.params.{name}: {why}"))?;
        }
        Ok(())
    }
}

/// Says whether `name` has the form of a command's name.
pub fn is_command(name: &str) -> bool {
    is_name(name, 64, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(), b"._-")
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
    /// Refuses what is no command, in one line that names the key.
    pub fn check(&self, name: &str) -> Result<(), String> {
        if !is_command(name) {
            return Err("its name is not of lower-case letters, digits, '.', '_' and '-', 64 at most".into());
        }
        check_program(&self.program)?;
        if self.params.len() > MOST_PARAMS {
            return Err(format!("params: {} are more than {MOST_PARAMS}", self.params.len()));
        }
        for (name, param) in &self.params {
            if !is_param(name) || [OUT, PORT].contains(&name.as_str()) {
                return Err(format!(
                    "params.{name}: a name is of lower-case letters, digits and '_', 32 at most, and not {OUT} or {PORT}"
                ));
            }
            param.check().map_err(|why| format!("params.{name}: {why}"))?;
        }
        self.check_templates()?;
        self.check_environment()?;
        if self.folder.as_ref().is_some_and(|folder| !folder.is_absolute()) {
            return Err("folder: it is no absolute path".into());
        }
        for (key, value) in [("delay_s", self.delay_s), ("duration_s", self.duration_s)] {
            if value > LONGEST_S {
                return Err(format!("{key}: {value} is more than {LONGEST_S}"));
            }
        }
        let most = self.most_gpus();
        if most > MOST_GPUS || self.gpus > most {
            return Err(format!("gpus: {} to {most} are not within each other and {MOST_GPUS}", self.gpus));
        }
        self.check_kind()
    }

    /// Most GPUs that a request may ask for.
    pub fn most_gpus(&self) -> u32 {
        self.gpus_max.unwrap_or(self.gpus)
    }

    fn check_templates(&self) -> Result<(), String> {
        let client = self.client.iter().flat_map(|client| &client.args).map(|text| ("client.args", text));
        let url = self.ready.iter().filter_map(|ready| ready.url.as_ref()).map(|text| ("ready.url", text));
        let mut used = Vec::new();
        for (key, text) in self.args.iter().map(|text| ("args", text)).chain(client).chain(url) {
            let template = Template::parse(text).map_err(|why| format!("{key}: {text:?}: {why}"))?;
            for part in &template.0 {
                let Part::Hole(name) = part else { continue };
                match (self.params.get(name), name.as_str()) {
                    (Some(Param::Flag { .. }), _) if template.0.len() > 1 => {
                        return Err(format!("{key}: {text:?}: a flag is an argument of its own"));
                    }
                    (Some(_), _) if key == "ready.url" => return Err(format!("{key}: only {{{PORT}}} may be left open")),
                    (Some(_), _) => used.push(name.clone()),
                    (None, OUT) if key != "ready.url" => {}
                    (None, PORT) if self.kind == CommandKind::Server => {}
                    (None, PORT) => return Err(format!("{key}: {{{PORT}}} is for a server")),
                    (None, _) => return Err(format!("{key}: {text:?}: there is no parameter {name}")),
                }
            }
        }
        match self.params.keys().find(|name| !used.contains(name)) {
            Some(name) => Err(format!("params.{name}: no argument holds {{{name}}}")),
            None => Ok(()),
        }
    }

    fn check_environment(&self) -> Result<(), String> {
        for name in self.pass_env.iter().chain(self.env.keys()) {
            if !is_name(name, 128, |byte| byte.is_ascii_alphabetic() || byte == b'_', b"0123456789") {
                return Err(format!("environment: {name:?} is no name of a variable"));
            }
            if name.starts_with("LLMPROF") || name == "CUDA_VISIBLE_DEVICES" || name == "TMPDIR" {
                return Err(format!("environment: {name} is the service's own"));
            }
        }
        match self.env.iter().find(|(_, value)| value.contains('\0')) {
            Some((name, _)) => Err(format!("env.{name}: it holds a NUL")),
            None => Ok(()),
        }
    }

    fn check_kind(&self) -> Result<(), String> {
        let Some(ready) = &self.ready else {
            return match self.kind {
                CommandKind::Server => Err("ready: a server says by url or log when it is ready".into()),
                CommandKind::Program if self.client.is_some() => Err("client: it is for a server".into()),
                CommandKind::Program => Ok(()),
            };
        };
        if self.kind == CommandKind::Program {
            return Err("ready: it is for a server".into());
        }
        if !(1..=LONGEST_S).contains(&ready.within_s) {
            return Err(format!("ready.within_s: {} is not between 1 and {LONGEST_S}", ready.within_s));
        }
        match (&ready.url, &ready.log) {
            (Some(url), None) if is_local(url) => {}
            (Some(_), None) => {
                return Err("ready.url: it does not begin with http://127.0.0.1, http://localhost or http://[::1]".into());
            }
            (None, Some(log)) if !log.trim().is_empty() => {}
            _ => return Err("ready: it needs either url or log".into()),
        }
        match &self.client {
            Some(client) => check_program(&client.program).map_err(|why| format!("client.{why}")),
            None if self.duration_s == 0 => {
                Err("duration_s: a server without a client is recorded for so many seconds, and it is 0".into())
            }
            None => Ok(()),
        }
    }
}

fn check_program(program: &std::path::Path) -> Result<(), String> {
    let bare = program.components().count() == 1 && !program.as_os_str().is_empty();
    if program.is_absolute() || bare { Ok(()) } else { Err("program: it is neither an absolute path nor a name alone".into()) }
}

/// Says whether `url` leads to this host: readiness is asked of nobody else.
fn is_local(url: &str) -> bool {
    let rest = ["http://127.0.0.1", "http://localhost", "http://[::1]"].iter().find_map(|start| url.strip_prefix(start));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/'])) && !url.contains(['@', ' '])
}

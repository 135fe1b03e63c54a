//! A command and a call of it, put together: the arguments that are started, with everything recorded that decides them.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    CommandCall, CommandKind, CommandTarget, Ready,
    param::{Param, ParamValue},
    template::{OUT, PORT, Part, Piece, Pieces, Template},
};

/// Why a call is no call of its command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("target.params: {command} has no parameter {param}; it has {known}")]
    Unknown { command: String, param: String, known: String },
    #[error("target.params.{param}: {why}")]
    Unfit { param: String, why: String },
    #[error("target.gpus: {command} runs on {least} to {most} GPUs, and {asked} are asked for")]
    Gpus { command: String, least: u32, most: u32, asked: u32 },
}

/// What is started, with every parameter in place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommandPlan {
    pub name: String,
    pub description: String,
    pub kind: CommandKind,
    pub program: PathBuf,
    pub args: Vec<Pieces>,
    pub params: BTreeMap<String, ParamValue>,
    /// Names of the service's variables that it sees.
    pub pass_env: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub folder: Option<PathBuf>,
    pub stages: Vec<String>,
    pub within: Vec<String>,
    pub without: Vec<String>,
    pub gpus: u32,
    pub ready: Option<Ready>,
    pub client: Option<ClientPlan>,
}

/// A client with every parameter in place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientPlan {
    pub program: PathBuf,
    pub args: Vec<Pieces>,
}

impl CommandTarget {
    /// Puts the parameters of `call` into the command's arguments.
    pub fn plan(&self, call: &CommandCall) -> Result<CommandPlan, CallError> {
        if let Some(param) = call.params.keys().find(|param| !self.params.contains_key(*param)) {
            let known: Vec<&str> = self.params.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(CallError::Unknown { command: call.command.clone(), param: param.clone(), known });
        }
        let mut params = BTreeMap::new();
        let mut texts = BTreeMap::new();
        for (name, param) in &self.params {
            let unfit = |why: String| CallError::Unfit { param: name.clone(), why };
            let value = call.params.get(name).cloned().or_else(|| param.default());
            let value = value.ok_or_else(|| unfit(format!("it has no default and has to be given: {}", param.description())))?;
            texts.insert(name.as_str(), param.text(&value).map_err(unfit)?);
            params.insert(name.clone(), value);
        }
        let gpus = call.gpus.unwrap_or(self.gpus);
        if gpus > self.most_gpus() || (call.gpus.is_some() && gpus < self.gpus.min(1)) {
            let (least, most) = (self.gpus.min(1), self.most_gpus());
            return Err(CallError::Gpus { command: call.command.clone(), least, most, asked: gpus });
        }
        let client = match &self.client {
            Some(client) => Some(ClientPlan { program: client.program.clone(), args: self.fill(&client.args, &texts)? }),
            None => None,
        };
        Ok(CommandPlan {
            name: call.command.clone(),
            description: self.description.clone(),
            kind: self.kind,
            program: self.program.clone(),
            args: self.fill(&self.args, &texts)?,
            params,
            pass_env: self.pass_env.clone(),
            env: self.env.clone(),
            folder: self.folder.clone(),
            stages: self.stages.clone(),
            within: self.within.clone(),
            without: self.without.clone(),
            gpus,
            ready: self.ready.clone(),
            client,
        })
    }

    fn fill(&self, args: &[String], texts: &BTreeMap<&str, Option<String>>) -> Result<Vec<Pieces>, CallError> {
        let mut filled = Vec::new();
        for arg in args {
            // Checked when the command was read; what cannot be read here stands for itself.
            let template = Template::parse(arg).unwrap_or_else(|_| Template(vec![Part::Text(arg.clone())]));
            if let Some(pieces) = self.fill_one(&template, texts)? {
                filled.push(pieces);
            }
        }
        Ok(filled)
    }

    /// `None`: a flag that is off leaves no argument.
    fn fill_one(&self, template: &Template, texts: &BTreeMap<&str, Option<String>>) -> Result<Option<Pieces>, CallError> {
        let mut pieces = Vec::new();
        let leads = |pieces: &[Piece]| pieces.iter().all(|piece| matches!(piece, Piece::Text(text) if text.is_empty()));
        for part in &template.0 {
            let name = match part {
                Part::Text(text) => {
                    pieces.push(Piece::Text(text.clone()));
                    continue;
                }
                Part::Hole(name) => name.as_str(),
            };
            match (texts.get(name), self.params.get(name)) {
                (Some(Some(text)), Some(param)) => {
                    if leads(&pieces) && text.starts_with('-') && !param.may_lead_with_dash() {
                        let why = format!("{text:?} begins with '-', and would be taken for an option");
                        return Err(CallError::Unfit { param: name.to_owned(), why });
                    }
                    pieces.push(Piece::Text(text.clone()));
                }
                (Some(None), Some(Param::Flag { .. })) => return Ok(None),
                _ if name == OUT => pieces.push(Piece::Out),
                _ if name == PORT => pieces.push(Piece::Port),
                _ => {}
            }
        }
        Ok(Some(Pieces(pieces)))
    }
}

impl CommandPlan {
    /// Program and arguments, a word each, with `{out}` and `{port}` where a pass puts its own.
    pub fn words(&self) -> Vec<String> {
        std::iter::once(self.program.display().to_string()).chain(self.args.iter().map(ToString::to_string)).collect()
    }

    /// The same of its client.
    pub fn client_words(&self) -> Option<Vec<String>> {
        let client = self.client.as_ref()?;
        Some(std::iter::once(client.program.display().to_string()).chain(client.args.iter().map(ToString::to_string)).collect())
    }

    /// Names of all variables that it may see beyond those that every child sees.
    pub fn variables(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.pass_env.iter().chain(self.env.keys()).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

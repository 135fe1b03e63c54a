//! Plan of a command: the arguments of one call with every parameter in place.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    CommandCall, CommandKind, CommandTarget, GateSettings, LOAD_PROGRAM, ReadyCheck,
    WindowSettings,
    param::{Param, ParamValue},
    template::{ArgumentPiece, ArgumentTemplate, OUT, PORT, Template, TemplatePart},
};
use crate::domain::{
    model::ModelSpec,
    stated_model::{ModelStatement, StatedModel, StatementError},
};

/// A call that does not fit its command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("target.params: {command} has no parameter {param}; it has {known}")]
    Unknown { command: String, param: String, known: String },
    #[error("target.params.{param}: {why}")]
    Unfit { param: String, why: String },
    #[error("the model that {command} computes is unusable: {why}")]
    Model { command: String, why: StatementError },
    #[error("target.gpus: {requested} GPUs; {command} accepts {min} to {max}")]
    Gpus { command: String, min: u32, max: u32, requested: u32 },
}

/// A command with every parameter in place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommandPlan {
    pub name: String,
    pub description: String,
    pub kind: CommandKind,
    pub program: PathBuf,
    pub args: Vec<ArgumentTemplate>,
    pub params: BTreeMap<String, ParamValue>,
    /// Names of the service's variables that are passed on.
    pub pass_env: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub folder: Option<PathBuf>,
    pub stages: Vec<String>,
    #[serde(alias = "within")]
    pub include_ranges: Vec<String>,
    #[serde(alias = "without")]
    pub exclude_ranges: Vec<String>,
    pub gpus: u32,
    pub ready: Option<ReadyCheck>,
    pub client: Option<ClientPlan>,
    #[serde(default)]
    pub window: Option<WindowSettings>,
    #[serde(default)]
    pub gate: Option<GateSettings>,
    /// The model that it runs, if the operator states it.
    #[serde(default)]
    pub computes: Option<Box<StatedModel>>,
    #[serde(default)]
    pub torch_profiler: bool,
}

/// A client with every parameter in place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientPlan {
    pub program: PathBuf,
    pub args: Vec<ArgumentTemplate>,
    /// True for llmprof's load generator, which records its requests.
    #[serde(default)]
    pub is_load: bool,
}

impl CommandTarget {
    /// Fills the parameters of `call` into the command's arguments, given the configured models.
    pub fn plan(
        &self,
        call: &CommandCall,
        models: &BTreeMap<String, ModelSpec>,
    ) -> Result<CommandPlan, CallError> {
        if let Some(param) = call.params.keys().find(|param| !self.params.contains_key(*param)) {
            let known: Vec<&str> = self.params.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(CallError::Unknown {
                command: call.command.clone(),
                param: param.clone(),
                known,
            });
        }
        let mut params = BTreeMap::new();
        let mut texts = BTreeMap::new();
        for (name, param) in &self.params {
            let unfit = |why: String| CallError::Unfit { param: name.clone(), why };
            let value = call.params.get(name).cloned().or_else(|| param.default());
            let value = value.ok_or_else(|| {
                unfit(format!("missing value, and there is no default: {}", param.description()))
            })?;
            let value = param.normalised(value);
            texts.insert(name.as_str(), param.text(&value).map_err(unfit)?);
            params.insert(name.clone(), value);
        }
        let gpus = call.gpus.unwrap_or(self.gpus);
        let (min, max) = (self.gpus.min(1), self.max_gpus());
        if gpus > max || (call.gpus.is_some() && gpus < min) {
            let command = call.command.clone();
            return Err(CallError::Gpus { command, min, max, requested: gpus });
        }
        let client = match (&self.client, &self.load) {
            (Some(client), _) => Some(ClientPlan {
                program: client.program.clone(),
                args: self.fill(&client.args, &texts)?,
                is_load: false,
            }),
            (None, Some(load)) => Some(ClientPlan {
                program: LOAD_PROGRAM.into(),
                args: self.fill(&load.args(), &texts)?,
                is_load: true,
            }),
            (None, None) => None,
        };
        let computes = self.stated_model(&texts, models);
        let computes =
            computes.map_err(|why| CallError::Model { command: call.command.clone(), why })?;
        Ok(CommandPlan {
            computes: computes.map(Box::new),
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
            include_ranges: self.include_ranges.clone(),
            exclude_ranges: self.exclude_ranges.clone(),
            gpus,
            ready: self.ready.clone(),
            client,
            torch_profiler: self.torch_profiler,
            window: self.window,
            gate: self.gate.clone(),
        })
    }

    /// The model that it computes with these parameters.
    fn stated_model(
        &self,
        texts: &BTreeMap<&str, Option<String>>,
        models: &BTreeMap<String, ModelSpec>,
    ) -> Result<Option<StatedModel>, StatementError> {
        let Some(computes) = &self.computes else { return Ok(None) };
        let mut filled = ModelStatement::default();
        for (field, text) in computes.texts() {
            let mut value = String::new();
            // The settings were validated: each placeholder is a parameter with a text.
            for part in Template::parse(text).map(|it| it.0).unwrap_or_default() {
                match part {
                    TemplatePart::Text(text) => value.push_str(&text),
                    TemplatePart::Placeholder(name) => {
                        value.extend(texts.get(name.as_str()).cloned().flatten());
                    }
                }
            }
            if let Some(field) = filled.field(field) {
                *field = Some(value);
            }
        }
        filled.resolve(models)
    }

    fn fill(
        &self,
        args: &[String],
        texts: &BTreeMap<&str, Option<String>>,
    ) -> Result<Vec<ArgumentTemplate>, CallError> {
        let mut filled = Vec::new();
        for arg in args {
            // The settings were validated; a template that does not parse is kept as text.
            let template = Template::parse(arg)
                .unwrap_or_else(|_| Template(vec![TemplatePart::Text(arg.clone())]));
            if let Some(pieces) = self.fill_one(&template, texts)? {
                filled.push(pieces);
            }
        }
        Ok(filled)
    }

    /// One filled argument; `None` for a flag that is off.
    fn fill_one(
        &self,
        template: &Template,
        texts: &BTreeMap<&str, Option<String>>,
    ) -> Result<Option<ArgumentTemplate>, CallError> {
        let mut pieces = Vec::new();
        let is_at_start = |pieces: &[ArgumentPiece]| {
            pieces.iter().all(|piece| matches!(piece, ArgumentPiece::Text(text) if text.is_empty()))
        };
        for part in &template.0 {
            let name = match part {
                TemplatePart::Text(text) => {
                    pieces.push(ArgumentPiece::Text(text.clone()));
                    continue;
                }
                TemplatePart::Placeholder(name) => name.as_str(),
            };
            match (texts.get(name), self.params.get(name)) {
                (Some(Some(text)), Some(param)) => {
                    if is_at_start(&pieces) && text.starts_with('-') && !param.allows_leading_dash()
                    {
                        let why = format!("{text:?} starts with '-' and would become an option");
                        return Err(CallError::Unfit { param: name.to_owned(), why });
                    }
                    pieces.push(ArgumentPiece::Text(text.clone()));
                }
                (Some(None), Some(Param::Flag { .. })) => return Ok(None),
                _ if name == OUT => pieces.push(ArgumentPiece::Out),
                _ if name == PORT => pieces.push(ArgumentPiece::Port),
                _ => {}
            }
        }
        Ok(Some(ArgumentTemplate(pieces)))
    }
}

impl CommandPlan {
    /// Program and arguments, with the placeholders `{out}` and `{port}` of a pass.
    pub fn command_line(&self) -> Vec<String> {
        std::iter::once(self.program.display().to_string())
            .chain(self.args.iter().map(ToString::to_string))
            .collect()
    }

    /// The same of its client.
    pub fn client_command_line(&self) -> Option<Vec<String>> {
        let client = self.client.as_ref()?;
        Some(
            std::iter::once(client.program.display().to_string())
                .chain(client.args.iter().map(ToString::to_string))
                .collect(),
        )
    }

    /// Names of its variables, without the ones that every child has.
    pub fn variables(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.pass_env.iter().chain(self.env.keys()).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

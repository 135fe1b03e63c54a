//! The call of a command in a request, and the commands that sessions accept.
//!
//! Plain values; a call is resolved by its command's plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    CommandKind, CommandTarget, MAX_PARAMS, is_command,
    param::{ParamValue, is_param},
    template::{Template, TemplatePart},
    too_many_params,
};
use crate::domain::{ids::SessionId, json_numbers::Within};

/// The command of a request with its parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CommandCall {
    /// Name of an allowed command (`GET /targets`).
    #[cfg_attr(
        feature = "schema",
        schema(
            min_length = 1,
            max_length = 64,
            pattern = "^[a-z0-9][a-z0-9._-]{0,63}$",
            example = "torch-generate"
        )
    )]
    pub command: String,
    /// Parameters by name; those with a default may be left out.
    #[serde(default)]
    #[cfg_attr(
        feature = "schema",
        schema(example = json!({ "tokens": 64, "model": "llama-3-8b" }))
    )]
    pub params: BTreeMap<String, ParamValue>,
    /// Number of GPUs; the command's `gpus` when absent.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "Within::<1, 16>::optional"
    )]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 16))]
    pub gpus: Option<u32>,
    /// Session of this command to run on; `params` are parameters of its load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<uuid::Uuid>))]
    pub session: Option<SessionId>,
}

impl CommandCall {
    /// Checks names and sizes against the contract.
    pub fn check_form(&self) -> Result<(), String> {
        if !is_command(&self.command) {
            return Err(format!("target.command: {:?} is not a valid command name", self.command));
        }
        if self.params.len() > MAX_PARAMS {
            return Err(too_many_params("target.params", self.params.len()));
        }
        for (name, value) in &self.params {
            if !is_param(name) {
                return Err(format!("target.params: {name:?} is not a valid parameter name"));
            }
            value.check_form().map_err(|why| format!("target.params.{name}: {why}"))?;
        }
        Ok(())
    }
}

impl CommandTarget {
    /// True if the command line of the program depends on this parameter; parameters that only the
    /// load uses may differ between runs of a session.
    pub fn is_of_program(&self, param: &str) -> bool {
        let is_param =
            |part: &TemplatePart| matches!(part, TemplatePart::Placeholder(name) if name == param);
        self.args
            .iter()
            .any(|arg| Template::parse(arg).is_ok_and(|template| template.0.iter().any(is_param)))
    }

    /// Reason why it cannot be a session, if any.
    pub fn session_refusal(&self) -> Option<&'static str> {
        if self.kind != CommandKind::Server || self.load.is_none() {
            return Some("a session needs a server with a load ([commands.NAME.load])");
        }
        self.gate.as_ref().map(
            |_| "its own profiler records the windows (gate): submit runs of it without a session",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(more: &str) -> CommandTarget {
        let text = format!(
            "description = 'x'\nkind = 'server'\nprogram = 'serve'\n\
             args = ['{{port}}', '--size={{size}}']\nready = {{ log = 'up' }}\n{more}\n\
             params.size = {{ type = 'int', min = 1, max = 9, default = 4, description = 'n' }}\n\
             params.n = {{ type = 'int', min = 1, max = 9, default = 4, description = 'n' }}"
        );
        let command: CommandTarget = toml::from_str(&text).unwrap();
        command.check("s").unwrap();
        command
    }

    #[test]
    fn a_session_fixes_the_parameters_of_the_server_and_not_those_of_its_load() {
        let command = server("load = { requests = '{n}' }");
        assert_eq!(command.session_refusal(), None);
        assert!(command.is_of_program("size") && !command.is_of_program("n"));
    }

    #[test]
    fn a_server_without_a_load_or_with_a_profiler_of_its_own_is_no_session() {
        let client = server("client = { program = 'c', args = ['{n}'] }");
        assert!(client.session_refusal().unwrap().contains("with a load"));
        let url = "http://127.0.0.1:1/";
        let gated = server(&format!(
            "load = {{ requests = '{{n}}' }}\n\
             gate = {{ start = '{url}', stop = '{url}', collect = '/t/*' }}"
        ));
        assert!(gated.session_refusal().unwrap().contains("gate"));
    }
}

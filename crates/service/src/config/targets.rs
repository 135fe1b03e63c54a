//! `targets.toml`: the commands that the operator of this host allows, validated at start.

use std::path::Path;

use llmprof_core::{
    domain::command::{CommandTarget, Commands},
    trace::stage::parse_stages,
};
use serde::Deserialize;

use super::{ConfigError, Models, read};

/// The bundled example.
const EXAMPLE: &str = include_str!("../../../../conf/targets.toml");

/// Contents of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetsFile {
    #[serde(default)]
    commands: Commands,
}

/// Loads the commands in the file at `path`; none without a path. A command must not have the name
/// of a model, since runs are listed by either.
pub fn targets(path: Option<&Path>, models: &Models) -> Result<Commands, ConfigError> {
    match path {
        Some(path) => parse(&path.display().to_string(), &read(path)?, models),
        None => Ok(Commands::new()),
    }
}

/// Returns the commands of the bundled example.
pub fn example_targets() -> Result<Commands, ConfigError> {
    parse("conf/targets.toml", EXAMPLE, &Models::new())
}

fn parse(origin: &str, text: &str, models: &Models) -> Result<Commands, ConfigError> {
    let TargetsFile { commands } = toml::from_str(text)
        .map_err(|source| ConfigError::Syntax { origin: origin.to_owned(), source })?;
    for (name, command) in &commands {
        let invalid = |message: String| ConfigError::Target {
            origin: origin.to_owned(),
            name: name.clone(),
            message,
        };
        command.check(name).map_err(invalid)?;
        check_stages(command).map_err(invalid)?;
        check_computes(command, models).map_err(invalid)?;
        if models.contains_key(name) {
            return Err(invalid("a model has this name".into()));
        }
    }
    Ok(commands)
}

/// Checks the statement of its model, unless it depends on parameters.
fn check_computes(command: &CommandTarget, models: &Models) -> Result<(), String> {
    let Some(computes) = &command.computes else { return Ok(()) };
    if computes.texts().any(|(_, text)| text.contains('{')) {
        return Ok(());
    }
    computes.resolve(models).map(drop).map_err(|error| format!("computes: {error}"))
}

fn check_stages(command: &CommandTarget) -> Result<(), String> {
    parse_stages(&command.stages).map_err(|error| format!("stages: {error}"))?;
    match [("include_ranges", &command.include_ranges), ("exclude_ranges", &command.exclude_ranges)]
        .iter()
        .find(|(_, names)| names.iter().any(String::is_empty))
    {
        Some((key, _)) => Err(format!("{key}: empty name of a range")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        llmprof_core::chain(
            &parse("targets.toml", text, &super::super::models(None).unwrap().models).unwrap_err(),
        )
    }

    #[test]
    fn the_bundled_example_is_valid() {
        let commands = example_targets().unwrap();
        assert!(commands.len() >= 2 && commands.values().all(|it| !it.description.is_empty()));
    }

    #[test]
    fn an_invalid_command_is_one_line_with_its_key() {
        let command =
            |more: &str| format!("[commands.x]\ndescription = 'x'\nprogram = '/bin/true'\n{more}");
        let cases = [
            (
                command("args = ['{n}']"),
                "targets.toml: command x: args: \"{n}\": unknown parameter n",
            ),
            (command("stages = ['prefill']"), "command x: stages: invalid stage \"prefill\""),
            (command("stages = ['prefill=R', 'mixed=R']"), "\"R\" is named for two stages"),
            (command("program2 = 'y'"), "unknown field `program2`"),
            (
                command("kind = 'server'"),
                "command x: ready: missing; a server needs a readiness check",
            ),
            (command("kind = 'daemon'"), "unknown variant `daemon`"),
            (command("args = ['{port}']"), "{port} is only for a server"),
            (command("args = ['{n']"), "unmatched {"),
            (command("pass_env = ['LLMPROF__SERVER__DATA']"), "reserved for the service"),
            (command("env = { 'A=B' = '1' }"), "is not a valid variable name"),
            (command("gpus = 17"), "gpus: 17 to 17"),
            (command("folder = 'here'"), "folder: not an absolute path"),
            (
                command("[commands.x.params.n]\ntype = 'int'\ndescription = 'n'\nmin = 1\nmax = 2"),
                "no argument contains {n}",
            ),
            (
                command(
                    "args = ['{n}']\n[commands.x.params.n]\ntype = 'int'\ndescription = 'n'\n\
                     min = 1\nmax = 2\ndefault = 3",
                ),
                "params.n: default: 3 is not between 1 and 2",
            ),
            (
                command(
                    "args = ['{s}']\n[commands.x.params.s]\ntype = 'string'\ndescription = 's'\n\
                     pattern = '['\nmax_length = 9",
                ),
                "is not a regular expression",
            ),
            (
                command("[commands.x.computes]\nmodel_config = '{m}'\nprompt_tokens = 1"),
                "computes.model_config: \"{m}\": unknown parameter m",
            ),
            (
                command("[commands.x.computes]\nmodel_config = 'llama-tinny'\nprompt_tokens = 1"),
                "computes: model_config: no model \"llama-tinny\" is configured; did you mean",
            ),
            (
                command("[commands.x.computes]\nmodel_config = 'llama-tiny'\nprompt_token = 1"),
                "unknown field `prompt_token`",
            ),
            (
                "[commands.llama-tiny]\ndescription = 'x'\nprogram = 'y'".into(),
                "command llama-tiny: a model has this name",
            ),
            (
                "[commands.X]\ndescription = 'x'\nprogram = 'y'".into(),
                "command X: invalid name; expected at most 64 lower-case letters",
            ),
            (
                "[commands.x]\ndescription = 'x'\nprogram = 'a/b'".into(),
                "program: expected an absolute path or a bare name",
            ),
        ];
        for (text, expected) in cases {
            let error = error(&text);
            assert!(error.contains(expected), "{text}\n{error}");
        }
    }
}

//! `targets.toml`: the commands that the operator of this host allows, read and checked before anything is served.

use std::path::Path;

use serde::Deserialize;

use super::{ConfigError, Models, read};
use crate::{
    run::command::{CommandTarget, Commands},
    trace::stage::StageRule,
};

/// The file that ships as an example.
const EXAMPLE: &str = include_str!("../../conf/targets.toml");

/// All of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    commands: Commands,
}

/// Reads the commands in the file at `path`; none without one. A command bears no name of a model: runs are told apart by either.
pub fn targets(path: Option<&Path>, models: &Models) -> Result<Commands, ConfigError> {
    match path {
        Some(path) => parse(&path.display().to_string(), &read(path)?, models),
        None => Ok(Commands::new()),
    }
}

/// The commands of the example that ships.
pub fn example_targets() -> Result<Commands, ConfigError> {
    parse("conf/targets.toml", EXAMPLE, &Models::new())
}

fn parse(origin: &str, text: &str, models: &Models) -> Result<Commands, ConfigError> {
    let File { commands } = toml::from_str(text).map_err(|source| ConfigError::Syntax { origin: origin.to_owned(), source })?;
    for (name, command) in &commands {
        let refused = |message: String| ConfigError::Target { origin: origin.to_owned(), name: name.clone(), message };
        command.check(name).map_err(refused)?;
        check_stages(command).map_err(refused)?;
        if models.contains_key(name) {
            return Err(refused("a model bears this name".into()));
        }
    }
    Ok(commands)
}

fn check_stages(command: &CommandTarget) -> Result<(), String> {
    for rule in &command.stages {
        rule.parse::<StageRule>().map_err(|error| format!("stages: {error}"))?;
    }
    match [("within", &command.within), ("without", &command.without)]
        .iter()
        .find(|(_, names)| names.iter().any(String::is_empty))
    {
        Some((key, _)) => Err(format!("{key}: a range has a name")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        crate::chain(&parse("targets.toml", text, &super::super::models(None).unwrap().models).unwrap_err())
    }

    #[test]
    fn the_example_that_ships_is_as_it_should_be() {
        let commands = example_targets().unwrap();
        assert!(commands.len() >= 2 && commands.values().all(|it| !it.description.is_empty()));
    }

    #[test]
    fn a_mistake_is_told_in_one_line_with_its_place() {
        let command = |more: &str| format!("[commands.x]\ndescription = 'x'\nprogram = '/bin/true'\n{more}");
        let cases = [
            (command("args = ['{n}']"), "targets.toml: command x: args: \"{n}\": there is no parameter n"),
            (command("stages = ['prefill']"), "command x: stages: \"prefill\" is no stage"),
            (command("program2 = 'y'"), "unknown field `program2`"),
            (command("kind = 'server'"), "command x: ready: a server says by url or log"),
            (command("kind = 'daemon'"), "unknown variant `daemon`"),
            (command("args = ['{port}']"), "{port} is for a server"),
            (command("args = ['{n']"), "a { has no }"),
            (command("pass_env = ['LLMPROF__SERVER__DATA']"), "the service's own"),
            (command("env = { 'A=B' = '1' }"), "is no name of a variable"),
            (command("gpus = 17"), "gpus: 17 to 17"),
            (command("folder = 'here'"), "folder: it is no absolute path"),
            (command("[commands.x.params.n]\ntype = 'int'\ndescription = 'n'\nmin = 1\nmax = 2"), "no argument holds {n}"),
            (
                command("args = ['{n}']\n[commands.x.params.n]\ntype = 'int'\ndescription = 'n'\nmin = 1\nmax = 2\ndefault = 3"),
                "params.n: default: 3 is not between 1 and 2",
            ),
            (
                command(
                    "args = ['{s}']\n[commands.x.params.s]\ntype = 'string'\ndescription = 's'\npattern = '['\nmax_length = 9",
                ),
                "is no regular expression",
            ),
            ("[commands.llama-tiny]\ndescription = 'x'\nprogram = 'y'".into(), "command llama-tiny: a model bears this name"),
            ("[commands.X]\ndescription = 'x'\nprogram = 'y'".into(), "command X: its name is not of lower-case letters"),
            ("[commands.x]\ndescription = 'x'\nprogram = 'a/b'".into(), "neither an absolute path nor a name alone"),
        ];
        for (text, said) in cases {
            let error = refused(&text);
            assert!(error.contains(said), "{text}\n{error}");
        }
    }
}

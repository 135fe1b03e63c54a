//! `llmprof sweep`: on a service, and with one of its own that is interrupted.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::tempdir;

use super::{CommandResult, command, run};
use crate::support::service::{RUNNER, Service, Setup, command as serve};

const OF_MODEL: &str = "base: {model: llama-tiny, repeats: 1, warmup: 0}\n\
                        axes: {batch: [1, 2, 3], prompt_tokens: [8], new_tokens: [2, 4]}\n";

/// A sweep by a service of its own, as a table in CSV.
fn local(folder: &Path) -> std::process::Command {
    let mut command = command(folder, "", &["sweep", "sweep.yaml", "--local", "data", "--csv"]);
    command
        .env_remove("LLMPROF_SERVER")
        .env("LLMPROF__TOOLS__MODEL_RUNNER", RUNNER)
        .env("LLMPROF__WORKER__DEVICES", r#"["cpu"]"#);
    command
}

/// The cells of a table in CSV, without its header.
fn rows(result: &CommandResult) -> Vec<Vec<&str>> {
    result.stdout.lines().skip(1).map(|line| line.split(',').collect()).collect()
}

#[test]
fn an_interrupted_sweep_without_a_service_is_continued_by_the_same_command() {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("sweep.yaml"), OF_MODEL).unwrap();
    let mut started = local(folder.path()).spawn().unwrap();
    let mut lines = BufReader::new(started.stderr.take().unwrap()).lines().map(Result::unwrap);
    // The state is requested once a second, in which more than one point may end.
    let partial = |line: &String| line.contains(" of 6 measured") && !line.contains("0 of 6");
    let first = lines.find(partial);
    assert!(first.is_some_and(|line| !line.contains("6 of 6")), "no point is left to measure");
    kill(Pid::from_raw(started.id().cast_signed()), Signal::SIGINT).unwrap();
    let rest: Vec<String> = lines.collect();
    assert_eq!(started.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("the same command continues")), "{rest:?}");

    let ended = run(&mut local(folder.path()));
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("continuing the sweep "), "{ended:?}");
    let rows = rows(&ended);
    let axes: Vec<String> = rows.iter().map(|row| row[1..4].join(" ")).collect();
    assert_eq!(axes, ["1 2 8", "1 4 8", "2 2 8", "2 4 8", "3 2 8", "3 4 8"], "{}", ended.stdout);
    assert!(rows.iter().all(|row| row[4].parse::<f64>().is_ok()), "{}", ended.stdout);

    let again = run(&mut local(folder.path()));
    assert!(again.code == 0 && again.stderr.contains("6 of 6 measured, 6 before"), "{again:?}");
}

#[test]
fn a_sweep_over_a_parameter_of_a_command_ends_with_its_table() {
    let (data, folder) = (tempdir().unwrap(), tempdir().unwrap());
    let targets = folder.path().join("targets.toml");
    let program = "[commands.program]\ndescription = 'x'\nprogram = 'true'\nargs = ['{n}']\n\
                   params.n = { type = 'int', min = 1, max = 9, description = 'n' }\n";
    fs::write(&targets, program).unwrap();
    let mut serving = serve(data.path(), &Setup::default());
    let service = Service::spawn(serving.env("LLMPROF__SERVER__TARGETS", targets), data.path());
    let send = |sweep: &str, arguments: &[&str]| {
        fs::write(folder.path().join("sweep.yaml"), sweep).unwrap();
        let arguments = [&["sweep", "sweep.yaml", "--csv"], arguments].concat();
        run(&mut command(folder.path(), &service.base, &arguments))
    };
    let of_command = "base: {target: {command: program}, repeats: 2}\n\
                      axes: {params.n: {from: 1, to: 9, step: 4}}\n";
    let ended = send(of_command, &["--wait"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let rows = rows(&ended);
    let axes: Vec<&str> = rows.iter().map(|row| row[1]).collect();
    assert_eq!(axes, ["1", "5", "9"], "{}", ended.stdout);
    assert!(ended.stderr.contains("3 of 3 measured"), "{ended:?}");

    let unknown = "base: {target: {command: program}}\naxes: {params.m: [1]}\n";
    send(unknown, &[]).assert_refused(&["program has no parameter m; it has n"]);
    send("base: {", &[]).assert_refused(&["sweep.yaml"]);
    send("axes: {batch: [1]}", &[]).assert_refused(&["base"]);
}

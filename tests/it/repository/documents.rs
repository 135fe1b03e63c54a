//! The documents: their length, and the paths, imports, settings and options that they name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::Command,
};

use llmprof_core::layout;
use llmprof_service::config::Config;
use regex::Regex;

use super::{
    architecture::ARROWS,
    facts::{rows, spans},
    invariants::test_names,
    sources::{root, rust_files},
};

const README_LINES: usize = 130;
const ARCHITECTURE_LINES: usize = 200;
const AGENTS_LINES: usize = 40;

/// Documents outside `docs/`.
const OTHERS: [&str; 4] = ["README.md", "ARCHITECTURE.md", "AGENTS.md", "tests/gpu/README.md"];

/// The pages of `docs/`, and [`OTHERS`], by path.
fn documents() -> Vec<(PathBuf, String)> {
    let pages = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = pages.collect();
    paths.sort();
    assert!(paths.len() > 5 && paths.iter().all(|it| it.extension().is_some_and(|it| it == "md")));
    paths.extend(OTHERS.map(|name| root().join(name)));
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Lines of the blocks of shell commands, continued lines joined.
fn commands(text: &str) -> Vec<String> {
    let blocks = text.split("```").skip(1).step_by(2).filter_map(|it| it.strip_prefix("sh\n"));
    let joined: String = blocks.map(|block| block.replace("\\\n", " ")).collect();
    joined.lines().map(str::to_owned).collect()
}

/// [`documents`], and the quickstart, whose commands have the same checks.
fn documents_with_commands() -> Vec<(PathBuf, String)> {
    let quickstart = root().join("specs/quickstart.md");
    let text = fs::read_to_string(&quickstart).unwrap();
    documents().into_iter().chain([(quickstart, text)]).collect()
}

/// Names of lower-case variables that a line of shell assigns, and uses.
fn variables(line: &str) -> [Vec<String>; 2] {
    let names = |pattern: &str| -> Vec<String> {
        let found = Regex::new(pattern).unwrap();
        found.captures_iter(line).map(|it| it[1].to_owned()).collect()
    };
    let mut assigned = names(r"(?:^|[\s;&(])([a-z_]\w*)=");
    assigned.extend(names(r"for (\w+) in"));
    let read = names(r"read -r ([\w ]+) <");
    assigned.extend(read.iter().flat_map(|all| all.split(' ')).map(str::to_owned));
    [assigned, names(r"\$\{?([a-z_]\w*)")]
}

#[test]
fn every_variable_of_a_document_is_set_before_its_use() {
    let mut uses = 0;
    for (path, text) in documents_with_commands() {
        let mut known: BTreeSet<String> = BTreeSet::new();
        for line in commands(&text) {
            let [assigned, used] = variables(&line);
            known.extend(assigned);
            uses += used.len();
            for name in used {
                assert!(known.contains(&name), "{}: ${name} is never set: {line}", path.display());
            }
        }
    }
    assert!(uses > 20, "{uses} uses");
}

/// Inline code of `text`.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split("```").step_by(2).flat_map(|prose| prose.split('`').skip(1).step_by(2))
}

#[test]
fn the_command_after_the_start_of_a_service_waits_until_it_answers() {
    let mut starts = 0;
    for (path, text) in documents_with_commands() {
        let lines = commands(&text);
        for at in (0..lines.len()).filter(|at| lines[*at].starts_with("llmprof serve &")) {
            let next = lines[at + 1..].iter().find(|line| !line.starts_with("export "));
            let waits = next.is_some_and(|line| line.contains("--retry-connrefused"));
            assert!(waits, "{}: {next:?} does not wait for the service", path.display());
            starts += 1;
        }
    }
    assert!(starts > 3, "{starts} starts");
}

#[test]
fn the_readme_the_architecture_and_the_page_for_agents_are_short() {
    let lines = |name| fs::read_to_string(root().join(name)).unwrap().lines().count();
    assert!(lines("README.md") <= README_LINES);
    assert!(lines("ARCHITECTURE.md") <= ARCHITECTURE_LINES);
    assert!(lines("AGENTS.md") <= AGENTS_LINES);
}

#[test]
fn every_path_in_code_type_exists() {
    let folders: BTreeSet<String> = fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| !["target", ".git", "data"].contains(&name.as_str()))
        .collect();
    let mut named = 0;
    for (document, text) in documents() {
        for span in code(&text) {
            let path = span.split_whitespace().next().unwrap_or_default();
            let Some((folder, _)) = path.split_once('/') else { continue };
            if !folders.contains(folder) {
                continue;
            }
            let shown = document.display();
            assert!(root().join(path).exists(), "{shown}: there is no {path}");
            named += 1;
        }
    }
    assert!(named > 20, "only {named} paths found");
}

#[test]
fn every_link_to_a_file_leads_somewhere() {
    let mut linked = 0;
    for (document, text) in documents() {
        for link in text.split("](").skip(1).filter_map(|after| after.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = match file {
                "" => document.clone(),
                file => document.parent().unwrap().join(file),
            };
            let shown = document.display();
            assert!(path.exists(), "{shown}: there is no {link}");
            if !heading.is_empty() {
                let text = fs::read_to_string(&path).unwrap().to_lowercase().replace(' ', "-");
                assert!(
                    text.lines().any(|line| line.trim_start_matches('#') == format!("-{heading}")),
                    "{shown}: {file} has no heading {heading}"
                );
            }
            linked += 1;
        }
    }
    assert!(linked > 30, "only {linked} links found");
}

#[test]
fn the_table_of_imports_is_the_one_that_is_tested() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    let documented: BTreeMap<&str, BTreeSet<&str>> = rows
        .map(|row| {
            let module = row.split('`').next().unwrap();
            let imports = row.rsplit(" | ").next().unwrap();
            (module, imports.split('`').skip(1).step_by(2).collect())
        })
        .collect();
    let tested: BTreeMap<&str, BTreeSet<&str>> =
        ARROWS.iter().map(|(module, may)| (*module, may.iter().copied().collect())).collect();
    assert_eq!(documented, tested);
}

#[test]
fn every_setting_in_a_command_exists() {
    let mut named = 0;
    for (document, text) in documents_with_commands() {
        for line in commands(&text) {
            for assignment in line.split("LLMPROF__").skip(1) {
                let (name, rest) = assignment.split_once('=').unwrap();
                let value = match rest.strip_prefix('\'') {
                    Some(quoted) => quoted.split('\'').next().unwrap(),
                    None => rest.split_whitespace().next().unwrap(),
                };
                let set = [(format!("LLMPROF__{name}"), value.to_owned())];
                let loaded = Config::load_with(None, set.into_iter());
                assert!(loaded.is_ok(), "{}: {:?}", document.display(), loaded.err());
                named += 1;
            }
        }
    }
    assert!(named > 5, "only {named} settings found");
}

/// Value of a dotted key of a TOML table.
fn get<'a>(table: &'a toml::Value, key: &str) -> Option<&'a toml::Value> {
    key.split('.').try_fold(table, |table, key| table.get(key))
}

/// Settings of the service and of the passes of a run, with their defaults.
struct Settings {
    service: toml::Value,
    passes: toml::Value,
}

impl Settings {
    fn load() -> Self {
        let read =
            |name: &str| toml::from_str(&fs::read_to_string(root().join(name)).unwrap()).unwrap();
        Self { service: read("conf/default.toml"), passes: read("conf/profiling/deep.toml") }
    }

    /// The value of a dotted key.
    fn value(&self, key: &str) -> Option<&toml::Value> {
        let (table, inside) = self.table(key);
        get(table, inside)
    }

    /// Returns true for a dotted key whose first part is a section of settings.
    fn has_section(&self, key: &str) -> bool {
        let (table, inside) = self.table(key);
        let Some((section, name)) = inside.split_once('.') else { return false };
        let is_name = |it: &str| it.chars().all(|it| it.is_ascii_lowercase() || it == '_');
        get(table, section).is_some() && name.split('.').all(is_name)
    }

    /// Table of a key, and the key inside it.
    fn table<'a, 'b>(&'a self, key: &'b str) -> (&'a toml::Value, &'b str) {
        key.strip_prefix("profiling.").map_or((&self.service, key), |inside| (&self.passes, inside))
    }
}

#[test]
fn every_setting_in_code_type_exists() {
    let settings = Settings::load();
    let mut named = 0;
    for (document, text) in documents() {
        for key in code(&text).map(|span| span.split(' ').next().unwrap_or_default()) {
            // A file that has the name of a section.
            if settings.has_section(key) && key != layout::INPUTS {
                let known = settings.value(key).is_some();
                assert!(known, "{}: no setting {key}", document.display());
                named += 1;
            }
        }
    }
    assert!(named > 20, "only {named} settings found");
}

#[test]
fn every_section_of_a_report_in_the_readme_exists() {
    let golden = |name: &str| fs::read_to_string(root().join("tests/golden").join(name)).unwrap();
    let reports =
        ["cpu", "gpu", "h200"].map(|name| golden(&format!("{name}-report.md"))).join("\n");
    let headings: BTreeSet<&str> = reports
        .lines()
        .filter(|line| line.starts_with("##"))
        .map(|line| line.trim_start_matches(['#', ' ', '.']).trim_start_matches(char::is_numeric))
        .map(|line| line.trim_start_matches(['.', ' ']))
        .collect();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, table) = readme.split_once("| question |").unwrap();
    let mut named = 0;
    for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let place = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        for section in place.split(", ").filter(|it| !it.starts_with(['[', 't'])) {
            let section = section.split(" (").next().unwrap();
            assert!(headings.contains(section), "no report has a section {section:?}");
            named += 1;
        }
    }
    assert!(named > 10, "only {named} sections found");
}

/// All Rust code in these folders.
fn code_of(folders: &[&str]) -> String {
    let files = folders.iter().flat_map(|folder| rust_files(&root().join(folder)));
    files.map(|path| fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn every_id_of_the_troubleshooting_page_exists() {
    let sources = code_of(&["crates"]);
    let text = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let is_id =
        |it: &&str| it.contains('_') && it.chars().all(|it| it.is_ascii_lowercase() || it == '_');
    let ids: Vec<&str> = code(&text).filter(is_id).collect();
    assert!(ids.len() > 50, "only {} ids found", ids.len());
    for id in ids {
        // Ids of tools that are missing or unusable are made of the tool's name.
        let made = ["_missing", "_unusable"]
            .iter()
            .any(|end| id.strip_suffix(end).is_some_and(|tool| ["nsys", "ncu"].contains(&tool)));
        assert!(
            made || sources.contains(&format!("\"{id}\"")) || sources.contains(&format!("{id}:")),
            "{id}"
        );
    }
}

/// The help of the program that a command starts, and its options, if it is one of ours.
fn help(words: &[&str]) -> Option<String> {
    let program = match *words.first()? {
        "llmprof" => env!("CARGO_BIN_EXE_llmprof"),
        "model-runner" => env!("CARGO_BIN_EXE_model-runner"),
        _ => return None,
    };
    let subcommand = words[1..].iter().take(if words.get(1) == Some(&"token") { 2 } else { 1 });
    let output = Command::new(program).args(subcommand).arg("--help").output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Number of options of a command of one of our programs, or the one that it does not have.
fn check_options(command: &str) -> Result<usize, String> {
    let words = command.split_whitespace();
    let words: Vec<&str> = words.skip_while(|word| word.contains('=')).collect();
    let Some(help) = help(&words) else { return Ok(0) };
    let options: Vec<&&str> = words.iter().filter(|it| it.starts_with("--")).collect();
    let known = |option: &str| help.split([' ', '\n', ',']).any(|word| word == option);
    match options.iter().find(|option| !known(option)) {
        Some(option) => Err(format!("{command:?} has no {option}")),
        None => Ok(options.len()),
    }
}

#[test]
fn every_option_of_a_command_exists() {
    let mut named = 0;
    for (document, text) in documents_with_commands() {
        for line in commands(&text) {
            let line = line.split(" # ").next().unwrap();
            for command in line.split([';', '|', '&']) {
                let options = check_options(command);
                let options = options.unwrap_or_else(|it| panic!("{}: {it}", document.display()));
                named += options;
            }
        }
    }
    assert!(named > 30, "only {named} options found");
}

/// Returns true for a word in code type that names something of this repository: a file, an
/// endpoint, a command with its options, a file of a run, a setting, or an id, field or type.
fn is_known(span: &str, settings: &Settings, documents: &[String; 2], sources: &str) -> bool {
    let [contract, data_model] = documents;
    let first = span.split_whitespace().next().unwrap_or_default();
    if ["GET", "POST", "DELETE"].contains(&first) {
        let path = span.split_whitespace().nth(1).unwrap_or_default();
        return contract.contains(&format!("\n  {path}:\n"));
    }
    if ["llmprof", "model-runner"].contains(&first) {
        return check_options(span).is_ok();
    }
    if settings.has_section(span) && settings.value(span).is_some() {
        return true;
    }
    let forms = [format!("\"{span}\""), format!("{span}:"), format!("struct {span} ")];
    root().join(first).exists()
        || data_model.contains(span)
        || forms.iter().any(|form| sources.contains(form))
}

#[test]
fn every_item_of_the_specification_names_files_and_tests_that_exist() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let settings = Settings::load();
    let documents = [read("contracts/profile.yaml"), read("specs/data-model.md")];
    let (sources, all) = (code_of(&["crates"]), code_of(&["crates", "tests"]));
    let tests = test_names(&all);
    let text = read("specs/spec.md");
    let rows = rows(&text, "| item | where | test |");
    assert!(rows.len() > 90, "only {} items found", rows.len());
    for row in rows {
        let [item, place, evidence] = row[..] else { panic!("{row:?} has other columns") };
        assert!(spans(place).next().is_some(), "{item}: no place");
        for span in spans(place) {
            assert!(is_known(span, &settings, &documents, &sources), "{item}: no {span}");
        }
        for span in spans(evidence) {
            let exists = tests.contains(span) || root().join(span).is_file();
            assert!(exists, "{item}: no test {span}");
        }
        assert!(evidence == "–" || spans(evidence).next().is_some(), "{item}: {evidence}");
    }
}

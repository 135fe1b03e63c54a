//! Facts in documents, against the sources: limits, defaults, findings, tables and files that they
//! name, and types of the contract.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use llmprof_core::domain::finding::catalogue;
use llmprof_service::http;
use regex::Regex;

use super::sources::{ALL, Source, root, rust_files, sources};

/// Limits that documents state: document, text with `{}` in place of the number, file and name of
/// the constant, and the bits of the text's unit (10 for KiB, 20 for MiB).
const LIMITS: &[(&str, &str, &str, &str, u32)] = &[
    ("specs/spec.md", "request bodies of {} MiB", "extract/body.rs", "MAX_BODY", 20),
    ("specs/spec.md", "({} MiB in `POST /runs`", "runs/submit.rs", "MAX_INLINE_BODY", 20),
    ("docs/troubleshooting.md", "over {} MiB of JSON", "extract/body.rs", "MAX_BODY", 20),
    ("docs/troubleshooting.md", "({} MiB in `POST /runs`", "runs/submit.rs", "MAX_INLINE_BODY", 20),
    ("specs/access.md", "10 seconds and {} MiB", "extract/body.rs", "MAX_BODY", 20),
    ("specs/access.md", "({} MiB in `POST /runs`", "runs/submit.rs", "MAX_INLINE_BODY", 20),
    ("specs/access.md", "`server.header_s` and {} KiB", "http/listen.rs", "MAX_HEAD_BYTES", 10),
    ("specs/access.md", "`viewer` and at most {} KiB", "mcp/mod.rs", "MAX_MESSAGE", 10),
    ("docs/agents.md", "A request has at most {} KiB", "mcp/mod.rs", "MAX_MESSAGE", 10),
    ("docs/agents.md", "at most {} kB of content", "mcp/answer.rs", "MAX_CONTENT", 10),
    ("docs/agents.md", "and {} kB of text", "mcp/answer.rs", "MAX_TEXT", 10),
    ("docs/agents.md", "at most {} seconds", "tools/wait_for_run.rs", "MAX_WAIT_S", 0),
    ("docs/clients.md", "as `where` (up to {})", "api/tables.rs", "MAX_FILTERS", 0),
    ("docs/inputs.md", "(up to {} MiB in total)", "image_limits.rs", "MAX_INLINE_BYTES", 20),
    ("docs/inputs.md", "A manifest has at most {} MiB", "inputs/manifest.rs", "MAX_MANIFEST", 20),
    ("docs/inputs.md", "all images, at most {} KiB", "domain/inputs.rs", "MAX_PROMPT", 10),
    ("docs/inputs.md", "at most {} images", "domain/inputs.rs", "MAX_IMAGES", 0),
    ("docs/inputs.md", "images and {} samples", "domain/inputs.rs", "MAX_SAMPLES", 0),
];
/// Table of the library that applies the migrations.
const APPLIED: &str = "_sqlx_migrations";

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files below `folder` with this extension.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(it) if it == extension => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// Value of a constant such as `12 << 20`, `64 * 1024` or `16_384`.
fn constant(sources: &[Source], file: &str, name: &str) -> u64 {
    let declaration = Regex::new(&format!(r"const {name}: \w+ = ([^;]+);")).unwrap();
    let values: Vec<&str> = sources
        .iter()
        .filter(|source| Path::new(&source.path()).ends_with(file))
        .filter_map(|source| Some(declaration.captures(&source.code)?.get(1)?.as_str()))
        .collect();
    let [value] = values[..] else { panic!("{name} of {file}: {values:?}") };
    let number = |text: &str| text.trim().replace('_', "").parse::<u64>().unwrap();
    match (value.split_once("<<"), value.split_once('*')) {
        (Some((of, bits)), _) => number(of) << number(bits),
        (_, Some((a, b))) => number(a) * number(b),
        _ => number(value),
    }
}

/// Code spans of a cell.
pub fn spans(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Rows of the tables of `text` whose head starts with `head`, as cells.
pub fn rows<'a>(text: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let (mut found, mut inside) = (Vec::new(), false);
    for line in text.lines() {
        if line.starts_with(head) {
            inside = true;
        } else if !line.starts_with('|') {
            inside = false;
        } else if inside && !line.starts_with("| -") && !line.starts_with("|-") {
            found.push(line.trim_matches(['|', ' ']).split(" | ").collect());
        }
    }
    found
}

#[test]
fn limits_in_documents_are_those_of_the_sources() {
    let sources = sources(ALL);
    for (document, text, file, name, bits) in LIMITS {
        let value = constant(&sources, file, name);
        assert_eq!(value % (1 << bits), 0, "{name} is not a multiple of its unit");
        let wanted = text.replace("{}", &(value >> bits).to_string());
        let words = read(document).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&wanted), "{document} lacks {wanted:?} ({name} of {file})");
    }
}

/// Bytes, seconds, counts or flags as documents write them: `256 MiB`, `20 GB`, `0 (off)`, `true`.
fn setting_value(text: &str) -> Option<toml::Value> {
    if let Ok(flag) = text.parse::<bool>() {
        return Some(toml::Value::Boolean(flag));
    }
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let factor = match unit {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => 1,
    };
    let number: i64 = number.replace(',', "").parse().ok()?;
    Some(toml::Value::Integer(number * factor))
}

#[test]
fn settings_in_documents_have_their_defaults() {
    let settings: toml::Value = toml::from_str(&read("conf/default.toml")).unwrap();
    let get = |key: &str| key.split('.').try_fold(&settings, |table, key| table.get(key));
    let mut compared = 0;
    for path in files("docs", "md") {
        let text = read(&path);
        for row in rows(&text, "| setting | default |") {
            let Some(value) = setting_value(row[1]) else { continue };
            let first = spans(row[0]).next().unwrap();
            let section = first.rsplit_once('.').map_or("executor.slurm", |(section, _)| section);
            for key in spans(row[0]) {
                let name = key.rsplit('.').next().unwrap();
                let known = get(&format!("{section}.{name}"));
                assert_eq!(known, Some(&value), "{}: {key}", path.display());
                compared += 1;
            }
        }
    }
    assert!(compared > 10, "only {compared} defaults found");
}

#[test]
fn fields_of_submissions_in_documents_have_their_defaults() {
    let fields = http::contract().pointer("/components/schemas/SubmitModel/properties").unwrap();
    let text = read("docs/runs.md");
    let mut compared = 0;
    for row in rows(&text, "| field | default |") {
        let (names, values) = (spans(row[0]), row[1].split(", "));
        for (name, value) in names.zip(values) {
            let field = fields.get(name).unwrap_or_else(|| panic!("no field {name}"));
            let Some(default) = field.get("default") else { continue };
            if spans(row[0]).count() != row[1].split(", ").count() {
                continue;
            }
            let default = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
            assert_eq!(value.trim_matches('`'), default, "{name}");
            compared += 1;
        }
    }
    assert!(compared >= 6, "only {compared} defaults found");
}

#[test]
fn every_finding_of_the_catalogue_is_stated_somewhere() {
    let sources = sources(ALL);
    let stated = sources.iter().filter(|source| !source.path().contains("/finding/catalogue"));
    let text: String = stated.map(|source| source.code.as_str()).collect();
    let name = Regex::new(r"\bcatalogue::([A-Z0-9_]+)").unwrap();
    let stated: BTreeSet<&str> =
        name.captures_iter(&text).map(|it| it.extract::<1>().1[0]).collect();
    let unused: Vec<_> = catalogue::all()
        .map(|it| it.id)
        .filter(|id| !stated.contains(id.to_uppercase().as_str()))
        .collect();
    assert_eq!(unused, [""; 0]);
}

#[test]
fn the_data_model_has_the_tables_of_the_database() {
    let database = rusqlite::Connection::open_in_memory().unwrap();
    for path in files("migrations", "sql") {
        database.execute_batch(&read(&path)).unwrap();
    }
    let tables = "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'";
    let mut statement = database.prepare(tables).unwrap();
    let names = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let existing: BTreeSet<String> = names.map(Result::unwrap).collect();
    assert!(!existing.contains(APPLIED));
    let text = read("specs/data-model.md");
    let rows = rows(&text, "| table | row | key |");
    let documented: BTreeSet<String> =
        rows.iter().flat_map(|row| spans(row[0])).map(str::to_owned).collect();
    assert_eq!(documented, existing);
}

/// Paths of a code span, with one alternative of each `{a,b}`.
fn alternatives(span: &str) -> Vec<String> {
    let Some((before, rest)) = span.split_once('{') else { return vec![span.to_owned()] };
    let Some((inside, after)) = rest.split_once('}') else { return vec![span.to_owned()] };
    let each = |part| alternatives(&format!("{before}{part}{after}"));
    inside.split(',').flat_map(each).collect()
}

#[test]
fn the_data_model_has_the_files_of_a_run() {
    let text = read("specs/data-model.md");
    let documented: BTreeSet<String> = text
        .lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(spans)
        .flat_map(alternatives)
        .map(|path| path.rsplit('/').next().unwrap().to_owned())
        .collect();
    let core = sources(&["core"]);
    let layout = core.iter().find(|source| source.module() == "layout").unwrap();
    let name = Regex::new(r#"pub const \w+: &str = "([^"]+\.[^"]+)""#).unwrap();
    let names: Vec<&str> =
        name.captures_iter(&layout.code).map(|it| it.get(1).unwrap().as_str()).collect();
    assert!(names.len() > 60, "only {} names found", names.len());
    for path in names {
        // A name with the number of a process is documented with `PID`.
        let file = path.rsplit('/').next().unwrap().replace("%i", "PID");
        assert!(documented.contains(&file), "specs/data-model.md lacks {path}");
    }
}

#[test]
fn every_file_named_in_the_specifications_exists() {
    let entries = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap());
    let folders: BTreeSet<String> = entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| !["target", ".git", "data"].contains(&name.as_str()))
        .chain(["src".to_owned()])
        .collect();
    let mut paths = files("specs", "md");
    paths.push(root().join("CONTRIBUTING.md"));
    let mut named = 0;
    for document in paths {
        let text = read(&document);
        let shown = document.strip_prefix(root()).unwrap().display();
        let prose: Vec<&str> = text.split("```").step_by(2).collect();
        for span in prose.iter().flat_map(|prose| spans(prose)) {
            let path = span.split_whitespace().next().unwrap_or_default();
            let Some((folder, _)) = path.split_once('/') else { continue };
            if !folders.contains(folder) || path.contains(['<', '{']) {
                continue;
            }
            // The folder of a pattern; a name in capitals stands for one that is chosen.
            let fixed: PathBuf = Path::new(path)
                .iter()
                .take_while(|part| {
                    let part = part.to_str().unwrap();
                    !part.contains('*') && !part.starts_with("NAME")
                })
                .collect();
            assert!(root().join(&fixed).exists(), "{shown}: there is no {path}");
            named += 1;
        }
        for link in text.split("](").skip(1).filter_map(|after| after.split(')').next()) {
            let file = link.split('#').next().unwrap();
            if !file.is_empty() && !file.starts_with("http") {
                assert!(document.parent().unwrap().join(file).exists(), "{shown}: no {link}");
            }
        }
    }
    assert!(named > 40, "only {named} paths found");
}

/// Names in the contract of the types that `code` declares.
fn schema_names(code: &str) -> Vec<String> {
    let stated = Regex::new(r"schema\(as = (\w+)").unwrap();
    let declared = r"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum) (\w+)|^\s*(?:pub )?(\w+) \{";
    let declared = Regex::new(declared).unwrap();
    let lines: Vec<&str> = code.lines().collect();
    let is_derive = |line: &str| line.trim_start().starts_with("#[") && line.contains("ToSchema");
    let derives = (0..lines.len()).filter(|at| is_derive(lines[*at]));
    let name = |at: usize| {
        let end = (at..lines.len()).find(|it| declared.is_match(lines[*it])).unwrap();
        let of_type = declared.captures(lines[end]);
        let stated = lines[at..end].iter().find_map(|line| stated.captures(line));
        stated.or(of_type).unwrap().iter().flatten().nth(1).unwrap().as_str().to_owned()
    };
    derives.map(name).collect()
}

#[test]
fn types_of_the_contract_have_different_names() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources(ALL).iter().filter(|it| it.code.contains("ToSchema")) {
        for name in schema_names(&source.code) {
            places.entry(name).or_default().push(source.path());
        }
    }
    assert!(places.len() > 200, "only {} types found", places.len());
    places.retain(|_, types| types.len() > 1);
    assert!(places.is_empty(), "several types of a name, without `schema(as = NAME)`: {places:?}");
}

#[test]
fn every_test_named_in_contributing_exists() {
    let files = ["crates", "tests"].iter().flat_map(|folder| rust_files(&root().join(folder)));
    let code: String = files.map(read).collect();
    let text = read("CONTRIBUTING.md");
    let is_test = |it: &&str| {
        let is_name = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_';
        it.chars().all(is_name) && it.matches('_').count() > 3
    };
    let prose = text.split("```").step_by(2);
    let named: BTreeSet<&str> = prose.flat_map(spans).filter(is_test).collect();
    assert!(named.len() > 8, "only {} tests found", named.len());
    for test in named {
        assert!(code.contains(&format!("fn {test}(")), "there is no test {test}");
    }
}

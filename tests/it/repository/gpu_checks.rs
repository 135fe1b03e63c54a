//! `tests/gpu/README.md`: lists each file of its folder, and each script with its time and table.

use std::{collections::BTreeSet, fs};

use super::{
    facts::{rows, spans},
    sources::root,
};

/// Names of the files and folders of `tests/gpu`, except the README and what Python caches.
fn files() -> BTreeSet<String> {
    let entries = fs::read_dir(root().join("tests/gpu")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !["README.md", "__pycache__"].contains(&name.as_str())).collect()
}

fn readme() -> String {
    fs::read_to_string(root().join("tests/gpu/README.md")).unwrap()
}

#[test]
fn every_file_of_the_gpu_checks_is_listed() {
    let (files, text) = (files(), readme());
    assert!(files.len() > 40, "only {} files found", files.len());
    for name in files {
        let forms = [format!("`{name}`"), format!("`{name}/`"), format!("]({name})")];
        assert!(forms.iter().any(|form| text.contains(form)), "tests/gpu/README.md lacks {name}");
    }
}

#[test]
fn every_gpu_script_has_a_purpose_a_time_and_a_table() {
    let (files, text) = (files(), readme());
    let scripts = rows(&text, "| script | shows | takes | latest table |");
    assert!(scripts.len() > 15, "only {} scripts found", scripts.len());
    for row in scripts {
        let [names, shows, takes, tables] = row[..] else { panic!("{row:?} has other columns") };
        assert!(spans(names).all(|name| files.contains(name)), "{names}: no such script");
        assert!(!shows.is_empty(), "{names}: no purpose");
        // A time, or the command that prints it.
        let is_measured = takes.contains(|it: char| it.is_ascii_digit());
        let is_printed = spans(takes).any(|it| it.starts_with("tests/gpu/"));
        assert!(is_measured || is_printed, "{names} takes {takes:?}");
        let linked: Vec<&str> =
            tables.split("](").skip(1).filter_map(|it| it.split(')').next()).collect();
        assert!(!linked.is_empty(), "{names}: no table");
        assert!(linked.iter().all(|it| files.contains(*it)), "{names}: {linked:?}");
    }
}

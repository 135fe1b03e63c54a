//! Each file of code is a module: one that no file declares is neither compiled nor tested.

use std::{
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

use super::sources::{root, rust_files};

/// Names of files that declare the modules of their folder.
const ROOTS: [&str; 3] = ["lib.rs", "main.rs", "mod.rs"];

/// True if a file next to `file`, or the file of its folder, declares the module of `file`.
fn is_declared(file: &Path) -> bool {
    let folder = file.parent().unwrap();
    let is_folder = file.ends_with("mod.rs");
    let module = if is_folder { folder } else { file };
    let (name, around) = (module.file_stem().unwrap(), module.parent().unwrap());
    let declaration = format!(r"(?m)^\s*(pub(\([a-z]+\))? )?mod {};", name.to_str().unwrap());
    let declaration = Regex::new(&declaration).unwrap();
    let owners = ROOTS.iter().map(|it| around.join(it)).chain([around.with_extension("rs")]);
    let mut texts = owners.filter_map(|owner| fs::read_to_string(owner).ok());
    texts.any(|text| declaration.is_match(&text))
}

#[test]
fn every_file_of_code_is_a_module_that_another_file_declares() {
    let packages = fs::read_dir(root().join("crates")).unwrap();
    let folders = packages.map(|it| it.unwrap().path().join("src"));
    let tests = ["tests/it", "tests/simulator"].map(|it| root().join(it));
    let found: Vec<PathBuf> = folders.chain(tests).flat_map(|it| rust_files(&it)).collect();
    assert!(found.len() > 1000, "only {} files found", found.len());
    let is_root = |file: &Path| ["lib.rs", "main.rs"].iter().any(|it| file.ends_with(it));
    let lost: Vec<&PathBuf> = found.iter().filter(|it| !is_root(it) && !is_declared(it)).collect();
    assert!(lost.is_empty(), "declared by no file: {lost:?}");
}

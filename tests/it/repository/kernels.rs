//! Compares the kernels that `gpu/` launches by name with those that are defined, without a GPU and
//! nvcc.
//!
//! The kernels' macros are expanded by the C compiler's preprocessor; nothing is compiled.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

use super::sources::root;

/// Types of the variants of a kernel. Few kernels have an f32 variant: candle may compute f32.
const HALVES: [&str; 2] = ["bf16", "f16"];

fn runner(folder: &str) -> PathBuf {
    root().join("crates/model-runner/src").join(folder)
}

/// Files of a folder of the runner with this extension: stem and text.
fn files(folder: &str, extension: &str) -> Vec<(String, String)> {
    let paths = fs::read_dir(runner(folder)).unwrap().map(|entry| entry.unwrap().path());
    let wanted = paths.filter(|path| path.extension().is_some_and(|is| is == extension));
    let mut files: Vec<_> = wanted
        .map(|path| {
            (
                path.file_stem().unwrap().to_str().unwrap().to_owned(),
                fs::read_to_string(&path).unwrap(),
            )
        })
        .collect();
    files.sort();
    files
}

/// `source` after the preprocessor, without comments; with the runner's headers, without CUDA's.
fn preprocess(source: &str) -> String {
    let headers = files("kernels", "cuh").into_iter().map(|(_, text)| text).collect::<String>();
    let text: String = [&headers, source]
        .iter()
        .flat_map(|text| text.lines())
        .filter(|line| !line.starts_with("#include"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut cc = Command::new("cc")
        .args(["-E", "-P", "-w", "-x", "c++", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = cc.stdin.take().unwrap();
    // From a thread of its own: cc writes before it has read everything.
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = cc.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// Names of the kernels that `code` exports to the host.
fn defined(code: &str) -> BTreeSet<String> {
    let definitions = code.split("extern \"C\" __global__ void").skip(1);
    let name = |after: &str| {
        let after = after.trim_start();
        let name = match after.strip_prefix("__launch_bounds__") {
            Some(bounds) => &bounds[bounds.find(')').unwrap() + 1..],
            None => after,
        };
        name.trim_start().split('(').next().unwrap().trim_end().to_owned()
    };
    definitions.map(name).collect()
}

fn all_defined() -> BTreeSet<String> {
    files("kernels", "cu").iter().flat_map(|(_, source)| defined(&preprocess(source))).collect()
}

/// Names that `gpu/` launches. A file with launches contains no other string of this form.
fn launched() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (file, text) in files("gpu", "rs") {
        if !text.contains(" launch(device, ") || ["kernels", "tests"].contains(&file.as_str()) {
            continue;
        }
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            let literals = line.split('"').skip(1).step_by(2);
            names.extend(
                literals
                    .filter(|it| it.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
                    .map(str::to_owned),
            );
        }
    }
    names
}

#[test]
fn names_are_read_from_expanded_macros() {
    let source = r#"
        // extern "C" __global__ void in_a_comment(int x) {}
        #define BOTH(T, NAME) extern "C" __global__ void __launch_bounds__(256) \
            sum_##NAME(const T* x) { }
        FOR_EACH_HALF(BOTH)
        extern "C" __global__ void
        advance(int by) {}"#;
    let source: String = source.lines().flat_map(|line| [line.trim_start(), "\n"]).collect();
    assert!(defined(&preprocess(&source)).into_iter().eq(["advance", "sum_bf16", "sum_f16"]));
}

#[test]
fn every_kernel_that_is_launched_exists() {
    let (defined, launched) = (all_defined(), launched());
    assert!(
        defined.len() > 30 && launched.len() > 20,
        "{} defined, {} launched: is this the source tree?",
        defined.len(),
        launched.len()
    );
    let absent: Vec<_> = launched
        .iter()
        .filter(|name| {
            !defined.contains(*name)
                && !HALVES.iter().all(|half| defined.contains(&format!("{name}_{half}")))
        })
        .collect();
    assert!(absent.is_empty(), "no kernel is called so, or not for each of {HALVES:?}: {absent:?}");
}

#[test]
fn every_kernel_that_exists_is_launched() {
    let launched = launched();
    let family = |name: &str| name.rsplit_once('_').map_or(name, |(family, _)| family).to_owned();
    let idle: Vec<_> = all_defined()
        .into_iter()
        .filter(|name| !launched.contains(name) && !launched.contains(&family(name)))
        .collect();
    assert!(idle.is_empty(), "nothing in gpu/ launches {idle:?}");
}

#[test]
fn every_file_of_kernels_is_loaded() {
    let loader = fs::read_to_string(runner("gpu/kernels.rs")).unwrap();
    let loaded = loader
        .split("\"/")
        .skip(1)
        .filter_map(|after| after.split_once(".fatbin\""))
        .map(|(name, _)| name.to_owned());
    let loaded: Vec<_> = loaded.collect();
    let files: Vec<_> = files("kernels", "cu").into_iter().map(|(name, _)| name).collect();
    assert_eq!(loaded, files, "MODULES of gpu/kernels.rs are not the files kernels/*.cu");
}

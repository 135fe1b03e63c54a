//! Captures that arguments name by links, as in a snapshot of Hugging Face: each file is a link to
//! a blob, which is named by a hash.

use std::{
    fs::{self, File},
    io::Read as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use llmprof_analyze::parse::{self, capture_path::CapturePath};

use super::sums::llmprof;

const BLOBS: [&str; 2] = ["5af3c1d80e6b4b6f", "9bc2e07714d5a3f0"];

/// A trace of an engine without the rank in its header.
fn trace(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(name);
    let mut text = String::new();
    MultiGzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text.replace("\"distributedInfo\"", "\"other\"")
}

/// Writes a blob of `dir`, and the link to it in the snapshot.
fn add(dir: &Path, blob: &str, name: &str, bytes: &[u8]) -> PathBuf {
    let (blobs, snapshot) = (dir.join("blobs"), dir.join("snapshots/main"));
    for folder in [&blobs, &snapshot] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(blobs.join(blob), bytes).unwrap();
    let link = snapshot.join(name);
    symlink(Path::new("../../blobs").join(blob), &link).unwrap();
    link
}

/// A window that replays graphs, and the capture of one of them, packed. Returns their folder.
fn snapshot(dir: &Path) -> PathBuf {
    let packed = trace("engine-graph-capture-bs4.json.gz");
    let packed = zstd::encode_all(packed.as_bytes(), 1).unwrap();
    add(dir, BLOBS[1], "bs_4_rank3.json.zst", &packed);
    let window = trace("engine-graph-window.json.gz");
    add(dir, BLOBS[0], "window.json", window.as_bytes()).parent().unwrap().to_owned()
}

#[test]
fn names_and_ranks_of_captures_are_of_the_links_that_arguments_name() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, linked) = (snapshot(dir.path()), dir.path().join("linked"));
    symlink(&folder, &linked).unwrap();
    for folder in [folder, linked] {
        for name in ["bs_4_rank3.json.zst", "bs_4_rank3.json"] {
            let files = [folder.join("window.json"), folder.join(name)];
            let captures = parse::timeline(&files).unwrap().graph_captures;
            assert_eq!(captures.files, [name]);
            assert!(!captures.graphs.is_empty());
            for graph in &captures.graphs {
                assert_eq!((graph.file.as_str(), graph.rank), (name, Some(3)));
            }
        }
    }
}

#[test]
fn a_folder_of_links_is_analysed_and_no_blob_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let folder = snapshot(dir.path());
    let (good, report, error) = llmprof(&[folder.to_str().unwrap()]);
    assert!(good, "{error}");
    assert!(["window.json", "bs_4_rank3.json.zst"].iter().all(|it| report.contains(it)));
    assert!(!BLOBS.iter().any(|it| report.contains(it)), "{report}");
}

#[test]
fn an_error_about_a_linked_capture_names_the_link() {
    let wide: Vec<u8> = "\u{feff}[]".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (name, bytes) in [
        ("cut.json", &b"{\"traceEvents\": ["[..]),
        ("lines.json", b"{\"ph\": \"X\"}\n{\"ph\": \"X\"}\n"),
        ("other.json", b"{\"a\": 1}"),
        ("none.json", b"{\"traceEvents\": []}"),
        ("wide.json", &wide),
        ("empty.sqlite", b""),
        ("cut.sqlite", b"SQLite format 3\0"),
        ("packed.sqlite", b"BZh91AY&SY"),
        ("text.sqlite", b"text"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let link = add(dir.path(), BLOBS[0], name, bytes);
        let error = |error: parse::ParseError| llmprof_core::chain(&error);
        let timeline = error(parse::timeline(std::slice::from_ref(&link)).unwrap_err());
        let page = error(parse::ncu::read_file(CapturePath::named(&link).unwrap()).unwrap_err());
        for error in [timeline, page] {
            assert!(error.contains(name) && !error.contains(BLOBS[0]), "{error}");
        }
    }
}

//! Folders without a capture, and files of other formats, at the command line.

use super::sums::llmprof;

#[test]
fn a_folder_without_a_capture_is_refused_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let refused = || {
        let (good, _, error) = llmprof(&[dir.path().to_str().unwrap()]);
        assert!(!good && error.lines().count() == 1, "{error}");
        error
    };
    assert!(refused().contains("holds neither a run nor a capture; pass"));
    std::fs::write(dir.path().join("r.nsys-rep"), "NVIDIA Tegra Profiler Report 1.\n").unwrap();
    let report = refused();
    assert!(report.contains("(nsys export --type sqlite ") && report.contains("r.nsys-rep)"));
    for name in ["a.sqlite", "b.sqlite"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    assert!(refused().contains("holds 2 exports of nsys; pass one of them"));
}

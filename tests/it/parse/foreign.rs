//! Folders without a capture, and files of other formats, at the command line.

use std::{os::unix::fs::PermissionsExt as _, process::Command};

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
    // Without nsys on the path, and with one that fails.
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let refused_report = || {
        let llmprof = Command::new(env!("CARGO_BIN_EXE_llmprof"))
            .args(["analyze", dir.path().to_str().unwrap()])
            .env("PATH", &bin)
            .output()
            .unwrap();
        let error = String::from_utf8(llmprof.stderr).unwrap();
        assert!(!llmprof.status.success() && error.lines().count() == 1, "{error}");
        error
    };
    let report = refused_report();
    assert!(report.contains("(nsys export --type sqlite ") && report.contains("r.nsys-rep)"));
    let nsys = bin.join("nsys");
    std::fs::write(&nsys, "#!/bin/sh\necho 'Failed to open the report'; exit 1\n").unwrap();
    std::fs::set_permissions(&nsys, std::fs::Permissions::from_mode(0o755)).unwrap();
    let failed = refused_report();
    assert!(failed.contains("cannot export ") && failed.contains("Failed to open"), "{failed}");
    for name in ["a.sqlite", "b.sqlite"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    assert!(refused().contains("holds 2 exports of nsys; pass one of them"));
}

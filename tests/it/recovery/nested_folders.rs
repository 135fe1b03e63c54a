//! Folders of a run that its program nested deeper than any call accepts a path.

use std::{fs, path::Path, process::Command};

use nix::{
    fcntl::{OFlag, open, openat},
    sys::{
        signal::Signal,
        stat::{Mode, mkdirat},
    },
};

use super::survive::quick;
use crate::support::service::{LLMPROF, Service, Setup};

/// Nests 450 folders below `dir`, whose path has 4950 bytes.
fn nest(dir: &Path) {
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut folder = open(dir, flags, Mode::empty()).unwrap();
    for _ in 0..450 {
        mkdirat(&folder, "ten-bytes-", Mode::S_IRWXU).unwrap();
        folder = openat(&folder, "ten-bytes-", flags, Mode::empty()).unwrap();
    }
}

#[tokio::test]
async fn nested_folders_of_a_run_affect_neither_other_runs_nor_exit_codes_nor_its_deletion() {
    let (data, backup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let service = Service::start(data.path(), &Setup::default());
    let (nested, other) = (service.submit(quick()).await, service.submit(quick()).await);
    for id in [&nested, &other] {
        service.end(id).await;
    }
    let dir = service.run_dir(&nested);
    nest(&dir);
    for args in [&["check"][..], &["backup", backup.path().to_str().unwrap()][..]] {
        let done = Command::new(LLMPROF).args(args).arg("--data").arg(data.path()).output();
        let done = done.unwrap();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert_eq!(done.status.code(), Some(0), "{args:?}: {text}");
        assert!(!text.contains(&other), "{text}");
        let noted = text.lines().filter(|line| line.contains("has too long a path"));
        let noted: Vec<_> = noted.filter(|line| line.contains(&nested)).collect();
        assert_eq!(noted.len(), usize::from(args[0] == "check"), "{text}");
    }
    assert_eq!(service.get(&format!("/runs/{nested}/bundle")).await.status(), 200);
    assert_eq!(service.delete(&format!("/runs/{nested}")).await, 204);
    assert!(!dir.exists());
    let runs = fs::read_dir(data.path().join("runs")).unwrap();
    let names: Vec<_> = runs.map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names, [other.as_str()]);
    assert!(service.stop(Signal::SIGTERM).success());
}

//! Access to the files of a service that was started by hand.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;
use tempfile::tempdir;

use crate::support::service::{LLMPROF, Service, Setup, command};

/// Files and folders under `folder` that others than the owner may read.
fn shared(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = fs::symlink_metadata(&path).unwrap();
        if file.is_dir() {
            found.extend(shared(&path));
        }
        if !file.is_symlink() && file.permissions().mode() & 0o077 != 0 {
            found.push(path);
        }
    }
    found
}

#[tokio::test]
async fn a_runs_files_are_accessible_to_their_owner_only() {
    let parent = tempdir().unwrap();
    let data = parent.path().join("data");
    // A folder of an earlier version.
    fs::create_dir_all(data.join("samples")).unwrap();
    fs::write(data.join("audit.jsonl"), "").unwrap();
    for path in [data.clone(), data.join("samples"), data.join("audit.jsonl")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let usual = command(&data, &Setup::default());
    let mut open = Command::new("sh");
    open.args(["-c", "umask 000 && exec \"$0\" \"$@\"", LLMPROF]).args(usual.get_args());
    open.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let service = Service::spawn(&mut open, &data);
    let id = service.submit(json!({})).await;
    assert_eq!(service.end(&id).await["state"], "succeeded");
    assert_eq!(fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(shared(&data), Vec::<PathBuf>::new());
    assert!(fs::read_dir(data.join("runs").join(&id)).unwrap().count() > 5);
}

//! Writes of a service fail, one after another: with EIO, ENOSPC and EMFILE. A preloaded library
//! (`tests/fixtures/faults/faults.c`) counts the calls on files of the data folder and fails one.
//!
//! After each: what was acknowledged ends and exists, the service answers or ends with an error,
//! and at the end `llmprof check` finds database, manifests and files in order.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use memmap2::MmapMut;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::survive::{assert_in_order, quick};
use crate::support::{
    extent,
    service::{self, PATIENCE, Service, Setup, pause},
};

/// The library and its shared page.
struct Faults {
    folder: tempfile::TempDir,
    page: MmapMut,
}

impl Faults {
    fn build() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/faults/faults.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-U_FORTIFY_SOURCE", "-o"])
            .arg(folder.path().join("faults.so"))
            .arg(source)
            .arg("-ldl")
            .status();
        assert!(built.unwrap().success(), "a C compiler is needed, as for the build itself");
        let page = fs::File::create_new(folder.path().join("page")).unwrap();
        page.set_len(4096).unwrap();
        let page = fs::File::options().read(true).write(true).open(folder.path().join("page"));
        // SAFETY: only the processes of this test use the file, and it keeps its length.
        let page = unsafe { MmapMut::map_mut(&page.unwrap()) }.unwrap();
        Self { folder, page }
    }

    fn set(&mut self, field: usize, value: i64) {
        self.page[field * 8..][..8].copy_from_slice(&value.to_ne_bytes());
    }

    fn get(&self, field: usize) -> i64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.page[field * 8..][..8]);
        i64::from_ne_bytes(bytes)
    }

    /// Lets no call fail any more. The error stays for a call that fails at this moment.
    fn stop_failing(&mut self) {
        self.set(0, 0);
    }

    /// Lets the call after `calls` more fail.
    fn fail_after(&mut self, calls: i64, error: i32) {
        self.set(1, error.into());
        self.set(0, calls);
    }

    /// Lets the call after `calls` more that remove something fail.
    fn fail_removal_after(&mut self, calls: i64, error: i32) {
        self.set(3, 1);
        self.fail_after(calls, error);
    }

    /// Calls so far.
    fn seen(&self) -> i64 {
        self.get(2)
    }

    fn service(&self, data: &Path) -> Service {
        Service::spawn(&mut self.command(data), data)
    }

    fn command(&self, data: &Path) -> Command {
        fs::write(self.folder.path().join("root"), data.as_os_str().as_encoded_bytes()).unwrap();
        let mut command = service::command(data, &Setup::default());
        command
            .env("LD_PRELOAD", self.folder.path().join("faults.so"))
            .env("LLMPROF__WORKER__LEASE_S", "3")
            .env("LLMPROF__WORKER__EXHAUSTED_WAIT_S", "1");
        command
    }
}

/// Submits a run; `None` if the service refused it.
async fn submit(service: &Service) -> Option<String> {
    let mut body = quick();
    body["mode"] = "basic".into();
    let sent = service::client().post(format!("{}/runs", service.base)).json(&body).send();
    let response = sent.await.ok()?;
    if response.status() != 202 {
        return None;
    }
    let answer: Value = response.json().await.ok()?;
    Some(answer["run_id"].as_str()?.to_owned())
}

/// Fails writes of a run, one after another, in steps of the golden ratio, which spread over all.
async fn sweep(faults: &mut Faults, data: &Path, error: i32) {
    let mut service = faults.service(data);
    let before = faults.seen();
    let whole = service.end(&submit(&service).await.unwrap()).await;
    assert_eq!(whole["state"], "succeeded", "{whole:#}");
    let calls = faults.seen() - before;
    assert!(calls > 100, "the library counted {calls} calls of a run");
    let (mut acknowledged, count) = (Vec::new(), extent(6, 24));
    for fault in 0..count {
        let nth = 1 + ((fault as f64 * 0.618_034).fract() * calls as f64) as i64;
        faults.fail_after(nth, error);
        let submitted = submit(&service).await;
        if let Some(id) = &submitted {
            ended(&service, id).await;
        }
        faults.stop_failing();
        if service.child.try_wait().unwrap().is_some() {
            service = faults.service(data);
        }
        let ready = service.get("/readyz").await;
        let (status, body) = (ready.status(), ready.text().await.unwrap_or_default());
        assert_eq!(status, 200, "after call {nth} of {calls}, submitted {submitted:?}: {body}");
        // A refused submission succeeds when it is repeated.
        let id = match submitted {
            Some(id) => id,
            None => submit(&service).await.unwrap_or_else(|| panic!("refused after call {nth}")),
        };
        acknowledged.push(id);
    }
    println!("{error}: {count} of {calls} calls failed");
    for id in &acknowledged {
        let run = service.end(id).await;
        assert!(run["ended_at"].is_string(), "{run:#}");
    }
    service.stop(Signal::SIGTERM);
}

/// Waits until a run has ended, or the service.
async fn ended(service: &Service, id: &str) {
    let client = service::client();
    loop {
        let sent = client.get(format!("{}/runs/{id}", service.base)).send().await;
        let Ok(response) = sent else { return };
        let run: Value = response.json().await.unwrap_or_default();
        if run["ended_at"].is_string() {
            return;
        }
        pause().await;
    }
}

#[tokio::test]
async fn a_write_that_fails_loses_nothing_that_was_acknowledged() {
    let mut faults = Faults::build();
    for error in [nix::libc::EIO, nix::libc::ENOSPC, nix::libc::EMFILE] {
        let folder = tempfile::tempdir().unwrap();
        let data: PathBuf = folder.path().canonicalize().unwrap();
        sweep(&mut faults, &data, error).await;
        assert_in_order(&data);
    }
}

#[tokio::test]
async fn a_folder_whose_removal_failed_is_removed_later_without_a_restart() {
    let mut faults = Faults::build();
    let folder = tempfile::tempdir().unwrap();
    let data: PathBuf = folder.path().canonicalize().unwrap();
    let mut command = faults.command(&data);
    command.env("LLMPROF__RETENTION__INTERVAL_S", "1");
    let service = Service::spawn(&mut command, &data);
    let client = service::client();
    for call in 1..=3 {
        let id = submit(&service).await.unwrap();
        service.end(&id).await;
        faults.fail_removal_after(call, nix::libc::EIO);
        let deleted = client.delete(format!("{}/runs/{id}", service.base)).send().await.unwrap();
        assert_eq!(deleted.status(), 204);
        assert_eq!(faults.get(0), 0, "the call failed");
        assert_eq!(service.get(&format!("/runs/{id}")).await.status(), 404);
        let started = Instant::now();
        let is_of_run = |entry: fs::DirEntry| entry.file_name().to_string_lossy().contains(&id);
        while fs::read_dir(data.join("runs")).unwrap().flatten().any(is_of_run) {
            assert!(started.elapsed() < PATIENCE, "the folder stays");
            pause().await;
        }
    }
    assert!(service.stop(Signal::SIGTERM).success());
    assert_in_order(&data);
}

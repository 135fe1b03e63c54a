//! A real service process, for tests that talk to it over HTTP, kill it and start it again.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

pub const LLMPROF: &str = env!("CARGO_BIN_EXE_llmprof");
pub const RUNNER: &str = env!("CARGO_BIN_EXE_model-runner");

/// Folder of the models that services have in addition to the bundled ones.
const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");

/// The model that takes the least time: it reads text.
pub const MODEL: &str = "llama-mini";

/// Time limit of a wait for a run; machines that build are slow.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Between two looks at something that has no events. A test that looked without a pause would take
/// the time of what it waits for.
pub const POLL: Duration = Duration::from_millis(20);

/// See [`POLL`].
pub async fn pause() {
    tokio::time::sleep(POLL).await;
}

/// A client of services on this machine. It reads no certificates, which nothing here needs.
pub fn client() -> reqwest::Client {
    plain_client().build().unwrap()
}

/// See [`client`].
pub fn plain_client() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .tls_built_in_root_certs(false)
        // Shorter than the service keeps an idle connection: a request does not meet its end.
        .pool_idle_timeout(Duration::from_secs(5))
}

/// A service on a free loopback port; killed when dropped.
pub struct Service {
    pub child: Child,
    pub base: String,
    pub data: PathBuf,
    client: reqwest::Client,
}

/// Options of a test's service.
pub struct Setup {
    pub runner: PathBuf,
    /// `none`: as if it were not installed.
    pub nsys: PathBuf,
}

impl Default for Setup {
    fn default() -> Self {
        Self { runner: RUNNER.into(), nsys: "none".into() }
    }
}

impl Service {
    pub fn start(data: &Path, setup: &Setup) -> Self {
        Self::spawn(&mut command(data, setup), data)
    }

    /// Starts a service by `command` on the folder `data`, and waits until it has recovered.
    pub fn spawn(command: &mut Command, data: &Path) -> Self {
        let service = Self::spawn_recovering(command, data);
        while service.is_recovering() {
            std::thread::sleep(POLL);
        }
        service
    }

    /// True while the service recovers the state of the last one. One with a certificate is not
    /// asked.
    fn is_recovering(&self) -> bool {
        let Some(address) = self.base.strip_prefix("http://") else { return false };
        let Ok(mut stream) = TcpStream::connect(address) else { return false };
        let request =
            format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        let mut answer = String::new();
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_to_string(&mut answer).ok();
        answer.contains("recovering the runs of the last service")
    }

    /// Starts a service, which may still recover the state of the last one.
    pub fn spawn_recovering(command: &mut Command, data: &Path) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let base = line
            .trim()
            .strip_prefix("listening on ")
            .unwrap_or_else(|| panic!("unexpected first line {line:?}"))
            .to_owned();
        Self { child, base, data: data.to_owned(), client: client() }
    }

    pub async fn get(&self, path: &str) -> reqwest::Response {
        self.client.get(format!("{}{path}", self.base)).send().await.unwrap()
    }

    /// Sends a deletion and returns its status.
    pub async fn delete(&self, path: &str) -> u16 {
        let sent = self.client.delete(format!("{}{path}", self.base)).send().await;
        sent.unwrap().status().as_u16()
    }

    pub async fn json(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert!(response.status().is_success(), "{path}: {}", response.status());
        response.json().await.unwrap()
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let response =
            self.client.post(format!("{}{path}", self.base)).json(body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// Waits for the first series of the service; returns its id.
    pub async fn first_series(&self) -> String {
        let series = async {
            loop {
                if let Some(id) = self.json("/series").await["series"][0]["id"].as_str() {
                    return id.to_owned();
                }
                pause().await;
            }
        };
        tokio::time::timeout(PATIENCE, series).await.expect("no series appears")
    }

    /// Submits a small run with `settings` over it, and returns its id. The run is of the model
    /// that takes the least time, unless they name what is particular to one.
    pub async fn submit(&self, settings: Value) -> String {
        let mut body = json!({ "mode": "basic", "repeats": 2, "warmup": 1, "max_new_tokens": 4 });
        let names = |field: &str| settings.get(field).is_some();
        if ["model", "target", "inputs", "inputs_manifest"].into_iter().any(names) {
            body["model"] = json!("deepseek-ocr-tiny");
        } else {
            body["model"] = json!(MODEL);
            body["inputs_manifest"] = json!("inputs-text.yaml");
        }
        for (key, value) in settings.as_object().unwrap() {
            body[key] = value.clone();
        }
        let (status, answer) = self.post("/runs", &body).await;
        assert_eq!(status, 202, "{answer}");
        answer["run_id"].as_str().unwrap().to_owned()
    }

    /// Follows a run's events until one satisfies `wanted`, or the stream ends with the run;
    /// returns all that came.
    pub async fn follow(&self, id: &str, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        match tokio::time::timeout(PATIENCE, self.until(id, wanted)).await {
            Ok(events) => events,
            Err(_) => panic!("waited in vain for {:#}", self.json(&format!("/runs/{id}")).await),
        }
    }

    async fn until(&self, id: &str, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut response = self.get(&format!("/runs/{id}/events")).await;
        assert_eq!(response.status(), 200);
        let (mut events, mut buffer) = (Vec::new(), Vec::new());
        while let Some(chunk) = response.chunk().await.unwrap() {
            buffer.extend_from_slice(&chunk);
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                if let Some(data) = String::from_utf8(line).unwrap().strip_prefix("data:") {
                    events.push(serde_json::from_str(data).unwrap());
                    if wanted(events.last().unwrap()) {
                        return events;
                    }
                }
            }
        }
        events
    }

    /// Waits for the end of a run, and returns it.
    pub async fn end(&self, id: &str) -> Value {
        self.follow(id, |_| false).await;
        let run = self.json(&format!("/runs/{id}")).await;
        assert!(run["ended_at"].is_string(), "the stream of events ended before the run: {run}");
        run
    }

    pub fn run_dir(&self, id: &str) -> PathBuf {
        self.data.join("runs").join(id)
    }

    /// Sends a signal to the service and waits for its end.
    pub fn stop(mut self, signal: Signal) -> std::process::ExitStatus {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// `llmprof serve` as the tests start it: quiet, alone, with short leases. Its runner computes on
/// one thread: several wait for one another in busy loops, which take the cores of other tests.
pub fn command(data: &Path, setup: &Setup) -> Command {
    let mut command = Command::new(LLMPROF);
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .env("LLMPROF_LOG", "warn")
        .env("RAYON_NUM_THREADS", "1")
        .env("LLMPROF__SERVER__MODELS", MODELS)
        .env("LLMPROF__TOOLS__MODEL_RUNNER", &setup.runner)
        .env("LLMPROF__TOOLS__NSYS", &setup.nsys)
        .env("LLMPROF__TOOLS__NCU", "none")
        .env("LLMPROF__WORKER__DEVICES", r#"["cpu"]"#)
        .env("LLMPROF__WORKER__GRACE_S", "1");
    command
}

/// Lines of an nsys that leaves a report and an export of megabytes, which are not captures.
pub const FAKE_NSYS: &str = r#"case $1 in
--version) echo 'NVIDIA Nsight Systems version 2025.3.2.1';;
profile) while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?
    seq 400000 > "$stem.nsys-rep";;
export) while [ "$1" != --output ]; do shift; done; seq 300000 > "$2";;
esac"#;

/// A program of a few shell lines, to stand in for one that misbehaves.
pub fn script(folder: &Path, lines: &str) -> PathBuf {
    let path = folder.join("runner.sh");
    std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Processes that carry `id` in their environment.
pub fn processes_of(id: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if String::from_utf8_lossy(&environment)
            .split('\0')
            .any(|variable| variable == format!("LLMPROF_RUN_ID={id}"))
        {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

//! What a service survives when its clock is set, as by an administrator or by NTP: real processes under libfaketime. The clock that
//! nobody sets goes on, and children see the true time. Without the library these say that they were skipped, unless
//! LLMPROF_REQUIRE_FAKETIME=1.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::service::{self, LLMPROF, RUNNER, Service, Setup, script};

const DAY_S: i64 = 86_400;
/// How long a test waits for what is done by itself.
const PATIENCE: Duration = Duration::from_secs(120);

/// The wall's clock of one service.
struct WallClock {
    library: PathBuf,
    dir: tempfile::TempDir,
}

impl WallClock {
    fn find() -> Option<Self> {
        let folders = fs::read_dir("/usr/lib").unwrap().flatten().map(|it| it.path());
        let library = folders.map(|it| it.join("faketime/libfaketimeMT.so.1")).find(|it| it.exists());
        let Some(library) = library else {
            let required = std::env::var_os("LLMPROF_REQUIRE_FAKETIME").is_some_and(|value| value == "1");
            assert!(!required, "libfaketime is required here and not installed: apt-get install faketime");
            eprintln!("skipped: libfaketime is not installed (apt-get install faketime installs it)");
            return None;
        };
        let clock = Self { library, dir: tempfile::tempdir().unwrap() };
        clock.set("+0");
        Some(clock)
    }

    /// Sets the clock to the true time and this.
    fn set(&self, offset: &str) {
        let (now, next) = (self.dir.path().join("now"), self.dir.path().join("next"));
        fs::write(&next, format!("{offset}\n")).unwrap();
        fs::rename(next, now).unwrap();
    }

    /// Puts a service under this clock.
    fn govern<'a>(&self, service: &'a mut Command) -> &'a mut Command {
        service
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", self.dir.path().join("now"))
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1")
    }
}

fn quick() -> Value {
    json!({ "repeats": 1, "warmup": 0, "max_new_tokens": 2, "inputs_manifest": "inputs-small.yaml" })
}

fn on(device: &str) -> Value {
    let mut asked = quick();
    asked["device"] = device.into();
    asked
}

/// Seconds since 1970 of a time in an answer.
fn seconds(time: &Value) -> i64 {
    time.as_str().unwrap().parse::<Timestamp>().unwrap().as_second()
}

/// The run was submitted before it began, and neither it nor a step of it took less than nothing, or an hour.
fn assert_sound_times(run: &Value) {
    let took = |it: &Value| (0..3600).contains(&(seconds(&it["ended_at"]) - seconds(&it["started_at"])));
    assert!(seconds(&run["queued_at"]) <= seconds(&run["started_at"]) && took(run), "{run:#}");
    let steps = run["steps"].as_array().unwrap();
    assert!(!steps.is_empty() && steps.iter().all(took), "{run:#}");
    assert!(steps.windows(2).all(|pair| seconds(&pair[0]["ended_at"]) <= seconds(&pair[1]["started_at"])), "{run:#}");
}

/// Asks until the answer is as `wanted`.
async fn until(service: &Service, path: &str, wanted: impl AsyncFn(reqwest::Response) -> bool) {
    let begun = Instant::now();
    while !wanted(service.get(path).await).await {
        assert!(begun.elapsed() < PATIENCE, "{path} is not answered as it should be");
    }
}

#[tokio::test]
async fn set_two_days_ahead_or_back_in_a_run_the_clock_loses_doubles_and_stretches_nothing() {
    for (offset, days) in [("+2d", 2), ("-2d", -2)] {
        let Some(clock) = WallClock::find() else { return };
        let data = tempfile::tempdir().unwrap();
        let hold = data.path().join("hold");
        fs::write(&hold, "").unwrap();
        let lines = format!(
            r#"[ "$1" = run ] && echo "up at $(date +%s), ${{LD_PRELOAD-nothing}} loaded" >&2
while [ "$1" = run ] && [ -e {0} ]; do sleep 0.05; done; exec {RUNNER} "$@""#,
            hold.display()
        );
        let setup = Setup { runner: script(data.path(), &lines), ..Setup::default() };
        let mut command = service::command(data.path(), &setup);
        // A worker that has nothing to do looks for leases that ran out.
        command.env("LLMPROF__WORKER__DEVICES", r#"["cpu", "cuda:0"]"#);
        let service = Service::spawn(clock.govern(&mut command), data.path());
        let held = service.submit(on("cpu")).await;
        let up = |event: &Value| event["line"].as_str().is_some_and(|line| line.starts_with("up at "));
        let told = service.follow(&held, up).await;
        let line = told.last().unwrap()["line"].as_str().unwrap().to_owned();
        let before = service.submit(on("cpu")).await;

        clock.set(offset);
        let after = service.submit(on("cpu")).await;
        // The other worker has looked for runs, and so at leases, since the clock was set.
        let other = service.end(&service.submit(on("cuda:0")).await).await;
        assert_eq!((&other["state"], &other["attempts"]), (&json!("failed"), &json!(1)), "{other:#}");
        let queue = service.json("/queue").await;
        let waiting: Vec<_> = queue["waiting"].as_array().unwrap().iter().map(|it| it["run_id"].as_str().unwrap()).collect();
        assert_eq!((&queue["running"], waiting), (&json!([held]), vec![before.as_str(), after.as_str()]), "{queue:#}");
        let queued = async |id: &str| seconds(&service.json(&format!("/runs/{id}")).await["queued_at"]);
        let apart = queued(&after).await - queued(&before).await;
        assert!((apart - days * DAY_S).abs() < 3600, "the clock was not set: {apart} s");

        fs::remove_file(&hold).unwrap();
        for id in [&held, &before, &after] {
            let events = service.follow(id, |_| false).await;
            assert_eq!(events.iter().filter(|event| event["event"] == "attempt").count(), 1, "{events:#?}");
            assert_eq!(events.last().unwrap()["event"], "end");
            let run = service.json(&format!("/runs/{id}")).await;
            assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(1)), "{run:#}");
            assert_sound_times(&run);
            let page = service.get(&format!("/ui/runs/{id}")).await;
            assert_eq!(page.status(), 200);
        }
        for page in ["/", "/ui/storage", "/queue", "/retention", "/readyz"] {
            assert_eq!(service.get(page).await.status(), 200, "{page}");
        }
        let metrics = service.get("/metrics").await.text().await.unwrap();
        let seconds = |line: &&str| line.starts_with("llmprof_step") && line.contains("_seconds") && !line.contains("_bucket");
        let took: Vec<f64> =
            metrics.lines().filter(seconds).map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert!(!took.is_empty() && took.iter().all(|it| (0.0..3600.0).contains(it)), "{metrics}");
        // What the service starts knows nothing of its clock.
        let (at, loaded) = line.strip_prefix("up at ").unwrap().split_once(", ").unwrap();
        assert!((at.parse::<i64>().unwrap() - Timestamp::now().as_second()).abs() < 3600, "{line}");
        assert_eq!(loaded, "nothing loaded");
        assert!(service.stop(Signal::SIGTERM).success());
        let check = Command::new(LLMPROF).args(["check", "--data"]).arg(data.path()).output().unwrap();
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    }
}

#[tokio::test]
async fn a_token_ends_by_the_clock_and_a_clock_set_back_locks_nobody_out() {
    let Some(clock) = WallClock::find() else { return };
    let data = tempfile::tempdir().unwrap();
    let mut command = service::command(data.path(), &Setup::default());
    command.env("LLMPROF__ACCESS__REQUESTS_PER_S_PER_TOKEN", "5").env("LLMPROF__ACCESS__REQUESTS_PER_S_PER_ADDRESS", "0");
    let service = Service::spawn(clock.govern(&mut command), data.path());
    let arguments = ["token", "create", "--role", "viewer", "--name", "ann", "--expires", "1d", "--data"];
    let made = Command::new(LLMPROF).args(arguments).arg(data.path()).output().unwrap();
    let token = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let client = reqwest::Client::new();
    let status = async || {
        let asked = client.get(format!("{}/runs", service.base)).bearer_auth(&token).send().await.unwrap();
        let wait = asked.headers().get("retry-after").map(|it| it.to_str().unwrap().parse::<u64>().unwrap());
        (asked.status().as_u16(), wait)
    };
    // Asks until it is not told to wait: as long as a client is told to, and no longer.
    let open = async || {
        let begun = Instant::now();
        loop {
            match status().await {
                (429, wait) => assert!(wait.is_some_and(|wait| wait < 5) && begun.elapsed() < PATIENCE, "{wait:?}"),
                (other, _) => return other,
            }
        }
    };
    let limited = async || {
        let begun = Instant::now();
        while status().await.0 != 429 {
            assert!(begun.elapsed() < PATIENCE, "any rate is answered");
        }
    };
    assert_eq!(open().await, 200);
    clock.set("+2d");
    assert_eq!(open().await, 401);
    clock.set("+0");
    limited().await;
    clock.set("-2d");
    assert_eq!(open().await, 200);
    limited().await;
    assert_eq!(open().await, 200);
}

#[tokio::test]
async fn set_ahead_under_a_running_service_the_clock_removes_nothing_and_after_a_start_what_is_pinned_and_newest_stays() {
    let Some(clock) = WallClock::find() else { return };
    let data = tempfile::tempdir().unwrap();
    let mut command = service::command(data.path(), &Setup::default());
    command.env("LLMPROF__RETENTION__AS_THEY_ARE", "1").env("LLMPROF__RETENTION__EVERY_S", "1");
    clock.govern(command.env("LLMPROF__RETENTION__MOST_DAYS", "1"));
    let service = Service::spawn(&mut command, data.path());
    let run = async || {
        let id = service.submit(quick()).await;
        assert_eq!(service.end(&id).await["state"], "succeeded");
        id
    };
    let (pinned, old) = (run().await, run().await);
    assert_eq!(service.post(&format!("/runs/{pinned}/pin"), &json!({})).await.0, 200);
    clock.set("+2d");
    let newest = run().await;
    // A round that began since has packed what the newest made old.
    until(&service, "/retention", async |it| it.json::<Value>().await.unwrap()["pack"] == json!([])).await;
    let plan = service.json("/retention").await;
    let due: Vec<_> = plan["remove"].as_array().unwrap().iter().map(|it| (&it["run_id"], it["at"].is_string())).collect();
    assert_eq!(due, [(&json!(old), true)], "{plan:#}");
    assert!(service.stop(Signal::SIGTERM).success());

    let service = Service::spawn(&mut command, data.path());
    until(&service, &format!("/runs/{old}"), async |it| it.status() == 404).await;
    for stays in [&pinned, &newest] {
        assert_eq!(service.get(&format!("/runs/{stays}")).await.status(), 200);
    }
    assert!(service.stop(Signal::SIGTERM).success());
    // One that began while the clock was wrong lies ahead of a clock that was put right.
    clock.set("+0");
    let service = Service::spawn(&mut command, data.path());
    assert_eq!(service.json("/retention").await["remove"], json!([]));
    assert_eq!(service.get("/ui/storage").await.status(), 200);
}

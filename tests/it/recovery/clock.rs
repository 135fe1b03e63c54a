//! Services whose clock is set, as by an administrator or by NTP: real processes under libfaketime.
//! The monotonic clock continues, and children see the true time. Skipped without the library,
//! unless LLMPROF_REQUIRE_FAKETIME=1.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::survive::quick;
use crate::support::service::{self, LLMPROF, RUNNER, Service, Setup, pause, script};

const DAY_S: i64 = 86_400;
/// Longest wait for background work.
const PATIENCE: Duration = Duration::from_secs(120);

/// The time of day of one service.
struct WallClock {
    library: PathBuf,
    dir: tempfile::TempDir,
}

impl WallClock {
    fn find() -> Option<Self> {
        let folders = fs::read_dir("/usr/lib").unwrap().flatten().map(|it| it.path());
        let library =
            folders.map(|it| it.join("faketime/libfaketimeMT.so.1")).find(|it| it.exists());
        let Some(library) = library else {
            let required =
                std::env::var_os("LLMPROF_REQUIRE_FAKETIME").is_some_and(|value| value == "1");
            assert!(
                !required,
                "libfaketime is required here and not installed: apt-get install faketime"
            );
            eprintln!(
                "skipped: libfaketime is not installed (apt-get install faketime installs it)"
            );
            return None;
        };
        let clock = Self { library, dir: tempfile::tempdir().unwrap() };
        clock.set("+0");
        Some(clock)
    }

    /// Sets the clock to the true time plus this.
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

fn on(device: &str) -> Value {
    let mut asked = quick();
    asked["device"] = device.into();
    asked
}

/// Seconds since 1970 of a time in a response.
fn seconds(time: &Value) -> i64 {
    time.as_str().unwrap().parse::<Timestamp>().unwrap().as_second()
}

/// The run started after its submission, and its duration and its steps' durations are between 0
/// and an hour.
fn assert_sound_times(run: &Value) {
    let took =
        |it: &Value| (0..3600).contains(&(seconds(&it["ended_at"]) - seconds(&it["started_at"])));
    assert!(seconds(&run["queued_at"]) <= seconds(&run["started_at"]) && took(run), "{run:#}");
    let steps = run["steps"].as_array().unwrap();
    assert!(!steps.is_empty() && steps.iter().all(took), "{run:#}");
    assert!(
        steps
            .windows(2)
            .all(|pair| seconds(&pair[0]["ended_at"]) <= seconds(&pair[1]["started_at"])),
        "{run:#}"
    );
}

/// Polls until the response is as `wanted`.
async fn until(service: &Service, path: &str, wanted: impl AsyncFn(reqwest::Response) -> bool) {
    let started = Instant::now();
    while !wanted(service.get(path).await).await {
        assert!(started.elapsed() < PATIENCE, "{path} is not answered as it should be");
        pause().await;
    }
}

/// The run succeeded in its first attempt, with sound times and a page.
async fn assert_ran_once(service: &Service, id: &str) {
    let events = service.follow(id, |_| false).await;
    assert_eq!(events.iter().filter(|event| event["event"] == "attempt").count(), 1, "{events:#?}");
    assert_eq!(events.last().unwrap()["event"], "end");
    let run = service.json(&format!("/runs/{id}")).await;
    assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(1)), "{run:#}");
    assert_sound_times(&run);
    let page = service.get(&format!("/ui/runs/{id}")).await;
    assert_eq!(page.status(), 200);
}

/// All durations of steps in the metrics are between 0 and an hour.
async fn assert_sound_durations(service: &Service) {
    let metrics = service.get("/metrics").await.text().await.unwrap();
    let seconds = |line: &&str| {
        line.starts_with("llmprof_step") && line.contains("_seconds") && !line.contains("_bucket")
    };
    let took: Vec<f64> = metrics
        .lines()
        .filter(seconds)
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(!took.is_empty() && took.iter().all(|it| (0.0..3600.0).contains(it)), "{metrics}");
}

#[tokio::test]
async fn a_clock_set_during_a_run_loses_no_run_and_keeps_durations() {
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
        // An idle worker checks for expired leases.
        command.env("LLMPROF__WORKER__DEVICES", r#"["cpu", "cuda:0"]"#);
        let service = Service::spawn(clock.govern(&mut command), data.path());
        let held = service.submit(on("cpu")).await;
        let up =
            |event: &Value| event["line"].as_str().is_some_and(|line| line.starts_with("up at "));
        let events = service.follow(&held, up).await;
        let line = events.last().unwrap()["line"].as_str().unwrap().to_owned();
        let before = service.submit(on("cpu")).await;

        clock.set(offset);
        let after = service.submit(on("cpu")).await;
        // The other worker has checked leases since the clock was set.
        let other = service.end(&service.submit(on("cuda:0")).await).await;
        assert_eq!(
            (&other["state"], &other["attempts"]),
            (&json!("failed"), &json!(1)),
            "{other:#}"
        );
        let queue = service.json("/queue").await;
        let waiting: Vec<_> = queue["waiting"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["run_id"].as_str().unwrap())
            .collect();
        assert_eq!(
            (&queue["running"], waiting),
            (&json!([held]), vec![before.as_str(), after.as_str()]),
            "{queue:#}"
        );
        let queued =
            async |id: &str| seconds(&service.json(&format!("/runs/{id}")).await["queued_at"]);
        let apart = queued(&after).await - queued(&before).await;
        assert!((apart - days * DAY_S).abs() < 3600, "the clock was not set: {apart} s");

        fs::remove_file(&hold).unwrap();
        for id in [&held, &before, &after] {
            assert_ran_once(&service, id).await;
        }
        for page in ["/", "/ui/storage", "/queue", "/retention", "/readyz"] {
            assert_eq!(service.get(page).await.status(), 200, "{page}");
        }
        assert_sound_durations(&service).await;
        // Children of the service see the true time.
        let (at, loaded) = line.strip_prefix("up at ").unwrap().split_once(", ").unwrap();
        assert!((at.parse::<i64>().unwrap() - Timestamp::now().as_second()).abs() < 3600, "{line}");
        assert_eq!(loaded, "nothing loaded");
        assert!(service.stop(Signal::SIGTERM).success());
        let check =
            Command::new(LLMPROF).args(["check", "--data"]).arg(data.path()).output().unwrap();
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    }
}

#[tokio::test]
async fn a_token_expires_by_the_clock_and_a_clock_set_back_refuses_no_valid_token() {
    let Some(clock) = WallClock::find() else { return };
    let data = tempfile::tempdir().unwrap();
    let mut command = service::command(data.path(), &Setup::default());
    command
        .env("LLMPROF__ACCESS__REQUESTS_PER_S_PER_TOKEN", "5")
        .env("LLMPROF__ACCESS__REQUESTS_PER_S_PER_ADDRESS", "0");
    let service = Service::spawn(clock.govern(&mut command), data.path());
    let arguments =
        ["token", "create", "--role", "viewer", "--name", "ann", "--expires", "1d", "--data"];
    let made = Command::new(LLMPROF).args(arguments).arg(data.path()).output().unwrap();
    let token = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let client = service::client();
    let status = async || {
        let asked =
            client.get(format!("{}/runs", service.base)).bearer_auth(&token).send().await.unwrap();
        let wait = asked
            .headers()
            .get("retry-after")
            .map(|it| it.to_str().unwrap().parse::<u64>().unwrap());
        (asked.status().as_u16(), wait)
    };
    // Repeats after the delay that the response requests.
    let open = async || {
        let started = Instant::now();
        loop {
            match status().await {
                (429, wait) => assert!(
                    wait.is_some_and(|wait| wait < 5) && started.elapsed() < PATIENCE,
                    "{wait:?}"
                ),
                (other, _) => return other,
            }
            pause().await;
        }
    };
    let limited = async || {
        let started = Instant::now();
        while status().await.0 != 429 {
            assert!(started.elapsed() < PATIENCE, "any rate is answered");
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
async fn a_clock_set_ahead_removes_no_run_and_after_a_restart_pinned_and_newest_runs_stay() {
    let Some(clock) = WallClock::find() else { return };
    let data = tempfile::tempdir().unwrap();
    let mut command = service::command(data.path(), &Setup::default());
    command.env("LLMPROF__RETENTION__KEEP_NEWEST", "1").env("LLMPROF__RETENTION__INTERVAL_S", "1");
    clock.govern(command.env("LLMPROF__RETENTION__MAX_DAYS", "1"));
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
    // A later round has packed the run that is not the newest any more.
    until(&service, "/retention", async |it| {
        it.json::<Value>().await.unwrap()["pack"] == json!([])
    })
    .await;
    let plan = service.json("/retention").await;
    let due: Vec<_> = plan["remove"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (&it["run_id"], it["at"].is_string()))
        .collect();
    assert_eq!(due, [(&json!(old), true)], "{plan:#}");
    assert!(service.stop(Signal::SIGTERM).success());

    let service = Service::spawn(&mut command, data.path());
    until(&service, &format!("/runs/{old}"), async |it| it.status() == 404).await;
    for stays in [&pinned, &newest] {
        assert_eq!(service.get(&format!("/runs/{stays}")).await.status(), 200);
    }
    assert!(service.stop(Signal::SIGTERM).success());
    // A run of the wrong clock is in the future of the corrected clock.
    clock.set("+0");
    let service = Service::spawn(&mut command, data.path());
    assert_eq!(service.json("/retention").await["remove"], json!([]));
    assert_eq!(service.get("/ui/storage").await.status(), 200);
}

//! A browser under test: chromium, driven by chromedriver.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(180);

/// A browser with its own folder; dropped together.
pub struct Browser {
    driver: Child,
    /// Address of the driver.
    base: String,
    pub client: Client,
    folder: tempfile::TempDir,
}

impl Browser {
    /// Returns `None` if no browser is installed or required.
    pub async fn start() -> Option<Self> {
        let installed = |name: &str| {
            std::env::split_paths(&std::env::var_os("PATH").unwrap())
                .any(|dir| dir.join(name).is_file())
        };
        if !installed("chromium") || !installed("chromedriver") {
            let required =
                std::env::var_os("LLMPROF_REQUIRE_BROWSER").is_some_and(|value| value == "1");
            assert!(
                !required,
                "a browser is required here: apt-get install chromium chromium-driver"
            );
            eprintln!(
                "skipped: chromium or chromedriver is not installed (apt-get install chromium \
                    chromium-driver)"
            );
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let (driver, port) = start_driver();
        let profile = format!("--user-data-dir={}", folder.path().join("profile").display());
        let quiet = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
        ];
        let local = [
            "--disable-component-update",
            "--disable-sync",
            "--disable-quic",
            "--disable-dev-shm-usage",
            profile.as_str(),
        ];
        // Smooth scrolling would make clicks miss their target.
        let still = ["--force-prefers-reduced-motion", "--window-size=1280,1000"];
        let arguments = [&quiet[..], &local[..], &still[..]].concat();
        let options = json!({
            "args": arguments,
            "prefs": { "download.default_directory": folder.path(),
                "download.prompt_for_download": false },
        });
        let capabilities = json!({ "browserName": "chrome", "goog:chromeOptions": options });
        let mut builder = ClientBuilder::new(HttpConnector::new());
        builder.capabilities(capabilities.as_object().unwrap().clone());
        let base = format!("http://127.0.0.1:{port}");
        let client = builder.connect(&base).await.unwrap();
        Some(Self { driver, base, client, folder })
    }

    pub async fn go(&self, url: &str) {
        self.client.goto(url).await.unwrap();
    }

    /// Waits for the element.
    pub async fn see(&self, css: &str) -> fantoccini::elements::Element {
        let found = self.client.wait().at_most(TIMEOUT).for_element(Locator::Css(css)).await;
        match found {
            Ok(element) => element,
            Err(error) => panic!("{css}: {error}\n{}", self.client.source().await.unwrap()),
        }
    }

    pub async fn press(&self, css: &str) {
        self.see(css).await.click().await.unwrap();
    }

    pub async fn write(&self, css: &str, text: &str) {
        let field = self.see(css).await;
        field.clear().await.unwrap();
        field.send_keys(text).await.unwrap();
    }

    pub async fn eval(&self, script: &str) -> serde_json::Value {
        self.client.execute(script, vec![]).await.unwrap()
    }

    /// Waits until the script returns `true`.
    pub async fn until(&self, script: &str) {
        let (start, mut tick) =
            (std::time::Instant::now(), tokio::time::interval(Duration::from_millis(50)));
        while self.eval(script).await != true {
            assert!(start.elapsed() < TIMEOUT, "{script}\n{}", self.client.source().await.unwrap());
            tick.tick().await;
        }
    }

    /// Waits for a complete download of this name, and returns it.
    pub async fn downloaded(&self, name: &str) -> Vec<u8> {
        let (path, start) = (self.folder.path().join(name), std::time::Instant::now());
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        // A download gets its name when it is complete.
        while !path.exists() {
            assert!(start.elapsed() < TIMEOUT, "{name} was not downloaded");
            tick.tick().await;
        }
        fs::read(path).unwrap()
    }

    /// Emulates a screen of this width, and the color scheme `light` or `dark`.
    pub async fn emulate(&self, width: u32, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let phone = width < 600;
        let screen =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": phone });
        let id = self.client.session_id().await.unwrap().unwrap();
        for (cmd, params) in [
            ("Emulation.setEmulatedMedia", json!({ "features": features })),
            ("Emulation.setDeviceMetricsOverride", screen),
        ] {
            let at = format!("{}/session/{id}/goog/cdp/execute", self.base);
            let body = json!({ "cmd": cmd, "params": params });
            crate::support::service::client()
                .post(at)
                .json(&body)
                .send()
                .await
                .unwrap()
                .error_for_status()
                .unwrap();
        }
    }

    pub async fn end(self) {
        self.client.clone().close().await.unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.driver.kill().ok();
        self.driver.wait().ok();
    }
}

/// Starts the driver on a free port. It takes one of IPv6 and then the same of IPv4, and ends if
/// another process has that one: another start takes another.
fn start_driver() -> (Child, String) {
    const STARTS: usize = 10;
    let mut printed = String::new();
    for _ in 0..STARTS {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.unwrap();
            printed += &format!("{line}\n");
            line.split_once("started successfully on port ")
                .map(|(_, port)| port.trim_end_matches('.').to_owned())
        });
        if let Some(port) = port {
            // Drain the driver's output, so that it never blocks.
            std::thread::spawn(move || lines.for_each(drop));
            return (driver, port);
        }
        driver.wait().unwrap();
    }
    panic!("chromedriver ended at each of {STARTS} starts:\n{printed}")
}

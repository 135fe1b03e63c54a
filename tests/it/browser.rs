//! The pages in a real browser: Debian's chromium, driven by its chromedriver. Where they are not installed these say that they were
//! skipped, unless LLMPROF_REQUIRE_BROWSER=1.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use fantoccini::{Client, ClientBuilder, Locator, key::Key};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::json;

use crate::service::{LLMPROF, Service, Setup, command};

const PATIENCE: Duration = Duration::from_secs(180);

/// A browser with a folder of its own; both end when dropped.
struct Browser {
    driver: Child,
    client: Client,
    folder: tempfile::TempDir,
}

impl Browser {
    /// `None`, with a line that says so, where none is installed and none is required.
    async fn start() -> Option<Self> {
        let installed =
            |name: &str| std::env::split_paths(&std::env::var_os("PATH").unwrap()).any(|dir| dir.join(name).is_file());
        if !installed("chromium") || !installed("chromedriver") {
            let required = std::env::var_os("LLMPROF_REQUIRE_BROWSER").is_some_and(|value| value == "1");
            assert!(!required, "a browser is required here: apt-get install chromium chromium-driver");
            eprintln!("skipped: chromium or chromedriver is not installed (apt-get install chromium chromium-driver)");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut driver =
            Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.unwrap();
            line.split_once("started successfully on port ").map(|(_, port)| port.trim_end_matches('.').to_owned())
        });
        // The driver goes on writing, and must never wait for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        let profile = format!("--user-data-dir={}", folder.path().join("profile").display());
        let quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
        let local =
            ["--disable-component-update", "--disable-sync", "--disable-quic", "--disable-dev-shm-usage", profile.as_str()];
        // Where a page glides to a button, a click would miss it.
        let still = ["--force-prefers-reduced-motion", "--window-size=1280,1000"];
        let arguments = [&quiet[..], &local[..], &still[..]].concat();
        let options = json!({
            "args": arguments,
            "prefs": { "download.default_directory": folder.path(), "download.prompt_for_download": false },
        });
        let capabilities = json!({ "browserName": "chrome", "goog:chromeOptions": options });
        let mut builder = ClientBuilder::new(HttpConnector::new());
        builder.capabilities(capabilities.as_object().unwrap().clone());
        let client = builder.connect(&format!("http://127.0.0.1:{}", port.unwrap())).await.unwrap();
        Some(Self { driver, client, folder })
    }

    async fn go(&self, url: &str) {
        self.client.goto(url).await.unwrap();
    }

    /// Waits for the element, as long as a busy machine may take.
    async fn see(&self, css: &str) -> fantoccini::elements::Element {
        let found = self.client.wait().at_most(PATIENCE).for_element(Locator::Css(css)).await;
        match found {
            Ok(element) => element,
            Err(error) => panic!("{css}: {error}\n{}", self.client.source().await.unwrap()),
        }
    }

    async fn press(&self, css: &str) {
        self.see(css).await.click().await.unwrap();
    }

    async fn write(&self, css: &str, text: &str) {
        let field = self.see(css).await;
        field.clear().await.unwrap();
        field.send_keys(text).await.unwrap();
    }

    async fn eval(&self, script: &str) -> serde_json::Value {
        self.client.execute(script, vec![]).await.unwrap()
    }

    /// Waits until the script says `true`.
    async fn until(&self, script: &str) {
        let (start, mut tick) = (std::time::Instant::now(), tokio::time::interval(Duration::from_millis(50)));
        while self.eval(script).await != true {
            assert!(start.elapsed() < PATIENCE, "{script}\n{}", self.client.source().await.unwrap());
            tick.tick().await;
        }
    }

    /// Waits for a whole download of this name, and returns it.
    async fn downloaded(&self, name: &str) -> Vec<u8> {
        let (path, start) = (self.folder.path().join(name), std::time::Instant::now());
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        // A download has its name when it is whole.
        while !path.exists() {
            assert!(start.elapsed() < PATIENCE, "{name} was not downloaded");
            tick.tick().await;
        }
        fs::read(path).unwrap()
    }

    async fn end(self) {
        self.client.clone().close().await.unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.driver.kill().ok();
        self.driver.wait().ok();
    }
}

/// The names of the files in a bundle.
fn files(bundle: &[u8]) -> Vec<String> {
    let mut tar = Vec::new();
    zstd::Decoder::new(bundle).unwrap().read_to_end(&mut tar).unwrap();
    let mut archive = tar::Archive::new(tar.as_slice());
    archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect()
}

#[tokio::test]
async fn somebody_submits_the_sample_watches_it_to_the_end_reads_the_report_and_takes_the_bundle() {
    let Some(browser) = Browser::start().await else { return };
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    browser.go(&format!("{}/", service.base)).await;
    let header = browser.see("header").await;
    assert_eq!(header.css_value("background-color").await.unwrap(), "rgba(14, 18, 23, 1)", "the style sheet is let in");
    browser.see("body").await.send_keys(&char::from(Key::Tab).to_string()).await.unwrap();
    assert_eq!(browser.eval("return document.activeElement.className").await, "skip", "the keyboard comes to the content first");

    browser.see("#submit select[name=model]").await.select_by_value("deepseek-ocr-tiny").await.unwrap();
    browser.press("#submit input[value=basic]").await;
    browser.press("#submit summary").await;
    for (field, text) in [("repeats", "2"), ("warmup", "1"), ("max_new_tokens", "8"), ("labels", "from a browser")] {
        browser.write(&format!("#submit [name={field}]"), text).await;
    }
    browser.press("#submit button").await;
    browser.see("#top .badge").await;
    let page = browser.client.current_url().await.unwrap().to_string();
    let id = page.rsplit('/').next().unwrap().to_owned();
    assert_eq!(page, format!("{}/ui/runs/{id}", service.base));
    // Nothing loads this page anew but its script.
    browser.eval("window.stayed = true").await;
    browser.see("#top .badge.succeeded").await;
    browser.until("return document.querySelectorAll('#steps .badge.succeeded').length >= 4").await;
    assert_eq!(browser.eval("return window.stayed").await, true, "the page was followed, not loaded again");
    let said = "return document.getElementById('said').textContent === 'The run has ended: succeeded.'";
    browser.until(said).await;
    assert!(browser.see("#top .chip").await.text().await.unwrap().contains("from a browser"));
    browser.see(".tiles li:nth-child(3)").await;

    browser.press(".actions a[href$='/report']").await;
    assert!(browser.see("main #stages").await.text().await.unwrap().contains("prefill"));
    assert_ne!(
        browser.see("header").await.css_value("background-color").await.unwrap(),
        "rgba(0, 0, 0, 0)",
        "a report has its style"
    );
    browser.go(&page).await;
    browser.press(".actions a[href$='/bundle']").await;
    let bundle = browser.downloaded(&format!("llmprof-{id}.tar.zst")).await;
    assert!(files(&bundle).iter().any(|path| path == &format!("{id}/manifest.json")));

    browser.press("#left a[href$='/tables/operators']").await;
    browser.see(".data").await;
    browser.eval("window.stayed = true").await;
    browser.write("input[name=q]", "lm_head").await;
    browser
        .until("return [...document.querySelectorAll('.data tbody tr')].every(row => row.textContent.includes('lm_head'))")
        .await;
    browser.press(".data a[href*='sort=-calls']").await;
    browser.see(".data th[aria-sort=descending]").await;
    assert_eq!(browser.eval("return window.stayed && location.search.includes('q=lm_head')").await, true);
    browser.end().await;
}

#[tokio::test]
async fn somebody_logs_in_and_out_and_no_script_reads_the_token() {
    let Some(browser) = Browser::start().await else { return };
    let data = tempfile::tempdir().unwrap();
    let service = Service::spawn(command(data.path(), &Setup::default()).env("LLMPROF__ACCESS__TOKENS", "required"), data.path());
    let token = token(data.path());
    browser.go(&format!("{}/ui/doctor", service.base)).await;
    browser.write("input[name=token]", "llmprof_wrong").await;
    browser.press("main button").await;
    browser.see("[role=alert]").await;
    browser.write("input[name=token]", &token).await;
    browser.press("main button").await;
    browser.see(".checks").await;
    assert_eq!(browser.eval("return document.cookie").await, "");
    browser.press("header nav a[href='/']").await;
    browser.press("#submit button").await;
    browser.see("#top .badge").await;
    browser.press(".who button").await;
    browser.see("input[name=token]").await;
    browser.go(&format!("{}/", service.base)).await;
    browser.see("input[name=token]").await;
    browser.end().await;
}

fn token(data: &Path) -> String {
    let made =
        Command::new(LLMPROF).args(["token", "create", "--role", "submitter", "--name", "ann", "--data"]).arg(data).output();
    String::from_utf8(made.unwrap().stdout).unwrap().trim().to_owned()
}

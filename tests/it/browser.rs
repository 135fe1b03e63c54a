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
use llmprof::{report::data, run::RunState};
use serde_json::json;

use crate::{
    alignments::pair,
    api::Api,
    service::{LLMPROF, Service, Setup, command},
};

const PATIENCE: Duration = Duration::from_secs(180);

/// A browser with a folder of its own; both end when dropped.
struct Browser {
    driver: Child,
    /// Where the driver listens.
    base: String,
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
        let base = format!("http://127.0.0.1:{}", port.unwrap());
        let client = builder.connect(&base).await.unwrap();
        Some(Self { driver, base, client, folder })
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

    /// Looks at pages as on a screen of this width, of somebody who likes this scheme, `light` or `dark`.
    async fn look(&self, width: u32, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let phone = width < 600;
        let screen = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": phone });
        let id = self.client.session_id().await.unwrap().unwrap();
        for (cmd, params) in
            [("Emulation.setEmulatedMedia", json!({ "features": features })), ("Emulation.setDeviceMetricsOverride", screen)]
        {
            let at = format!("{}/session/{id}/goog/cdp/execute", self.base);
            let body = json!({ "cmd": cmd, "params": params });
            reqwest::Client::new().post(at).json(&body).send().await.unwrap().error_for_status().unwrap();
        }
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

#[tokio::test]
async fn somebody_pins_a_run_aligns_it_with_another_and_reads_which_checks_decided() {
    let Some(browser) = Browser::start().await else { return };
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let service = Service::start(api.data(), &Setup::default());
    let run = format!("{}/ui/runs/{e2e}", service.base);
    browser.go(&run).await;
    browser.press("#kept button").await;
    browser.see("#kept form[action$='/unpin']").await;
    assert_eq!(browser.client.current_url().await.unwrap().to_string(), format!("{run}#kept"));
    assert!(browser.see("#kept").await.text().await.unwrap().contains("Pinned"));

    browser.press("#alignments a[href*='?e2e=']").await;
    browser.see("#submit select[name=mock]").await.select_by_value(&mock).await.unwrap();
    browser.see("#submit select[name=way]").await.select_by_value("range").await.unwrap();
    browser.write("#submit [name=name]", "decoder.self_attn").await;
    browser.write("#submit [name=stage]", "prefill").await;
    browser.press("#submit summary").await;
    browser.write("#submit [name=within]", "measured").await;
    // With the keyboard: a form is sent from any of its fields.
    browser.see("#submit [name=within]").await.send_keys(&char::from(Key::Enter).to_string()).await.unwrap();
    assert_eq!(browser.see("#verdict").await.text().await.unwrap(), "pass");
    assert!(browser.see(".checked").await.text().await.unwrap().contains("latency"));
    browser.press(".actions a[href$='/report']").await;
    assert!(browser.see("main #overview").await.text().await.unwrap().contains("pass"));
    let header = browser.see("header").await.css_value("background-color").await.unwrap();
    assert_ne!(header, "rgba(0, 0, 0, 0)", "a report has its style");
    browser.go(&format!("{}/ui/alignments?run={e2e}", service.base)).await;
    assert!(browser.see("#list .badge.pass").await.text().await.unwrap().contains("pass"));
    browser.end().await;
}

#[tokio::test]
async fn pages_are_usable_by_keyboard_reader_and_weak_eyes_in_both_schemes_and_on_a_phone() {
    let Some(browser) = Browser::start().await else { return };
    let api = Api::configured(|_| ()).await;
    let [mock, e2e] = pair(&api).await;
    let id = api.align(&mock, &e2e, json!({ "range": "decoder.self_attn", "forwards": 99 })).await.json();
    let alignment = id["alignment_id"].as_str().unwrap();
    let real = real_run(&api).await;
    // Newer ones, and so small a budget that the page of what is kept has something to tell.
    api.ended().await;
    let mut command = command(api.data(), &Setup::default());
    command.env("LLMPROF__RETENTION__MOST_DAYS", "30").env("LLMPROF__RETENTION__AS_THEY_ARE", "1");
    command.env("LLMPROF__RETENTION__PACK", "false");
    let service = Service::spawn(&mut command, api.data());
    browser.go(&format!("{}/ui/alignments/{alignment}", service.base)).await;
    browser.see("#verdict").await;
    let pages = [
        "/".to_owned(),
        format!("/ui/runs/{real}"),
        format!("/ui/runs/{real}/tables/kernels"),
        format!("/runs/{real}/report"),
        format!("/ui/diff?a={real}&b={real}"),
        format!("/ui/alignments?again={alignment}"),
        format!("/ui/alignments/{alignment}"),
        format!("/alignments/{alignment}/report"),
        "/ui/storage".to_owned(),
        "/ui/doctor".to_owned(),
        "/ui/nothing".to_owned(),
    ];
    for (width, scheme) in [(1280, "light"), (390, "dark"), (390, "light"), (1280, "dark")] {
        browser.look(width, scheme).await;
        for page in &pages {
            browser.go(&format!("{}{page}", service.base)).await;
            let wrong = browser.eval(include_str!("usable.js")).await;
            assert_eq!(wrong, json!([]), "{page}, {width} px wide, {scheme}");
        }
    }
    // What has the focus is seen to have it, all the way through the form.
    browser.go(&format!("{}/", service.base)).await;
    let body = browser.see("body").await;
    let mut reached = std::collections::BTreeSet::new();
    for _ in 0..60 {
        body.send_keys(&char::from(Key::Tab).to_string()).await.unwrap();
        let focus = "const it = document.activeElement; return [it.name || it.tagName, getComputedStyle(it).outlineStyle]";
        let focus = browser.eval(focus).await;
        // Behind the last one comes the page as a whole.
        assert!(focus[0] == "BODY" || focus[1] != "none", "{focus}");
        reached.insert(focus[0].as_str().unwrap().to_owned());
    }
    for field in ["state", "model", "mode", "labels", "SUMMARY", "BUTTON"] {
        assert!(reached.contains(field), "the keyboard does not come to {field}: {reached:?}");
    }
    browser.end().await;
}

/// A run that ended with the report and the tables of a real one.
async fn real_run(api: &Api) -> String {
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    let golden = include_str!("../golden/gpu-report.json");
    let tables = data::lines(&serde_json::from_str(golden).unwrap());
    let report = include_str!("../golden/gpu-report.html");
    let power = "<svg xmlns=\"http://www.w3.org/2000/svg\"/>";
    let files = [("report.json", golden), ("report.html", report), ("tables.jsonl", &tables), ("power.svg", power)];
    api.end(&run, RunState::Succeeded, &files).await;
    id
}

fn token(data: &Path) -> String {
    let made =
        Command::new(LLMPROF).args(["token", "create", "--role", "submitter", "--name", "ann", "--data"]).arg(data).output();
    String::from_utf8(made.unwrap().stdout).unwrap().trim().to_owned()
}

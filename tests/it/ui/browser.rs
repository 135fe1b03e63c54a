//! The pages in a real browser: chromium, driven by chromedriver. Skipped if they are not
//! installed, unless LLMPROF_REQUIRE_BROWSER=1.

use std::{io::Read, path::Path, process::Command};

use fantoccini::key::Key;
use serde_json::json;

use super::driver::Browser;
use crate::{
    api::{
        alignments::pair,
        imports::FORM,
        inputs::{form, png, upload},
        router::Api,
    },
    support::service::{LLMPROF, RUNNER, Service, Setup, command, script},
};

/// The names of the files in a bundle.
fn files(bundle: &[u8]) -> Vec<String> {
    let mut tar = Vec::new();
    zstd::Decoder::new(bundle).unwrap().read_to_end(&mut tar).unwrap();
    let mut archive = tar::Archive::new(tar.as_slice());
    archive
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect()
}

/// Filters and sorts a table of the run's page without reloading.
async fn filter_and_sort_operators(browser: &Browser) {
    browser.press("#left a[href$='/tables/operators']").await;
    browser.see(".data").await;
    browser.eval("window.stayed = true").await;
    browser.write("input[name=q]", "lm_head").await;
    browser
        .until(
            "return [...document.querySelectorAll('.data tbody tr')].every(row => \
            row.textContent.includes('lm_head'))",
        )
        .await;
    browser.press(".data a[href*='sort=-calls']").await;
    browser.see(".data th[aria-sort=descending]").await;
    assert_eq!(
        browser.eval("return window.stayed && location.search.includes('q=lm_head')").await,
        true
    );
}

/// Zooms into the decode step of the run's page and searches its slices.
async fn explore(browser: &Browser) {
    let step = "document.querySelector('#explore-step')";
    assert_eq!(
        browser.eval(&format!("return {step}.scrollWidth <= {step}.clientWidth")).await,
        true
    );
    // Which labels fit at which magnification follows the measured times.
    let labels = |zoom: u32| {
        format!(
            "return [...document.querySelectorAll('#explore-step [data-fits]')].every(it => \
             (it.getAttribute('display') === 'inline') === (it.dataset.fits < {zoom}))"
        )
    };
    // One label that needs more than three times the width.
    let hide = "const label = document.querySelector('#explore-step text.inside'); \
                label.dataset.fits = 3; label.setAttribute('display', 'none'); return true";
    assert_eq!(browser.eval(hide).await, true);
    assert_eq!(browser.eval(&labels(1)).await, true);
    for zoom in [2, 4, 8, 16] {
        browser.press(".explore [data-zoom='2']").await;
        let zoomed = format!("return {step}.scrollWidth > {} * {step}.clientWidth", zoom - 1);
        browser.until(&zoomed).await;
        assert_eq!(browser.eval(&labels(zoom)).await, true);
    }
    browser.write(".explore input", "SELF_ATTN").await;
    browser
        .until(
            "const found = [...document.querySelectorAll('#explore-step .found')]; \
             return found.length > 0 && found.every(it => it.textContent.includes('self_attn')) \
             && document.querySelector('.explore output').textContent.startsWith(found.length)",
        )
        .await;
    browser.write(".explore input", "<no such>").await;
    browser
        .until("return document.querySelector('.explore output').textContent === 'none found'")
        .await;
    browser.press(".explore [data-zoom='0']").await;
    browser.until(&format!("return {step}.scrollWidth <= {step}.clientWidth")).await;
}

#[tokio::test]
async fn a_run_is_submitted_followed_and_downloaded() {
    let Some(browser) = Browser::start().await else { return };
    let data = tempfile::tempdir().unwrap();
    let (programs, opened) = (tempfile::tempdir().unwrap(), data.path().join("opened"));
    let waiting =
        format!("until [ -e {} ]; do sleep 0.05; done; exec {RUNNER} \"$@\"", opened.display());
    let runner = script(programs.path(), &waiting);
    let service = Service::start(data.path(), &Setup { runner, ..Setup::default() });
    browser.go(&format!("{}/", service.base)).await;
    let header = browser.see("header").await;
    assert_eq!(
        header.css_value("background-color").await.unwrap(),
        "rgba(14, 18, 23, 1)",
        "the style sheet is applied"
    );
    browser.see("body").await.send_keys(&char::from(Key::Tab).to_string()).await.unwrap();
    assert_eq!(
        browser.eval("return document.activeElement.className").await,
        "skip",
        "the first stop is the link to the content"
    );

    browser
        .see("#submit select[name=model]")
        .await
        .select_by_value("deepseek-ocr-tiny")
        .await
        .unwrap();
    browser.press("#submit input[value=basic]").await;
    browser.press("#submit details:last-of-type summary").await;
    for (field, text) in
        [("repeats", "2"), ("warmup", "1"), ("max_new_tokens", "8"), ("labels", "from a browser")]
    {
        browser.write(&format!("#submit [name={field}]"), text).await;
    }
    browser.press("#submit button").await;
    browser.see("#top .badge").await;
    let page = browser.client.current_url().await.unwrap().to_string();
    let id = page.rsplit('/').next().unwrap().to_owned();
    assert_eq!(page, format!("{}/ui/runs/{id}", service.base));
    // Detects a reload of the page.
    browser.eval("window.stayed = true").await;
    // The run waits for its page: what ends before the page is loaded is not announced.
    std::fs::write(opened, "").unwrap();
    browser.see("#top .badge.succeeded").await;
    browser.until("return document.querySelectorAll('#steps .badge.succeeded').length >= 4").await;
    assert_eq!(browser.eval("return window.stayed").await, true, "the page was not reloaded");
    let announced =
        "return document.getElementById('status').textContent === 'The run has ended: succeeded.'";
    browser.until(announced).await;
    assert!(browser.see("#top .chip").await.text().await.unwrap().contains("from a browser"));
    browser.see(".tiles li:nth-child(3)").await;

    browser.press(".actions a[href$='/report']").await;
    assert!(browser.see("main #stages").await.text().await.unwrap().contains("prefill"));
    assert_ne!(
        browser.see("header").await.css_value("background-color").await.unwrap(),
        "rgba(0, 0, 0, 0)",
        "the report is styled"
    );
    browser.go(&page).await;
    browser.press(".actions a[href$='/bundle']").await;
    let bundle = browser.downloaded(&format!("llmprof-{id}.tar.zst")).await;
    assert!(files(&bundle).iter().any(|path| path == &format!("{id}/manifest.json")));

    explore(&browser).await;
    filter_and_sort_operators(&browser).await;
    browser.end().await;
}

#[tokio::test]
async fn login_and_logout_hide_the_token_from_scripts() {
    let Some(browser) = Browser::start().await else { return };
    let data = tempfile::tempdir().unwrap();
    let service = Service::spawn(
        command(data.path(), &Setup::default()).env("LLMPROF__ACCESS__TOKENS", "required"),
        data.path(),
    );
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
async fn a_run_is_pinned_and_aligned() {
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
    browser.see("#submit select[name=selector]").await.select_by_value("range").await.unwrap();
    browser.write("#submit [name=name]", "decoder.self_attn").await;
    browser.write("#submit [name=stage]", "prefill").await;
    browser.press("#submit summary").await;
    browser.write("#submit [name=include_ranges]", "measured").await;
    // Enter submits the form from any field.
    browser
        .see("#submit [name=include_ranges]")
        .await
        .send_keys(&char::from(Key::Enter).to_string())
        .await
        .unwrap();
    assert_eq!(browser.see("#verdict").await.text().await.unwrap(), "pass");
    assert!(browser.see(".checked").await.text().await.unwrap().contains("latency"));
    browser.press(".actions a[href$='/report']").await;
    assert!(browser.see("main #overview").await.text().await.unwrap().contains("pass"));
    let header = browser.see("header").await.css_value("background-color").await.unwrap();
    assert_ne!(header, "rgba(0, 0, 0, 0)", "the report is styled");
    browser.go(&format!("{}/ui/alignments?run={e2e}", service.base)).await;
    assert!(browser.see("#list .badge.pass").await.text().await.unwrap().contains("pass"));
    browser.end().await;
}

/// Checks that the first columns of the list are visible without a scroll bar, and the others on
/// demand.
async fn check_list(browser: &Browser, base: &str) {
    for width in [390, 840, 1400] {
        browser.emulate(width, "light").await;
        browser.go(&format!("{base}/")).await;
        let fits = "const list = document.querySelector('#runs .scroll');
            const columns = list.querySelectorAll('thead th').length;
            return [list.scrollWidth <= list.clientWidth, columns]";
        assert_eq!(browser.eval(fits).await, json!([true, 5]), "{width} px wide");
    }
    browser.emulate(360, "dark").await;
    browser.go(&format!("{base}/?columns=all")).await;
    let fits = "const list = document.querySelector('#runs .scroll');
        return list.scrollWidth <= list.clientWidth";
    assert_eq!(browser.eval(fits).await, true, "all columns, one below the other");
    browser.emulate(1400, "light").await;
    browser.go(&format!("{base}/")).await;
    browser.press("[name=columns]").await;
    browser.until("return document.querySelectorAll('#runs thead th').length > 10").await;
}

#[tokio::test]
async fn pages_are_accessible_in_both_color_schemes_and_on_phones() {
    let Some(browser) = Browser::start().await else { return };
    let api = Api::configured(|_| ()).await;
    let [mock, e2e] = pair(&api).await;
    let settings = json!({ "range": "decoder.self_attn", "forwards": 99 });
    let id = api.align(&mock, &e2e, settings).await.json();
    let alignment = id["alignment_id"].as_str().unwrap();
    let real = real_run(&api).await;
    let images: [(&str, &[u8]); 2] = [("first.png", &png(1)), ("second.png", &png(2))];
    let body = form(&images, None, &[("prompt", "Read the page."), ("each_image", "true")]);
    let inputs = upload(&api, "", FORM, body).await.json();
    let inputs = format!("/ui/inputs/{}", inputs["inputs_id"].as_str().unwrap());
    api.store.set_baseline("main", (real.parse().ok(), None), Some("ann")).await.unwrap();
    // A newer run and a small budget, so that the storage page lists planned actions.
    api.ended().await;
    let mut command = command(api.data(), &Setup::default());
    command.env("LLMPROF__RETENTION__MAX_DAYS", "30").env("LLMPROF__RETENTION__KEEP_NEWEST", "1");
    let targets = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/targets.toml");
    command.env("LLMPROF__RETENTION__PACK", "false").env("LLMPROF__SERVER__TARGETS", targets);
    let service = Service::spawn(&mut command, api.data());
    browser.go(&format!("{}/ui/alignments/{alignment}", service.base)).await;
    browser.see("#verdict").await;
    let series = format!("/ui/series/{}", service.first_series().await);
    let pages = [
        "/".to_owned(),
        format!("/ui/runs/{real}"),
        format!("/ui/runs/{real}/tables/kernels"),
        format!("/runs/{real}/report"),
        format!("/ui/diff?a={real}&b={real}"),
        "/ui/series".to_owned(),
        "/ui/sessions".to_owned(),
        "/ui/sweeps".to_owned(),
        series,
        "/ui/baselines".to_owned(),
        "/ui/import".to_owned(),
        "/ui/commands".to_owned(),
        "/ui/commands/tiny-generate".to_owned(),
        "/ui/commands/static-files".to_owned(),
        format!("/ui/alignments?again={alignment}"),
        format!("/ui/alignments/{alignment}"),
        format!("/alignments/{alignment}/report"),
        "/ui/storage".to_owned(),
        "/ui/inputs".to_owned(),
        inputs,
        "/ui/doctor".to_owned(),
        "/ui/nothing".to_owned(),
    ];
    for (width, scheme) in [(1280, "light"), (390, "dark"), (390, "light"), (1280, "dark")] {
        browser.emulate(width, scheme).await;
        for page in &pages {
            browser.go(&format!("{}{page}", service.base)).await;
            let wrong = browser.eval(include_str!("usable.js")).await;
            assert_eq!(wrong, json!([]), "{page}, {width} px wide, {scheme}");
        }
    }
    check_list(&browser, &service.base).await;
    // Every focused element of the form has a visible outline.
    browser.go(&format!("{}/", service.base)).await;
    let body = browser.see("body").await;
    let mut reached = std::collections::BTreeSet::new();
    for _ in 0..60 {
        body.send_keys(&char::from(Key::Tab).to_string()).await.unwrap();
        let focus = "const it = document.activeElement; return [it.name || it.tagName, \
            getComputedStyle(it).outlineStyle]";
        let focus = browser.eval(focus).await;
        // After the last element, the focus returns to the body.
        assert!(focus[0] == "BODY" || focus[1] != "none", "{focus}");
        reached.insert(focus[0].as_str().unwrap().to_owned());
    }
    for field in ["state", "model", "mode", "labels", "SUMMARY", "BUTTON"] {
        assert!(reached.contains(field), "the keyboard does not reach {field}: {reached:?}");
    }
    browser.end().await;
}

/// A run that ended with a real report and tables.
async fn real_run(api: &Api) -> String {
    let golden = include_str!("../../golden/gpu-report.json");
    let tables = include_str!("../../golden/gpu-tables.jsonl");
    let report = include_str!("../../golden/gpu-report.html");
    let power = "<svg xmlns=\"http://www.w3.org/2000/svg\"/>";
    let files = [
        ("report.json", golden),
        ("report.html", report),
        ("tables.jsonl", tables),
        ("power.svg", power),
    ];
    api.ended_with(&files).await
}

fn token(data: &Path) -> String {
    let made = Command::new(LLMPROF)
        .args(["token", "create", "--role", "submitter", "--name", "ann", "--data"])
        .arg(data)
        .output();
    String::from_utf8(made.unwrap().stdout).unwrap().trim().to_owned()
}

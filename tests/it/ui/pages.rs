//! The pages of alignments and of retention: content, forms and buttons by role.

use axum::http::Method;
use llmprof_core::domain::{alignment::AlignedSide, state::RunState};
use llmprof_service::store::{AlignmentOutcome, Role};
use serde_json::{Value, json};

use crate::{
    api::{
        alignments::pair,
        router::{Api, MODEL},
    },
    ui::{
        login::{api, login},
        page::{HOST, HOSTILE, assert_contains, location, page, post},
    },
};

const UNKNOWN: &str = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";

/// Ends the next alignment with this verdict or message.
async fn end(api: &Api, found: Result<&str, &str>) {
    let claimed = api.store.claim_alignment().await.unwrap().unwrap();
    let checks = json!([{ "id": "latency", "verdict": "fail", "observed": HOSTILE,
        "threshold": HOSTILE, "decisive": true, "advice": HOSTILE }]);
    let found = found
        .map(|verdict| (verdict.parse().unwrap(), serde_json::from_value(checks).unwrap()))
        .map_err(str::to_owned);
    let dir = api.data().join("alignments").join(claimed.id.to_string());
    std::fs::create_dir_all(&dir).unwrap();
    for name in ["alignment.html", "alignment.json", "alignment.md"] {
        std::fs::write(dir.join(name), "<!doctype html>").unwrap();
    }
    let artifacts = llmprof_service::artifact::manifest::seal(
        &dir,
        u64::MAX,
        &llmprof_service::runtime::work::SlicedWork::default(),
    )
    .unwrap()
    .artifacts;
    assert!(
        api.store
            .finish_alignment(claimed.id, &AlignmentOutcome { found, artifacts })
            .await
            .unwrap()
    );
}

/// Submits the form of the page twice, and returns the address of its one alignment.
async fn submit_form(api: &Api, form: &str, [mock, e2e]: [&str; 2]) -> String {
    let (_, key) = form.split_once("name=\"key\" value=\"").unwrap();
    let body = format!(
        "mock={mock}&e2e={e2e}&selector=range&name=decoder.self_attn&stage=decode\
         &include_ranges=measured%2C+&forwards=&key={}",
        &key[..36]
    );
    let at = location(&post(api, "/ui/alignments", &[], &body).await).to_owned();
    assert_eq!(
        location(&post(api, "/ui/alignments", &[], &body).await),
        at,
        "the same form twice is one alignment"
    );
    at
}

#[tokio::test]
async fn a_form_aligns_two_runs_and_redirects_to_a_live_page() {
    let api = Api::new().await;
    let empty = page(&api.get("/ui/alignments").await, 200);
    assert!(empty.contains("No alignments yet") && empty.contains("No run has a timeline yet"));
    let [mock, e2e] = pair(&api).await;
    let without = api.submit(json!({})).await;
    let form = page(&api.get(&format!("/ui/alignments?mock={mock}")).await, 200);
    assert_eq!(
        form.matches(&format!("<option value=\"{mock}\" selected>")).count(),
        1,
        "selected as the mock only"
    );
    assert!(
        form.contains(&format!("<option value=\"{e2e}\">")) && !form.contains(&without),
        "a run without a timeline"
    );
    let at = submit_form(&api, &form, [&mock, &e2e]).await;
    let id = at.strip_prefix("/ui/alignments/").unwrap();
    let spec = api.get(&format!("/alignments/{id}")).await.json()["spec"].clone();
    assert_eq!(
        (&spec["range"], &spec["include_ranges"], &spec["stage"]),
        (&json!("decoder.self_attn"), &json!(["measured"]), &json!("decode"))
    );

    let text = page(&api.get(&at).await, 200);
    assert_contains(
        &text,
        &[
            &format!("data-events=\"/alignments/{id}/events\" data-subject=\"alignment\""),
            "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>",
            "The alignment is queued",
            &format!("href=\"/ui/runs/{mock}\""),
        ],
    );
    end(&api, Ok("inconclusive")).await;
    let text = page(&api.get(&at).await, 200);
    assert_contains(
        &text,
        &[
            "badge inconclusive",
            &format!("href=\"/alignments/{id}/report#check-latency\""),
            "alignment.json",
            "Delete this alignment",
        ],
    );
    let sides = AlignedSide::BOTH.map(|side| format!("<dt>{}</dt>", side.title()));
    assert_contains(&text, &[&sides[0], &sides[1]]);
    assert!(!text.contains("data-events") && !text.contains("http-equiv"));
    let again = page(&api.get(&format!("/ui/alignments?again={id}")).await, 200);
    assert_contains(
        &again,
        &[
            "value=\"decoder.self_attn\"",
            "value=\"range\" selected",
            "value=\"measured\"",
            &format!("name=\"previous\" value=\"{id}\""),
        ],
    );
    for path in [
        format!("/ui/runs/{mock}"),
        format!("/ui/alignments?run={e2e}&state=succeeded"),
        "/ui/alignments".to_owned(),
    ] {
        assert!(page(&api.get(&path).await, 200).contains(&format!("href=\"{at}\"")), "{path}");
    }
    assert!(!page(&api.get("/ui/alignments?state=queued").await, 200).contains(&at));
    assert_eq!(location(&post(&api, &format!("{at}/delete"), &[], "").await), "/ui/alignments");
    page(&api.get(&at).await, 404);
}

#[tokio::test]
async fn an_invalid_form_is_shown_again_with_its_values_and_the_reason() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let waiting = api.submit(json!({})).await;
    let both = format!("mock={mock}&e2e={e2e}");
    for (body, status, why) in [
        (format!("{both}&selector=range&name=&stage=keep%3Dit"), 422, "is empty; give a name"),
        (format!("{both}&name=keep%3Dit"), 422, "selects no operation"),
        (format!("{both}&stage=warmup&selector=range&name=keep%3Dit"), 422, "unknown stage"),
        (format!("{both}&forwards=few&selector=range&name=keep%3Dit"), 422, "Minimum instances"),
        (format!("mock={mock}&selector=range&name=keep%3Dit"), 422, "missing field `Whole model`"),
        (format!("mock=7&e2e={e2e}&selector=range&name=keep%3Dit"), 422, "Mock"),
        (format!("mock={UNKNOWN}&e2e={e2e}&selector=range&name=keep%3Dit"), 404, "no run"),
        (format!("mock={waiting}&e2e={e2e}&selector=range&name=keep%3Dit"), 409, "has not ended"),
        (format!("{both}&previous={UNKNOWN}&selector=range&name=keep%3Dit"), 404, "no alignment"),
    ] {
        let text = page(&post(&api, "/ui/alignments", &[], &body).await, status);
        let problem = text
            .split("role=\"alert\">")
            .nth(1)
            .unwrap_or_else(|| panic!("{body}"))
            .split("</p>")
            .next()
            .unwrap();
        assert!(problem.contains(why) && text.contains("value=\"keep=it\""), "{body}: {problem}");
    }
    for path in [
        "/ui/alignments?state=partial",
        "/ui/alignments?run=7",
        "/ui/alignments?again=7",
        "/ui/alignments/7",
    ] {
        page(&api.get(path).await, 400);
    }
    page(&api.get(&format!("/ui/alignments/{UNKNOWN}")).await, 404);
    assert_eq!(api.get("/alignments").await.json()["alignments"], json!([]));
}

#[tokio::test]
async fn external_text_of_alignments_is_escaped() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let waiver = json!([{ "pattern": HOSTILE, "reason": HOSTILE, "impact": HOSTILE,
        "expires": "2100-01-01" }]);
    let asked = json!({ "range": HOSTILE, "include_ranges": [HOSTILE], "exclude_ranges": [HOSTILE],
        "waivers": waiver });
    let id =
        api.align(&mock, &e2e, asked).await.json()["alignment_id"].as_str().unwrap().to_owned();
    end(&api, Ok("fail")).await;
    let failed =
        api.align(&mock, &e2e, json!({ "kernels": [HOSTILE] })).await.json()["alignment_id"]
            .as_str()
            .unwrap()
            .to_owned();
    end(&api, Err(HOSTILE)).await;
    let name: String = HOSTILE.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let paths = [
        "/ui/alignments",
        &format!("/ui/alignments/{id}"),
        &format!("/ui/alignments/{failed}"),
        &format!("/ui/runs/{mock}"),
        &format!("/ui/alignments?again={id}"),
    ];
    let mut texts = Vec::new();
    for path in paths {
        texts.push((path.to_owned(), page(&api.get(path).await, 200)));
    }
    let sent = post(
        &api,
        "/ui/alignments",
        &[],
        &format!("mock={name}&e2e={name}&selector={name}&name={name}&previous={name}"),
    )
    .await;
    texts.push(("the form".into(), page(&sent, 422)));
    for (path, text) in texts {
        assert!(text.contains("&lt;script&gt;alert(1)"), "{path} shows nothing of it");
        assert!(
            !text.contains("<script>") && !text.contains("<img src=x") && !text.contains("\"'>"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_role_sees_only_its_buttons_of_alignments_and_pins() {
    let api = api(|_| ()).await;
    let (ann, bob) =
        (login(&api, "ann", Role::Submitter).await, login(&api, "bob", Role::Submitter).await);
    let eve = login(&api, "eve", Role::Viewer).await;
    let see = async |path: &str, who: &str| {
        page(&api.ask(Method::GET, path, &[HOST, ("cookie", who)], "").await, 200)
    };
    let mut runs = Vec::new();
    for key in ["a", "b"] {
        let sent =
            post(&api, "/ui/runs", &[("cookie", &ann)], &format!("key={key}&model={MODEL}")).await;
        runs.push(location(&sent).rsplit('/').next().unwrap().to_owned());
        let run = api.start().await;
        api.end(&run, RunState::Succeeded, &[("nsys/run.sqlite", "SQLite")]).await;
    }
    let body = format!("mock={}&e2e={}", runs[0], runs[1]);
    page(&post(&api, "/ui/alignments", &[("cookie", &eve)], &body).await, 403);
    let at = location(&post(&api, "/ui/alignments", &[("cookie", &ann)], &body).await).to_owned();
    let run = format!("/ui/runs/{}", runs[0]);
    for (who, may) in [(&ann, true), (&bob, false), (&eve, false)] {
        assert_eq!(see(&at, who).await.contains("Delete the alignment"), may);
        assert_eq!(see(&run, who).await.contains(">Pin</button>"), may);
    }
    assert!(
        !see("/ui/alignments", &eve).await.contains("Align two runs")
            && see("/ui/alignments", &bob).await.contains("Align two runs")
    );
    for path in [format!("{at}/delete"), format!("{run}/pin"), format!("{run}/unpin")] {
        page(&post(&api, &path, &[("cookie", &bob)], "").await, 403);
        let evil = [
            ("host", "localhost:8080"),
            ("cookie", ann.as_str()),
            ("origin", "https://evil.example"),
        ];
        page(&api.ask(Method::POST, &path, &evil, "").await, 403);
    }
    assert_eq!(
        location(&post(&api, &format!("{run}/pin"), &[("cookie", &ann)], "").await),
        format!("{run}#kept")
    );
    assert!(
        see(&run, &eve).await.contains("Pinned: the run is kept as it is")
            && see("/", &eve).await.contains("pinned")
    );
    assert_eq!(
        location(&post(&api, &format!("{run}/unpin"), &[("cookie", &ann)], "").await),
        format!("{run}#kept")
    );
    assert!(see(&run, &ann).await.contains("No packing or removal is planned"));
    assert_eq!(
        location(&api.ask(Method::GET, &format!("{run}/pin"), &[HOST, ("cookie", &ann)], "").await),
        run
    );
}

#[tokio::test]
async fn pages_show_planned_packing_and_removal() {
    let api = Api::configured(|config| {
        config.retention.keep_newest = 1;
        config.retention.max_days = 30;
    })
    .await;
    let (old, kept) = (api.ended().await, api.ended().await);
    let day: String =
        api.get("/retention").await.json()["remove"][0]["at"].as_str().unwrap()[..10].to_owned();
    let text = page(&api.get("/").await, 200);
    assert_eq!(text.matches(&format!("removed on {day}")).count(), 1, "the newest stays");
    let text = page(&api.get(&format!("/ui/runs/{old}")).await, 200);
    assert_contains(
        &text,
        &[
            "Will be removed</strong> on",
            "older than 30 days then",
            "Will be packed</strong> as soon as",
            &day,
        ],
    );
    assert!(
        page(&api.get(&format!("/ui/runs/{kept}")).await, 200)
            .contains("No packing or removal is planned")
    );
    let text = page(&api.get("/ui/storage").await, 200);
    assert_eq!(
        text.matches(&format!("href=\"/ui/runs/{old}#kept\"")).count(),
        2,
        "to be packed, and then removed"
    );
    assert!(!text.contains(&kept) && text.contains("30<small> days"));
    location(&post(&api, &format!("/ui/runs/{old}/pin"), &[], "").await);
    let text = page(&api.get("/ui/storage").await, 200);
    assert!(text.contains("No run will be removed") && text.contains("No run will be packed"));
    assert_eq!(api.get(&format!("/runs/{old}")).await.json()["pinned"], Value::Bool(true));
}

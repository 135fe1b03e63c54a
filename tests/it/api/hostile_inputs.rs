//! Hostile, contradictory and interrupted uploads of inputs: refused in one line without a trace.

use std::time::Duration;

use axum::{body::Body, http::Method};
use image::ImageFormat;
use nix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::{
    imports::FORM,
    inputs::{TAR, archive, assert_nothing_left, form, image, png, upload},
    router::{Api, MODEL},
};

/// Processor time of this process, which other programs of the machine do not lengthen.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap().into()
}

/// A PNG header of this size, with a valid checksum, and no pixels.
fn png_header(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |kind: &[u8], data: &[u8]| {
        bytes.extend((data.len() as u32).to_be_bytes());
        let mut sum = flate2::Crc::new();
        sum.update(kind);
        sum.update(data);
        bytes.extend([kind, data].concat());
        bytes.extend(sum.sum().to_be_bytes());
    };
    let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
    chunk(b"IHDR", &[&size[..], &[8, 2, 0, 0, 0]].concat());
    chunk(b"IDAT", &[0x78, 0x9c, 3, 0, 0, 0, 0, 1]);
    chunk(b"IEND", &[]);
    bytes
}

/// A JPEG whose header claims this size.
fn jpeg_of_size(width: u16, height: u16) -> Vec<u8> {
    let mut bytes = image(9, ImageFormat::Jpeg);
    let frame = bytes.windows(2).position(|it| it[0] == 0xff && it[1] == 0xc0).unwrap();
    bytes[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
    bytes[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    bytes
}

/// A lossless WebP whose header claims 16384 x 16384 pixels.
fn webp_bomb() -> Vec<u8> {
    let mut bytes = image(9, ImageFormat::WebP);
    let stream = bytes.windows(4).position(|it| it == b"VP8L").unwrap() + 9;
    bytes[stream..stream + 4].copy_from_slice(&[0xff, 0xff, 0xff, 0x0f]);
    bytes
}

#[tokio::test]
async fn hostile_images_are_refused_in_one_line_without_a_trace() {
    let api = Api::new().await;
    let good = png(1);
    let cut = &good[..good.len() - 20];
    for (name, bytes, reason) in [
        ("wide.png", png_header(20_000, 1), "scale it down"),
        ("large.png", png_header(16_000, 16_000), "scale it down"),
        ("empty.png", png_header(8000, 8000), "cannot decode"),
        ("cut.png", cut.to_vec(), "cannot decode"),
        ("bomb.jpg", jpeg_of_size(65_500, 65_500), "scale it down"),
        ("cut.jpg", image(2, ImageFormat::Jpeg)[..200].to_vec(), "cannot"),
        ("bomb.webp", webp_bomb(), "cannot decode"),
        ("m.png", b"prompt: x\nimages: [{path: a.png}]".to_vec(), "neither PNG"),
        ("a.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>".to_vec(), "neither PNG"),
        ("a.gif", b"GIF89a\x01\0\x01\0\0\0\0;".to_vec(), "neither PNG"),
        ("nothing.png", vec![], "neither PNG"),
    ] {
        let body = form(&[("good.png", &good), (name, &bytes)], None, &[("prompt", "x")]);
        let answer = upload(&api, "", FORM, body).await;
        assert_eq!(answer.error(), (422, "inputs_invalid".into()), "{name}: {}", answer.text());
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(
            message.starts_with(&format!("image {name}: ")) && message.contains(reason),
            "{message}"
        );
        assert!(message.lines().count() == 1 && !message.contains(api.data().to_str().unwrap()));
        assert_nothing_left(&api, name);
    }
}

#[tokio::test]
async fn hostile_archives_are_refused_in_one_line_without_a_trace() {
    let api = Api::configured(|config| config.inputs.upload_bytes = 1 << 20).await;
    let page = png(1);
    let many: Vec<(String, &[u8])> =
        (0..10_000).map(|at| (format!("{at}.png"), &page[..0])).collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|(name, it)| (name.as_str(), *it)).collect();
    let few = &many[..600];
    let zeros = vec![0; 64 << 20];
    let bomb = zstd::encode_all(&*archive(&[("a.png", &zeros)]), 3).unwrap();
    let endless = zstd::encode_all(&*zeros, 3).unwrap();
    let mut linked = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    linked.append_link(&mut header, "a.png", "/etc/passwd").unwrap();
    let manifest = b"prompt: x\nimages: [{path: gone.png}]";
    let outside = b"prompt: x\nimages: [{path: ../a.png}]";
    let long = archive(&[("a.png", &zeros[..5000])]);
    for (name, body, status, reason) in [
        ("traversal", archive(&[("../../a.png", &page)]), 422, "without .."),
        ("absolute", archive(&[("/etc/a.png", &page)]), 422, "relative"),
        ("control", archive(&[("a\n.png", &page)]), 422, "control characters"),
        ("link", linked.into_inner().unwrap(), 422, "neither a file"),
        ("twice", archive(&[("a.png", &page), ("./a.png", &page)]), 422, "twice"),
        ("10,000 files", zstd::encode_all(&*archive(&many), 3).unwrap(), 422, "more than 512"),
        ("600 files", zstd::encode_all(&*archive(few), 3).unwrap(), 422, "more than 512"),
        ("bomb", bomb, 413, "more than 1048576 bytes"),
        ("endless", endless, 422, "no files"),
        ("missing", archive(&[("m.yaml", manifest), ("a.png", &page)]), 422, "gone.png: not in"),
        ("outside", archive(&[("s/m.yaml", outside), ("a.png", &page)]), 422, "leaves the folder"),
        ("unused", archive(&[("m.yaml", b"prompt: x"), ("a.png", &page)]), 422, "not named"),
        ("no prompt", archive(&[("a.png", &page)]), 422, "neither a manifest nor a prompt"),
        (
            "two",
            archive(&[("m.yaml", b"prompt: x"), ("n.yml", b"prompt: y")]),
            422,
            "more than one",
        ),
        ("nested", archive(&[("m.yaml", "[".repeat(100_000).as_bytes())]), 422, "brackets"),
        ("noise", vec![7; 5000], 422, "not a tar"),
        ("cut", long[..3000].to_vec(), 422, "cut short"),
        ("empty", vec![], 422, "no files"),
    ] {
        let start = cpu_time();
        let answer = upload(&api, "", TAR, body).await;
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(answer.status.as_u16(), status, "{name}: {message}");
        assert!(message.contains(reason) && message.lines().count() == 1, "{name}: {message}");
        let took = cpu_time() - start;
        assert!(took.as_secs() < 60, "{name}: {took:?} of a processor");
        assert_nothing_left(&api, name);
    }
    let large = png(1).repeat(20_000);
    let answer = upload(&api, "", FORM, form(&[("a.png", &large)], None, &[])).await;
    assert_eq!(answer.error(), (413, "body_too_large".into()));
    let fields = form(&[("a.png", &page)], None, &[("promt", "x")]);
    assert_eq!(upload(&api, "", FORM, fields).await.error(), (422, "invalid_request".into()));
    let json = [("content-type", "application/json")];
    let answer = api.ask(Method::POST, "/inputs", &json, "{}").await;
    assert_eq!(answer.error(), (415, "unsupported_media_type".into()));
    assert_nothing_left(&api, "refused forms");
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_nothing() {
    let api = Api::new().await;
    let page = png(1);
    let whole = form(&[("a.png", &page), ("b.png", &png(2))], None, &[("prompt", "x")]);
    // Every length in steps that no part of the form is a multiple of.
    for end in (0..whole.len() - 8).step_by(37) {
        let cut = whole[..end].to_vec();
        let body = Body::from_stream(tokio_stream::iter([
            Ok(cut),
            Err(std::io::Error::other("the client is gone")),
        ]));
        let answer = upload(&api, "", FORM, body).await;
        assert_eq!(answer.error(), (422, "inputs_invalid".into()), "{end}: {}", answer.text());
        assert_nothing_left(&api, &end.to_string());
    }
    assert_eq!(upload(&api, "", FORM, whole).await.status, 201);
}

#[tokio::test]
async fn a_prompt_too_long_for_an_address_belongs_into_a_form() {
    let api = Api::new().await;
    let (prompt, pages) = ("x".repeat(1001), archive(&[("a.png", &png(1))]));
    let query = format!("?prompt={prompt}");
    let answer = upload(&api, &query, TAR, pages.clone()).await;
    assert_eq!(answer.error(), (400, "invalid_parameter".into()), "{}", answer.text());
    assert_eq!(upload(&api, &query[..query.len() - 1], TAR, pages).await.status, 201);
    let whole = form(&[("a.png", &png(1))], None, &[("prompt", &prompt)]);
    assert_eq!(upload(&api, "", FORM, whole).await.status, 201);
}

#[tokio::test]
async fn fields_that_contradict_or_repeat_each_other_are_refused_by_name() {
    let api = Api::new().await;
    let page = png(1);
    let images: [(&str, &[u8]); 1] = [("a.png", &page)];
    let manifest = "prompt: x\nimages: [{path: a.png}]";
    let of_form = |manifest: Option<&str>, texts: &[(&str, &str)]| form(&images, manifest, texts);
    let tar = || archive(&[("m.yaml", manifest.as_bytes()), ("a.png", &page)]);
    let twice = String::from_utf8_lossy(&form(&[], Some(manifest), &[])).into_owned();
    let twice = twice.replace("--b--\r\n", "") + &twice;
    let (prompt, each) = (("prompt", "y"), ("each_image", "true"));
    let repeated = "given more than once; send it once";
    for (query, kind, body, reason) in [
        ("", FORM, of_form(Some(manifest), &[prompt]), "m.yaml and `prompt` contradict".into()),
        ("", FORM, of_form(Some(manifest), &[each]), "and `each_image` contradict".into()),
        ("?prompt=y", FORM, of_form(Some(manifest), &[]), "and `prompt` contradict".into()),
        ("?prompt=y", TAR, tar(), "m.yaml and `prompt` contradict".into()),
        ("?each_image=true", TAR, tar(), "m.yaml and `each_image` contradict".into()),
        ("", FORM, of_form(None, &[prompt, prompt]), format!("prompt: {repeated}")),
        ("?prompt=x", FORM, of_form(None, &[prompt]), format!("prompt: {repeated}")),
        ("", FORM, of_form(None, &[prompt, each, each]), format!("each_image: {repeated}")),
        ("?name=a", FORM, of_form(None, &[prompt, ("name", "b")]), format!("name: {repeated}")),
        ("", FORM, twice.into_bytes(), "more than one manifest".into()),
    ] {
        let answer = upload(&api, query, kind, body).await;
        assert_eq!(answer.status, 422, "{reason}: {}", answer.text());
        assert!(answer.text().contains(&reason), "{reason}: {}", answer.text());
        assert_nothing_left(&api, &reason);
    }
    let headers = [("host", "localhost:8080"), ("origin", "http://localhost:8080"), FORM];
    let fields = [prompt, ("model", MODEL)];
    let body = of_form(Some(manifest), &fields);
    let of_page = api.ask(Method::POST, "/ui/runs", &headers, body).await;
    assert_eq!(of_page.status, 422, "{}", of_page.text());
    let named = [("name", "pages"), ("each_image", "false")];
    let named = upload(&api, "", FORM, of_form(Some(manifest), &named)).await;
    assert_eq!((named.status.as_u16(), &named.json()["name"]), (201, &json!("pages")));
    let named = upload(&api, "?name=pages", TAR, tar()).await;
    assert_eq!(named.status, 200, "a manifest has a name in lists: {}", named.text());
}

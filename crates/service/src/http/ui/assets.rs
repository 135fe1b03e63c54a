//! Style sheet, script and icon of the pages, named by the hash of their content.
//!
//! Browsers cache them forever and request a new version by its new name.

use std::sync::LazyLock;

use axum::{
    extract::Path,
    http::header,
    response::{IntoResponse, Response},
};
use llmprof_core::domain::hex::hex;
use sha2::{Digest, Sha256};

use super::view::{ICON, SCRIPT, STYLES};
use crate::http::error::{ApiError, ErrorCode};

/// Folder of the assets, which need no token.
pub(super) const ASSETS: &str = "/ui/assets/";

/// A file of the pages.
struct Asset {
    path: String,
    media_type: &'static str,
    text: String,
}

impl Asset {
    fn of(extension: &str, media_type: &'static str, text: String) -> Self {
        let hash = hex(&Sha256::digest(&text)[..8]);
        Self { path: format!("{ASSETS}page.{hash}.{extension}"), media_type, text }
    }
}

static STYLE_ASSET: LazyLock<Asset> =
    LazyLock::new(|| Asset::of("css", "text/css; charset=utf-8", STYLES.concat()));
static SCRIPT_ASSET: LazyLock<Asset> =
    LazyLock::new(|| Asset::of("js", "text/javascript; charset=utf-8", SCRIPT.to_owned()));

static ICON_ASSET: LazyLock<Asset> =
    LazyLock::new(|| Asset::of("svg", "image/svg+xml", ICON.to_owned()));

/// Path of the icon.
pub fn icon() -> &'static str {
    &ICON_ASSET.path
}

/// Path of the style sheet.
pub fn style() -> &'static str {
    &STYLE_ASSET.path
}

/// Path of the script.
pub fn script() -> &'static str {
    &SCRIPT_ASSET.path
}

pub async fn asset(Path(name): Path<String>) -> Result<Response, ApiError> {
    let path = format!("{ASSETS}{name}");
    let found =
        [&*STYLE_ASSET, &*SCRIPT_ASSET, &*ICON_ASSET].into_iter().find(|asset| asset.path == path);
    let missing = || {
        let message = format!("no asset {path}; reload the page");
        ApiError::new(ErrorCode::RouteNotFound, message)
    };
    let asset = found.ok_or_else(missing)?;
    let forever = "public, max-age=31536000, immutable";
    Ok((
        [(header::CONTENT_TYPE, asset.media_type), (header::CACHE_CONTROL, forever)],
        asset.text.as_str(),
    )
        .into_response())
}

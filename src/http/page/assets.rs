//! The style sheet and the script of the pages, each under a name that changes with what it holds.
//!
//! So a browser keeps them for ever, and a new version is asked for by a new name.

use std::sync::LazyLock;

use axum::{
    extract::Path,
    http::header,
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};

use super::{
    ASSETS, PageError,
    view::{SCRIPT, STYLES},
};
use crate::http::error::{ApiError, ErrorCode};

/// A file of the pages.
struct Asset {
    /// Where it is.
    path: String,
    media_type: &'static str,
    text: String,
}

impl Asset {
    fn of(extension: &str, media_type: &'static str, text: String) -> Self {
        let hash: String = Sha256::digest(&text).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { path: format!("{ASSETS}page.{hash}.{extension}"), media_type, text }
    }
}

static STYLE_ASSET: LazyLock<Asset> = LazyLock::new(|| Asset::of("css", "text/css; charset=utf-8", STYLES.concat()));
static SCRIPT_ASSET: LazyLock<Asset> = LazyLock::new(|| Asset::of("js", "text/javascript; charset=utf-8", SCRIPT.to_owned()));

/// Where the style sheet is.
pub fn style() -> &'static str {
    &STYLE_ASSET.path
}

/// Where the script is.
pub fn script() -> &'static str {
    &SCRIPT_ASSET.path
}

pub async fn asset(Path(name): Path<String>) -> Result<Response, PageError> {
    let path = format!("{ASSETS}{name}");
    let found = [&*STYLE_ASSET, &*SCRIPT_ASSET].into_iter().find(|asset| asset.path == path);
    let missing = || ApiError::new(ErrorCode::RouteNotFound, format!("there is no {path}; reload the page that names it"));
    let asset = found.ok_or_else(missing)?;
    let kept = "public, max-age=31536000, immutable";
    Ok(([(header::CONTENT_TYPE, asset.media_type), (header::CACHE_CONTROL, kept)], asset.text.as_str()).into_response())
}

//! The key by which a client repeats a submission.

use axum::http::HeaderMap;
use sha2::{Digest, Sha256};

use crate::{
    http::error::{ApiError, ErrorCode},
    store::IdempotencyKey,
};

/// Reads the header `Idempotency-Key`.
pub fn key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let valid = |key: &&str| {
        (1..=255).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let key = value.to_str().ok().filter(valid).map(|key| Some(key.to_owned()));
    key.ok_or_else(|| {
        let message = "invalid Idempotency-Key; expected 1 to 255 visible ASCII characters";
        ApiError::new(ErrorCode::InvalidParameter, message)
    })
}

/// The key with the hash of the body that it stands for.
pub fn of_body(key: Option<String>, body: &[u8]) -> Option<IdempotencyKey> {
    key.map(|key| IdempotencyKey { key, body_sha256: Sha256::digest(body).into() })
}

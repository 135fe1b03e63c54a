//! Signatures of messages by Standard Webhooks 1.0: HMAC-SHA256 with a shared secret.
//!
//! The secret appears in no log and in no error.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use hmac::{Hmac, KeyInit, Mac};
use llmprof_core::domain::bounded_read::read_bounded_text;
use sha2::Sha256;

/// Prefix of a secret in its file.
const PREFIX: &str = "whsec_";
const MIN_BYTES: usize = 24;
const MAX_BYTES: usize = 64;
/// Maximum size of the file, bytes.
const MAX_FILE: u64 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("setting webhooks.secret_file is empty; messages are signed, so it must name a file")]
    NoFile,
    #[error("setting webhooks.secret_file: cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "setting webhooks.secret_file: {} is not a secret of Standard Webhooks; write {PREFIX} and \
         the base64 of {MIN_BYTES} to {MAX_BYTES} random bytes",
        path.display()
    )]
    Format { path: PathBuf },
}

/// The secret of signatures.
#[derive(Clone)]
pub struct WebhookSecret(Vec<u8>);

impl WebhookSecret {
    /// Reads the secret in the file at `path`.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        if path.as_os_str().is_empty() {
            return Err(SecretError::NoFile);
        }
        let text = File::open(path)
            .and_then(|file| read_bounded_text(file, MAX_FILE))
            .map_err(|source| SecretError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).ok_or_else(|| SecretError::Format { path: path.to_owned() })
    }

    fn parse(text: &str) -> Option<Self> {
        let key = BASE64.decode(text.trim().strip_prefix(PREFIX)?).ok()?;
        (MIN_BYTES..=MAX_BYTES).contains(&key.len()).then_some(Self(key))
    }

    /// The header `webhook-signature` of a message: of its id, its time in seconds, and its body.
    pub fn sign(&self, id: &str, timestamp: &str, body: &str) -> String {
        // HMAC accepts keys of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else {
            return String::new();
        };
        for part in [id, ".", timestamp, ".", body] {
            mac.update(part.as_bytes());
        }
        format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_reference_libraries() {
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let signature =
            secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_file_without_an_end_is_not_a_secret() {
        let refused = WebhookSecret::read(Path::new("/dev/zero")).err().unwrap().to_string();
        assert!(refused.contains("cannot read /dev/zero"), "{refused}");
    }

    #[test]
    fn secrets_of_another_form_or_length_are_refused() {
        let of_bytes = |count: usize| format!("{PREFIX}{}", BASE64.encode(vec![7; count]));
        for text in ["", "a secret of more than sixteen bytes", "whsec_", "whsec_not base64"] {
            assert!(WebhookSecret::parse(text).is_none(), "{text}");
        }
        assert!(WebhookSecret::parse("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").is_none(), "no prefix");
        let accepted =
            [23, 24, 64, 65].map(|count| WebhookSecret::parse(&of_bytes(count)).is_some());
        assert_eq!(accepted, [false, true, true, false]);
    }
}

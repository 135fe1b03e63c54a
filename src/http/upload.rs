//! Bodies that are files: written to a folder of their own as they arrive, a piece at a time, within limits.
//!
//! Never holds a file in memory, and uses no name from outside as a path. What was not kept when its request ends is gone.

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::{Body, BodyDataStream, Bytes};
use sha2::{Digest, Sha256};
use tokio::{fs::File, io::AsyncWriteExt, time::Instant};
use tokio_stream::{Stream, StreamExt};

use super::error::{ApiError, ErrorCode};
use crate::artifact::intake::{IntakeError, LOOK, Limits};

/// Longest silence in the middle of a body.
const SILENCE: Duration = Duration::from_secs(30);
/// Longest that a body may take.
const LONGEST: Duration = Duration::from_secs(3600);
/// Bytes of a form that may arrive between two pieces of its parts: their headers.
const MAX_UNREAD: u64 = 1 << 20;
/// Bytes of a form around its files.
const FORM: u64 = 1 << 16;
/// Most bytes of a form that are handed on at once.
const PIECE: usize = 1 << 16;
/// Longest text of a form.
const MAX_TEXT: usize = 4096;
/// Most parts of a form.
const MAX_PARTS: usize = 128;

/// A file that has arrived.
#[derive(Debug)]
pub struct Arrived {
    /// As its sender called it, without folders; empty where it bears no name.
    pub name: String,
    pub path: PathBuf,
    pub sha256: [u8; 32],
}

/// What a body held.
#[derive(Debug, Default)]
pub struct Parts {
    pub files: Vec<Arrived>,
    /// Names and texts.
    pub fields: Vec<(String, String)>,
}

/// Takes one body.
#[derive(Debug)]
pub struct Upload {
    dir: PathBuf,
    limits: Limits,
    taken: u64,
    looked: u64,
    until: Instant,
}

/// The last part of a path of any system, without control characters, cut to what a page can show.
pub fn plain_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let kept: String = last.chars().filter(|c| !c.is_control()).take(200).collect();
    if matches!(kept.trim(), "." | "..") { String::new() } else { kept }
}

fn unfit(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::CaptureInvalid, message)
}

impl Upload {
    /// Takes a body of `length` bytes, where that is told, into the folder `dir`.
    pub fn begin(dir: &Path, limits: Limits, length: Option<u64>, is_form: bool) -> Result<Self, ApiError> {
        let around = if is_form { FORM } else { 0 };
        limits.hold(length.unwrap_or_default().saturating_sub(around))?;
        limits.have_room(dir, length.unwrap_or_default())?;
        Ok(Self { dir: dir.to_owned(), limits, taken: 0, looked: 0, until: Instant::now() + LONGEST })
    }

    /// Takes a body that is one file.
    pub async fn file(mut self, body: Body) -> Result<Parts, ApiError> {
        let (path, mut file) = self.create(0).await?;
        let mut stream = body.into_data_stream();
        let mut hash = Sha256::new();
        while let Some(bytes) = self.before_its_time(stream.next()).await? {
            let bytes = bytes.map_err(|_| unfit("the body broke off"))?;
            hash.update(&bytes);
            self.write(&mut file, &bytes).await?;
        }
        file.flush().await.map_err(|error| ApiError::internal(&error))?;
        Ok(Parts { files: vec![Arrived { name: String::new(), path, sha256: hash.finalize().into() }], fields: vec![] })
    }

    /// Takes a form: parts called `file` are files, the others texts.
    pub async fn form(mut self, body: Body, boundary: String) -> Result<Parts, ApiError> {
        let unread = Arc::new(AtomicU64::new(0));
        let body = Piecewise { inner: body.into_data_stream(), rest: Bytes::new(), pause: false, unread: Arc::clone(&unread) };
        let (mut form, mut parts) = (multer::Multipart::new(body, boundary), Parts::default());
        let broken = |error: multer::Error| unfit(format!("the form is broken: {}", crate::chain(&error)));
        while let Some(mut part) = self.before_its_time(form.next_field()).await?.map_err(broken)? {
            if parts.files.len() + parts.fields.len() >= MAX_PARTS {
                return Err(unfit(format!("the form has more than {MAX_PARTS} parts")));
            }
            let name = part.name().unwrap_or_default().to_owned();
            if name == "file" {
                let (path, mut file) = self.create(parts.files.len()).await?;
                let (name, mut hash) = (plain_name(part.file_name().unwrap_or_default()), Sha256::new());
                while let Some(bytes) = self.before_its_time(part.chunk()).await?.map_err(broken)? {
                    unread.store(0, Ordering::Relaxed);
                    hash.update(&bytes);
                    self.write(&mut file, &bytes).await?;
                }
                file.flush().await.map_err(|error| ApiError::internal(&error))?;
                parts.files.push(Arrived { name, path, sha256: hash.finalize().into() });
            } else {
                let mut text = Vec::new();
                while let Some(bytes) = self.before_its_time(part.chunk()).await?.map_err(broken)? {
                    unread.store(0, Ordering::Relaxed);
                    text.extend_from_slice(&bytes);
                    if text.len() > MAX_TEXT {
                        return Err(unfit(format!("{name:.40}: a text of the form has at most {MAX_TEXT} bytes")));
                    }
                }
                let text = String::from_utf8(text).map_err(|_| unfit(format!("{name:.40}: not UTF-8")))?;
                parts.fields.push((name, text));
            }
            unread.store(0, Ordering::Relaxed);
        }
        Ok(parts)
    }

    async fn create(&self, number: usize) -> Result<(PathBuf, File), ApiError> {
        let path = self.dir.join(number.to_string());
        let file = File::create_new(&path).await.map_err(|error| ApiError::internal(&error))?;
        Ok((path, file))
    }

    async fn write(&mut self, file: &mut File, bytes: &Bytes) -> Result<(), ApiError> {
        self.taken += bytes.len() as u64;
        self.limits.hold(self.taken)?;
        if self.taken - self.looked >= LOOK {
            self.limits.have_room(&self.dir, 0)?;
            self.looked = self.taken;
        }
        file.write_all(bytes).await.map_err(|error| ApiError::internal(&error))
    }

    /// What comes next, unless it takes too long.
    async fn before_its_time<T>(&self, next: impl Future<Output = T>) -> Result<T, ApiError> {
        let late = |_| {
            let message = format!("nothing arrived for {} seconds, or not all within an hour", SILENCE.as_secs());
            ApiError::new(ErrorCode::BodyTimeout, message)
        };
        tokio::time::timeout_at(self.until.min(Instant::now() + SILENCE), next).await.map_err(late)
    }
}

impl From<IntakeError> for ApiError {
    fn from(error: IntakeError) -> Self {
        match error {
            IntakeError::TooLarge { .. } => Self::new(ErrorCode::BodyTooLarge, format!("the capture: {error}")),
            IntakeError::NoRoom { .. } => Self::new(ErrorCode::DiskFull, error.to_string()).retry_after(60),
            IntakeError::Unfit(_) => Self::new(ErrorCode::CaptureInvalid, error.to_string()),
            IntakeError::Keep { .. } => Self::internal(&error),
        }
    }
}

/// Hands a body on a piece at a time: whoever reads a form keeps in memory all that is ready, and all up to the end of a part's header.
struct Piecewise {
    inner: BodyDataStream,
    rest: Bytes,
    pause: bool,
    unread: Arc<AtomicU64>,
}

impl Stream for Piecewise {
    type Item = Result<Bytes, axum::BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.pause) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.rest.is_empty() {
            self.rest = match ready!(Pin::new(&mut self.inner).poll_next(cx)) {
                Some(Ok(bytes)) => bytes,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            };
        }
        self.pause = true;
        let most = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(most);
        let unread = self.unread.fetch_add(most as u64, Ordering::Relaxed) + most as u64;
        Poll::Ready(Some(if unread > MAX_UNREAD { Err("a header of a part has no end".into()) } else { Ok(piece) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_nowhere() {
        for (name, plain) in [
            ("a.sqlite", "a.sqlite"),
            ("../../etc/passwd", "passwd"),
            ("C:\\captures\\b.sqlite", "b.sqlite"),
            ("..", ""),
            ("a\nb\u{7f}", "ab"),
        ] {
            assert_eq!(plain_name(name), plain);
        }
    }
}

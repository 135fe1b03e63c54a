//! Bodies that are files: written to a folder in chunks as they arrive, within limits.
//!
//! A file is never held in memory, and a client's file name is never used as a path.

mod chunks;
mod pace;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::body::{Body, Bytes};
use llmprof_core::domain::file_name::plain_name;
use sha2::{Digest, Sha256};
use tokio::{
    fs::File,
    io::AsyncWriteExt,
    time::{Instant, sleep_until},
};
use tokio_stream::StreamExt;

use self::chunks::FormChunks;
pub use self::pace::UploadPace;
use crate::{
    artifact::import_staging::{IntakeError, LOOK, UploadLimits},
    http::error::{ApiError, ErrorCode},
};

/// Longest time of a whole body.
const MAX_TIME: Duration = Duration::from_secs(3600);
/// Bytes of a form around its files.
const FORM_OVERHEAD: u64 = 1 << 16;

/// Rules of a form, and the errors of its files.
#[derive(Debug, Clone, Copy)]
pub struct UploadRules {
    /// Names of the parts that are files; the others are texts.
    pub files: &'static [&'static str],
    pub max_parts: usize,
    /// Bytes of a text field.
    pub max_text: usize,
    /// Code of an upload that is refused for its content.
    pub invalid: ErrorCode,
    /// The uploaded thing in messages, and the setting that limits its size.
    pub subject: &'static str,
    pub size_setting: &'static str,
}

/// A received file.
#[derive(Debug)]
pub struct ReceivedFile {
    /// Name of the form's part; empty for a body that is one file.
    pub part: String,
    /// The client's name without folders; may be empty.
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
    pub sha256: [u8; 32],
}

/// Files and text fields of a body.
#[derive(Debug, Default)]
pub struct ReceivedBody {
    pub files: Vec<ReceivedFile>,
    /// Names and texts.
    pub fields: Vec<(String, String)>,
}

/// Receiver of one body.
#[derive(Debug)]
pub struct Upload {
    folder: PathBuf,
    rules: UploadRules,
    limits: UploadLimits,
    pace: UploadPace,
    received_bytes: u64,
    /// Bytes received at the last check of the free disk space.
    checked_bytes: u64,
    deadline: Instant,
}

/// Sets a field of a form that may be given once, in its query or as a part.
pub fn set_once<T>(field: &mut Option<T>, name: &str, value: T) -> Result<(), String> {
    match field.replace(value) {
        Some(_) => Err(format!("{name}: given more than once; send it once")),
        None => Ok(()),
    }
}

impl UploadRules {
    fn invalid(&self, message: impl Into<String>) -> ApiError {
        ApiError::new(self.invalid, message)
    }

    fn malformed(&self, error: multer::Error) -> ApiError {
        self.invalid(format!("malformed form: {}", llmprof_core::chain(&error)))
    }

    /// The error of a refused upload.
    pub fn refuse(&self, error: IntakeError) -> ApiError {
        let Self { subject, size_setting, .. } = self;
        match error {
            IntakeError::TooLarge { max } => {
                let message = format!("{subject}: more than {max} bytes ({size_setting})");
                ApiError::new(ErrorCode::BodyTooLarge, message)
            }
            IntakeError::NoRoom { .. } => {
                ApiError::new(ErrorCode::DiskFull, error.to_string()).retry_after(60)
            }
            IntakeError::Unfit(_) => self.invalid(error.to_string()),
            IntakeError::Keep { .. } => ApiError::internal(&error),
            IntakeError::Stopped => ApiError::new(ErrorCode::Unavailable, error.to_string()),
        }
    }
}

impl Upload {
    /// A receiver that writes to `folder`. `length` is the announced length of the body.
    pub fn new(
        folder: &Path,
        (rules, limits): (UploadRules, UploadLimits),
        pace: UploadPace,
        length: Option<u64>,
        is_form: bool,
    ) -> Result<Self, ApiError> {
        let overhead = if is_form { FORM_OVERHEAD } else { 0 };
        let length = length.unwrap_or_default();
        limits
            .hold(length.saturating_sub(overhead))
            .and_then(|()| limits.have_room(folder, length))
            .map_err(|error| rules.refuse(error))?;
        Ok(Self {
            folder: folder.to_owned(),
            rules,
            limits,
            pace,
            received_bytes: 0,
            checked_bytes: 0,
            deadline: Instant::now() + MAX_TIME,
        })
    }

    /// Receives a body that is one file.
    pub async fn receive_file(mut self, body: Body) -> Result<ReceivedBody, ApiError> {
        let (path, mut file) = self.create_file(0).await?;
        let mut stream = body.into_data_stream();
        let mut hash = Sha256::new();
        while let Some(bytes) = self.in_time(stream.next()).await? {
            let bytes = bytes.map_err(|_| self.rules.invalid("the body ended early"))?;
            hash.update(&bytes);
            self.write(&mut file, &bytes).await?;
        }
        file.flush().await.map_err(|error| ApiError::internal(&error))?;
        let (part, name) = (String::new(), String::new());
        let (bytes, sha256) = (self.received_bytes, hash.finalize().into());
        let file = ReceivedFile { part, name, path, bytes, sha256 };
        Ok(ReceivedBody { files: vec![file], fields: vec![] })
    }

    /// Receives a form with the files and texts of its rules.
    pub async fn receive_form(
        mut self,
        body: Body,
        boundary: String,
    ) -> Result<ReceivedBody, ApiError> {
        let unparsed = Arc::new(AtomicU64::new(0));
        let chunks = FormChunks::new(body, Arc::clone(&unparsed));
        let mut form = multer::Multipart::new(chunks, boundary);
        let mut received = ReceivedBody::default();
        let rules = self.rules;
        let malformed = |error| rules.malformed(error);
        while let Some(part) = self.in_time(form.next_field()).await?.map_err(malformed)? {
            if received.files.len() + received.fields.len() >= rules.max_parts {
                let message = format!("the form has more than {} parts", rules.max_parts);
                return Err(rules.invalid(message));
            }
            let name = part.name().unwrap_or_default().to_owned();
            if rules.files.contains(&name.as_str()) {
                let number = received.files.len();
                received.files.push(self.receive_file_part(part, number, &unparsed).await?);
            } else {
                let text = self.receive_text_part(part, &name, &unparsed).await?;
                received.fields.push((name, text));
            }
            unparsed.store(0, Ordering::Relaxed);
        }
        Ok(received)
    }

    async fn receive_file_part(
        &mut self,
        mut part: multer::Field<'_>,
        number: usize,
        unparsed: &AtomicU64,
    ) -> Result<ReceivedFile, ApiError> {
        let (path, mut file) = self.create_file(number).await?;
        let name = plain_name(part.file_name().unwrap_or_default());
        let (before, rules) = (self.received_bytes, self.rules);
        let mut hash = Sha256::new();
        while let Some(bytes) =
            self.in_time(part.chunk()).await?.map_err(|error| rules.malformed(error))?
        {
            unparsed.store(0, Ordering::Relaxed);
            hash.update(&bytes);
            self.write(&mut file, &bytes).await?;
        }
        file.flush().await.map_err(|error| ApiError::internal(&error))?;
        let (part, bytes) =
            (part.name().unwrap_or_default().to_owned(), self.received_bytes - before);
        Ok(ReceivedFile { part, name, path, bytes, sha256: hash.finalize().into() })
    }

    async fn receive_text_part(
        &mut self,
        mut part: multer::Field<'_>,
        name: &str,
        unparsed: &AtomicU64,
    ) -> Result<String, ApiError> {
        let (mut text, rules) = (Vec::new(), self.rules);
        while let Some(bytes) =
            self.in_time(part.chunk()).await?.map_err(|error| rules.malformed(error))?
        {
            unparsed.store(0, Ordering::Relaxed);
            self.pace.add_bytes(bytes.len());
            text.extend_from_slice(&bytes);
            if text.len() > rules.max_text {
                let max = rules.max_text;
                let files = rules.files.join(" or ");
                let message = format!(
                    "{name:.40}: a text field has at most {max} bytes; a file is sent as {files}"
                );
                return Err(rules.invalid(message));
            }
        }
        String::from_utf8(text).map_err(|_| rules.invalid(format!("{name:.40}: not UTF-8")))
    }

    async fn create_file(&self, number: usize) -> Result<(PathBuf, File), ApiError> {
        let path = self.folder.join(number.to_string());
        let file = File::create_new(&path).await.map_err(|error| ApiError::internal(&error))?;
        Ok((path, file))
    }

    async fn write(&mut self, file: &mut File, bytes: &Bytes) -> Result<(), ApiError> {
        self.pace.add_bytes(bytes.len());
        self.received_bytes += bytes.len() as u64;
        let refuse = |error| self.rules.refuse(error);
        self.limits.hold(self.received_bytes).map_err(refuse)?;
        if self.received_bytes - self.checked_bytes >= LOOK {
            self.limits.have_room(&self.folder, 0).map_err(refuse)?;
            self.checked_bytes = self.received_bytes;
        }
        file.write_all(bytes).await.map_err(|error| ApiError::internal(&error))
    }

    /// Waits for `next`, as long as the client keeps its pace and until the deadline.
    async fn in_time<T>(&mut self, next: impl Future<Output = T>) -> Result<T, ApiError> {
        let mut since = Instant::now();
        let next = tokio::select! {
            biased;
            next = next => Ok(next),
            message = too_slow(&mut self.pace, &mut since, self.deadline) => Err(message),
        };
        self.pace.add_wait(since.elapsed());
        next.map_err(|message| ApiError::new(ErrorCode::BodyTimeout, message))
    }
}

/// Waits until a client was too slow, or its time is over; returns the reason. The wait from
/// `since` is not yet part of the pace.
async fn too_slow(pace: &mut UploadPace, since: &mut Instant, deadline: Instant) -> String {
    loop {
        sleep_until((*since + pace.left()).min(deadline)).await;
        pace.add_wait(since.elapsed());
        *since = Instant::now();
        if let Err(message) = pace.check() {
            return message;
        }
        if *since >= deadline {
            return format!("the upload took more than {} seconds", MAX_TIME.as_secs());
        }
    }
}

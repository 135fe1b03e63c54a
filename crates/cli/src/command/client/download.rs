//! One file of a run, downloaded into a `.part` file that a later download resumes, and verified by
//! its hash before it gets its name.

use std::{
    io::SeekFrom,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use llmprof_core::domain::hex::hex;
use reqwest::{StatusCode, Url, header};
use sha2::{Digest, Sha256};
use tokio::{
    fs::{self, File},
    io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _},
    time::{sleep, timeout},
};

use super::{
    ServiceClient,
    answers::ArtifactAnswer,
    refusal::{self, NoAnswer, Refused},
};

/// Time without a byte after which a download counts as cut.
const SILENCE: Duration = Duration::from_secs(120);
/// Pause before a download that was cut is resumed.
const RESUME_DELAY: Duration = Duration::from_secs(1);
/// Attempts without a new byte, one after the other.
const MAX_ATTEMPTS: u32 = 5;

/// Result of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Downloaded {
    /// The file had the right content before.
    Present,
    /// From the first byte.
    Complete,
    /// The rest of an earlier download.
    Resumed,
}

/// Downloads a file of the run at `run_path` to `to`, unless it is there.
pub async fn download(
    client: &ServiceClient,
    run_path: &str,
    artifact: &ArtifactAnswer,
    to: &Path,
    mut progress: impl FnMut(u64),
) -> Result<Downloaded> {
    if hash_if_sized(to, artifact.bytes).await?.is_some_and(|hash| hash == artifact.sha256) {
        progress(artifact.bytes);
        return Ok(Downloaded::Present);
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)
            .await
            .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    }
    let part = part_path(to);
    // Content that changed after a part of it was downloaded is downloaded once more.
    for _ in 0..2 {
        let have = fs::metadata(&part).await.map_or(0, |it| it.len());
        let resumed = have > 0 && have <= artifact.bytes;
        complete(client, run_path, artifact, &part, &mut progress).await?;
        if hash_if_sized(&part, artifact.bytes).await?.is_some_and(|it| it == artifact.sha256) {
            fs::rename(&part, to)
                .await
                .with_context(|| format!("cannot write {}", to.display()))?;
            return Ok(if resumed { Downloaded::Resumed } else { Downloaded::Complete });
        }
        _ = fs::remove_file(&part).await;
    }
    bail!("{} differs from its SHA-256 on the service; run `llmprof check` there", artifact.path)
}

fn part_path(to: &Path) -> PathBuf {
    let mut name = to.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Downloads the rest of a file, across cuts.
async fn complete(
    client: &ServiceClient,
    run_path: &str,
    artifact: &ArtifactAnswer,
    part: &Path,
    progress: &mut impl FnMut(u64),
) -> Result<()> {
    let mut file = File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(part)
        .await
        .with_context(|| format!("cannot write {}", part.display()))?;
    let mut have = file.metadata().await?.len();
    if have > artifact.bytes {
        file.set_len(0).await?;
        have = 0;
    }
    progress(have);
    let mut attempts = 0;
    while have < artifact.bytes {
        let before = have;
        let reason = match rest(client, run_path, artifact, &mut file, &mut have, progress).await {
            Ok(()) => "the connection was cut".to_owned(),
            Err(error) if is_passing(&error) => error.to_string(),
            Err(error) => return Err(error),
        };
        attempts = if have > before { 0 } else { attempts + 1 };
        if have < artifact.bytes && attempts >= MAX_ATTEMPTS {
            bail!(
                "{} ended at {have} of {} bytes: {reason}; run the same command to resume",
                artifact.path,
                artifact.bytes
            );
        }
        if have < artifact.bytes {
            sleep(RESUME_DELAY).await;
        }
    }
    file.flush().await?;
    Ok(())
}

fn is_passing(error: &anyhow::Error) -> bool {
    error.is::<NoAnswer>()
        || error.downcast_ref::<Refused>().is_some_and(|it| refusal::is_gateway(it.status))
}

/// Requests the bytes after `have`, and writes those that arrive.
async fn rest(
    client: &ServiceClient,
    run_path: &str,
    artifact: &ArtifactAnswer,
    file: &mut File,
    have: &mut u64,
    progress: &mut impl FnMut(u64),
) -> Result<()> {
    let path = format!("{run_path}/artifacts/{}", artifact.path);
    let mut url = Url::parse(&client.url(&format!("{run_path}/artifacts/")))?;
    url.path_segments_mut()
        .ok()
        .context("the URL has no path")?
        .pop_if_empty()
        .extend(artifact.path.split('/'));
    let mut request = client.http.get(url);
    if *have > 0 {
        request = request
            .header(header::RANGE, format!("bytes={have}-"))
            .header(header::IF_RANGE, format!("\"{}\"", artifact.sha256));
    }
    let mut response = client.send(request, &path).await?;
    if response.status() != StatusCode::PARTIAL_CONTENT && *have > 0 {
        file.set_len(0).await?;
        *have = 0;
    }
    file.seek(SeekFrom::Start(*have)).await?;
    while let Ok(Ok(Some(bytes))) = timeout(SILENCE, response.chunk()).await {
        if *have + bytes.len() as u64 > artifact.bytes {
            bail!("{path} is longer than the {} bytes that are listed", artifact.bytes);
        }
        file.write_all(&bytes).await.context("cannot write the download")?;
        *have += bytes.len() as u64;
        progress(bytes.len() as u64);
    }
    Ok(file.flush().await?)
}

/// The hash of a file of this size.
async fn hash_if_sized(path: &Path, bytes: u64) -> Result<Option<String>> {
    let Ok(mut file) = File::open(path).await else { return Ok(None) };
    let data = file.metadata().await?;
    if !data.is_file() || data.len() != bytes {
        return Ok(None);
    }
    let (mut hash, mut block) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        let read = file.read(&mut block).await?;
        if read == 0 {
            break;
        }
        hash.update(&block[..read]);
    }
    Ok(Some(hex(&hash.finalize())))
}

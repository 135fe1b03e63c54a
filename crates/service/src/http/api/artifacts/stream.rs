//! Bodies read in blocks, on blocking threads, as fast as the client reads them.
//!
//! A slow client costs two blocks of memory and no thread. Compression and decompression use at
//! most half of the cores.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    sync::{Arc, LazyLock},
    thread::available_parallelism,
};

use axum::body::{Body, Bytes};
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use crate::{
    artifact::bundle::Bundle,
    measuring::Measuring,
    runtime::{self, work::SlicedWork},
};

/// Bytes of a block of a file.
const BLOCK: u64 = 256 << 10;

/// Source of blocks.
pub enum Source {
    Bundle(Box<Bundle>),
    /// Part of a file that is stored as it is; bytes left.
    Plain(File, u64),
    /// Part of a compressed file's content; bytes to skip, bytes left.
    Packed(Box<zstd::Decoder<'static, io::BufReader<File>>>, u64, u64),
}

impl Source {
    /// `length` bytes of a file's content, from `start`.
    pub fn part(mut file: File, is_packed: bool, start: u64, length: u64) -> io::Result<Self> {
        if is_packed {
            return Ok(Self::Packed(Box::new(zstd::Decoder::new(file)?), start, length));
        }
        file.seek(SeekFrom::Start(start))?;
        Ok(Self::Plain(file, length))
    }

    /// Returns the next block; `None` at the end. A truncated file is an error. The first block of
    /// a range of a packed file takes all content before it.
    fn next(&mut self, work: &SlicedWork) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Bundle(bundle) => bundle.next_block(),
            Self::Plain(file, left) => block(file, left),
            Self::Packed(content, skip, left) => {
                let skipped = work.copy(content.by_ref().take(*skip), &mut io::sink())?;
                if skipped < std::mem::take(skip) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                block(content, left)
            }
        }
    }

    fn is_compressed(&self) -> bool {
        !matches!(self, Self::Plain(..))
    }
}

fn block(from: &mut impl Read, left: &mut u64) -> io::Result<Option<Vec<u8>>> {
    let wanted = (*left).min(BLOCK);
    let mut block = Vec::with_capacity(usize::try_from(wanted).unwrap_or_default());
    let read = from.take(wanted).read_to_end(&mut block)? as u64;
    if read < wanted {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    *left -= read;
    Ok((read > 0).then_some(block))
}

/// The body of `source`, which reads files of `folder`. A compressed body is slowed down while a
/// pass measures: each block is computed separately, after a pause. A failure ends the body with an
/// error, so that the client does not take it for complete.
pub fn body(folder: &Path, mut source: Source, measuring: &Measuring) -> Body {
    static COMPRESSION: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
        Arc::new(Semaphore::new(available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))))
    });
    static SLOW: Mutex<()> = Mutex::const_new(());
    let (folder, measuring) = (folder.to_owned(), measuring.clone());
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(1);
    tokio::spawn(async move {
        // A place in the channel first: no block is read for a client that does not read.
        while let Ok(place) = sender.reserve().await {
            if source.is_compressed() && measuring.is_active() {
                let _alone = SLOW.lock().await;
                measuring.pause_block().await;
            }
            let permit = match source.is_compressed() {
                true => Arc::clone(&COMPRESSION).acquire_owned().await.ok(),
                false => None,
            };
            let work = SlicedWork::default();
            let read = runtime::stoppable(&work, move |work| {
                let read = source.next(work);
                drop(permit);
                Ok((read, source))
            });
            let read = tokio::select! {
                biased;
                () = sender.closed() => return,
                read = read => read,
            };
            let read = match read {
                Ok((block, returned)) => {
                    source = returned;
                    block
                }
                Err(error) => return place.send(Err(error)),
            };
            match read {
                Ok(Some(block)) => place.send(Ok(block.into())),
                Ok(None) => return,
                Err(error) => {
                    // A run may be deleted while a client downloads it: its files are missing, and
                    // large ones become shorter.
                    let is_kept = tokio::fs::try_exists(&folder).await.unwrap_or(true);
                    let folder = folder.display();
                    if is_kept && error.kind() != io::ErrorKind::NotFound {
                        tracing::error!(%folder, %error, "cannot stream files");
                    } else {
                        tracing::warn!(%folder, %error, "cannot stream removed files");
                    }
                    return place.send(Err(error));
                }
            }
        }
    });
    Body::from_stream(ReceiverStream::new(receiver))
}

//! Bodies that are made as they are read: a block at a time, on a thread that may block, and only when the client took the one before.
//!
//! A client that waits costs a block or two of memory and no thread, and all packing and unpacking together leaves cores for others.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    sync::{Arc, LazyLock},
    thread::available_parallelism,
};

use axum::body::{Body, Bytes};
use tokio::{
    sync::{Semaphore, mpsc},
    task::spawn_blocking,
};
use tokio_stream::wrappers::ReceiverStream;

use crate::artifact::bundle::Bundle;

/// Bytes of a block of a file.
const BLOCK: u64 = 256 << 10;

/// Where blocks come from; made once, read to its end or dropped.
pub enum Source {
    Bundle(Box<Bundle>),
    /// A part of a file as it lies, and how much of it is left.
    Plain(File, u64),
    /// A part of a packed file's content: what is skipped first, and how much of it is left.
    Packed(Box<zstd::Decoder<'static, io::BufReader<File>>>, u64, u64),
}

impl Source {
    /// `length` bytes from `start` of the content of a file.
    pub fn part(mut file: File, is_packed: bool, start: u64, length: u64) -> io::Result<Self> {
        if is_packed {
            return Ok(Self::Packed(Box::new(zstd::Decoder::new(file)?), start, length));
        }
        file.seek(SeekFrom::Start(start))?;
        Ok(Self::Plain(file, length))
    }

    /// The next block; `None` at the end. A file that is shorter than it was is an error.
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Bundle(bundle) => bundle.next_block(),
            Self::Plain(file, left) => block(file, left),
            Self::Packed(content, skip, left) => {
                let skipped = io::copy(&mut content.by_ref().take(*skip), &mut io::sink())?;
                if skipped < std::mem::take(skip) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                block(content, left)
            }
        }
    }

    fn is_work(&self) -> bool {
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

/// A body of what `source` gives of the files in `dir`. One that breaks off ends in an error, so that it cannot be taken for whole.
pub fn body(dir: &Path, mut source: Source) -> Body {
    static WORK: LazyLock<Arc<Semaphore>> =
        LazyLock::new(|| Arc::new(Semaphore::new(available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)))));
    let dir = dir.to_owned();
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(1);
    tokio::spawn(async move {
        // Room first, then the block: nothing is made for a client that does not read.
        while let Ok(room) = sender.reserve().await {
            let turn = if source.is_work() { Arc::clone(&WORK).acquire_owned().await.ok() } else { None };
            let made = spawn_blocking(move || {
                let made = source.next();
                drop(turn);
                (made, source)
            });
            let made = match made.await {
                Ok((made, back)) => {
                    source = back;
                    made
                }
                Err(error) => return room.send(Err(io::Error::other(error))),
            };
            match made {
                Ok(Some(block)) => room.send(Ok(block.into())),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(folder = %dir.display(), %error, "a stream of files broke off");
                    return room.send(Err(error));
                }
            }
        }
    });
    Body::from_stream(ReceiverStream::new(receiver))
}

//! Blocking work of unbounded size: hashing, copying, syncing and removing files.
//!
//! It runs in slices of at most [`SLICE`] bytes. Before each slice it checks whether to stop, so
//! that it ends within a slice, inside a file as well as between files.

use std::{
    fmt,
    io::{self, Read, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

/// Maximum bytes read or written between two checks.
pub const SLICE: usize = 1 << 20;
/// Time between two reports of the progress.
const REPORT_PERIOD: Duration = Duration::from_secs(5);

/// Error of work that was stopped before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped before its end")]
pub struct WorkStopped;

impl From<WorkStopped> for io::Error {
    /// Not `Interrupted`, after which a read is repeated.
    fn from(stopped: WorkStopped) -> Self {
        Self::other(stopped)
    }
}

/// Returns true if `error`, or a cause of it, is [`WorkStopped`].
pub fn is_stopped(error: &io::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<WorkStopped>() {
            return true;
        }
        cause = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    false
}

/// Success in place of a stop, after which the next start of the service continues.
pub fn ignore_stop<T: Default>(error: io::Error) -> io::Result<T> {
    if is_stopped(&error) { Ok(T::default()) } else { Err(error) }
}

/// Called with the bytes of the next slice; waits for its turn, and returns false to stop.
type Gate = dyn FnMut(u64) -> bool + Send;

type Report = dyn FnMut(u64, u64) + Send;

/// Stop and progress of one piece of work. Clones share both.
#[derive(Clone, Default)]
pub struct SlicedWork {
    stop: CancellationToken,
    gate: Option<Arc<Mutex<Gate>>>,
    progress: Arc<Progress>,
}

#[derive(Default)]
struct Progress {
    done: AtomicU64,
    total: AtomicU64,
    /// Called with both, and the time of the last call.
    report: Mutex<Option<(Box<Report>, Instant)>>,
}

impl fmt::Debug for SlicedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (done, total) = self.progress();
        f.debug_struct("SlicedWork")
            .field("stopped", &self.stop.is_cancelled())
            .field("done", &done)
            .field("total", &total)
            .finish_non_exhaustive()
    }
}

impl SlicedWork {
    /// Work that ends early when `stop` fires. The default is work that is never stopped.
    pub fn new(stop: &CancellationToken) -> Self {
        Self { stop: stop.clone(), ..Self::default() }
    }

    /// The same work, with a `gate` that is passed before each slice, from one thread at a time.
    pub fn with_gate(self, gate: impl FnMut(u64) -> bool + Send + 'static) -> Self {
        Self { gate: Some(Arc::new(Mutex::new(gate))), ..self }
    }

    /// The same work; its progress is logged under this name every few seconds.
    pub fn named(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.reporting(move |done, total| {
            tracing::info!("{name}: {:.1} of {:.1} GB", done as f64 / 1e9, total as f64 / 1e9);
        })
    }

    /// The same work; `report` is called every few seconds with the bytes that were read and their
    /// expected total.
    pub fn reporting(self, report: impl FnMut(u64, u64) + Send + 'static) -> Self {
        *lock(&self.progress.report) = Some((Box::new(report), Instant::now()));
        self
    }

    /// The same work, which the returned token ends in addition.
    pub(super) fn child(&self) -> (Self, CancellationToken) {
        let stop = self.stop.child_token();
        (Self { stop: stop.clone(), ..self.clone() }, stop)
    }

    /// Returns an error if the work is to stop. Called before each slice.
    pub fn checkpoint(&self) -> io::Result<()> {
        self.before(0)
    }

    /// The same before `bytes` are read or written.
    fn before(&self, bytes: u64) -> io::Result<()> {
        let passed =
            !self.stop.is_cancelled() && self.gate.as_ref().is_none_or(|gate| lock(gate)(bytes));
        if passed { Ok(()) } else { Err(WorkStopped.into()) }
    }

    /// Adds the `bytes` that are still to be read to the total.
    pub fn expect(&self, bytes: u64) {
        self.progress.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that were read, and their expected total.
    pub fn progress(&self) -> (u64, u64) {
        let load = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        (load(&self.progress.done), load(&self.progress.total))
    }

    fn advance(&self, bytes: u64) {
        self.progress.done.fetch_add(bytes, Ordering::Relaxed);
        if let Some((report, last)) = lock(&self.progress.report).as_mut()
            && last.elapsed() >= REPORT_PERIOD
        {
            *last = Instant::now();
            let (done, total) = self.progress();
            report(done, total.max(done));
        }
    }

    /// A reader of `from` that stops with this work, and counts its bytes as progress. Its error
    /// passes through decoders behind it; see [`is_stopped`].
    pub fn reader<R: Read>(&self, from: R) -> WorkReader<'_, R> {
        WorkReader { from, work: self }
    }

    /// Copies `from` to `to`; returns the number of bytes.
    pub fn copy(&self, from: impl Read, to: &mut (impl Write + ?Sized)) -> io::Result<u64> {
        let (mut from, mut slice, mut copied) = (self.reader(from), vec![0; SLICE], 0);
        loop {
            let read = from.read(&mut slice)?;
            if read == 0 {
                return Ok(copied);
            }
            to.write_all(&slice[..read])?;
            copied += read as u64;
        }
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reader in slices; made by [`SlicedWork::reader`].
#[derive(Debug)]
pub struct WorkReader<'a, R> {
    from: R,
    work: &'a SlicedWork,
}

impl<R: Read> Read for WorkReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let slice = buffer.len().min(SLICE);
        self.work.before(slice as u64)?;
        let read = self.from.read(&mut buffer[..slice])?;
        self.work.advance(read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endless file, in whose third read the work is stopped.
    struct SlowDisk<'a> {
        stop: &'a CancellationToken,
        reads: usize,
        largest: usize,
    }

    impl Read for SlowDisk<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.reads += 1;
            self.largest = self.largest.max(buffer.len());
            if self.reads == 3 {
                self.stop.cancel();
            }
            Ok(buffer.len())
        }
    }

    #[test]
    fn a_copy_stops_within_a_slice_and_a_decoder_passes_the_error_on() {
        let stop = CancellationToken::new();
        let work = SlicedWork::new(&stop);
        work.expect(u64::MAX);
        let mut disk = SlowDisk { stop: &stop, reads: 0, largest: 0 };
        let stopped = work.copy(&mut disk, &mut io::sink()).unwrap_err();
        assert!(is_stopped(&stopped), "{stopped}");
        assert_eq!((disk.reads, disk.largest), (3, SLICE));
        assert_eq!(work.progress(), (3 * SLICE as u64, u64::MAX));
        let behind = io::Error::other(io::Error::from(WorkStopped));
        assert!(is_stopped(&behind) && !is_stopped(&io::Error::other("full")));
        assert!(!is_stopped(&io::ErrorKind::Interrupted.into()));
    }

    #[test]
    fn a_gate_is_passed_before_each_slice() {
        let mut slices = 0;
        let work = SlicedWork::default().with_gate(move |_| {
            slices += 1;
            slices <= 2
        });
        assert!(work.checkpoint().is_ok());
        let stopped = work.copy(io::repeat(0), &mut io::sink()).unwrap_err();
        assert!(is_stopped(&stopped));
        assert_eq!(work.progress().0, SLICE as u64);
    }
}

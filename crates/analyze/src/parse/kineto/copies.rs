//! Files that hold the same events as another file of the capture, whatever their names, and
//! however their texts are written or packed.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use foldhash::HashMap;

use super::{rows::FileRows, text::Header};

/// The files of a capture by their events.
#[derive(Debug, Default)]
pub struct Copies {
    /// Name of the first file with these events.
    first: HashMap<u64, String>,
    left_out: Vec<(String, String)>,
}

impl Copies {
    /// Returns true if an earlier file has the same events of the same process.
    pub fn is_copy(&mut self, name: String, header: &Header, rows: &FileRows) -> bool {
        let events = fingerprint(header, rows);
        if let Some(first) = self.first.get(&events) {
            self.left_out.push((name, first.clone()));
            return true;
        }
        self.first.insert(events, name);
        false
    }

    /// Names of the copies, each with the file that has the same events.
    pub fn left_out(&self) -> &[(String, String)] {
        &self.left_out
    }
}

/// A hash of the process and its events. Ranks have the same events in no recording: their times
/// are nanoseconds.
fn fingerprint(header: &Header, rows: &FileRows) -> u64 {
    let rank = header.distributed.as_ref().and_then(|it| it.rank.value);
    let mut hash = DefaultHasher::new();
    (header.base_ns, rank, &rows.threads, rows.events).hash(&mut hash);
    let mut labels: Vec<_> = rows.process_names.iter().collect();
    labels.sort_unstable();
    labels.hash(&mut hash);
    for it in rows.kernels.iter() {
        (it.start_ns, it.end_ns, it.device, it.stream, it.correlation_id).hash(&mut hash);
    }
    for it in rows.calls.iter() {
        (it.start_ns, it.end_ns, it.global_tid, it.name, it.correlation_id).hash(&mut hash);
    }
    for it in &rows.copies {
        (it.start_ns, it.end_ns, it.device, it.stream, it.bytes).hash(&mut hash);
    }
    for it in &rows.ranges {
        (it.start_ns, it.end_ns, it.label(), it.global_tid).hash(&mut hash);
    }
    for it in &rows.operators {
        (it.start_ns, it.end_ns, it.name, it.thread).hash(&mut hash);
    }
    hash.finish()
}

//! Captures of CUDA and HIP graphs, as the profiler of PyTorch recorded them: launches that were
//! recorded into a graph instead of running, inside the operators that called them.
//!
//! An engine writes the capture of each graph as a trace of its own, next to the window in which
//! the graph is replayed. Nothing here ran: it names the work of replays.

use std::ops::Range;

/// An operator or range that was open during a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapturedOperator {
    /// Nanoseconds from the zero of its own trace, as all times of captures.
    pub start_ns: i64,
    pub end_ns: i64,
    /// Index into the signatures of [`super::timeline::Timeline::framework`].
    pub signature: u32,
    /// True for a range of the program, which has no shapes.
    pub is_range: bool,
}

/// Work of a node of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeWork {
    Kernel,
    Copy,
    Fill,
}

/// One launch that was recorded into a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapturedLaunch {
    pub at_ns: i64,
    pub work: NodeWork,
    /// Name of the launching call: an index into the strings of the timeline, as the others here.
    pub call: u32,
    /// Full name of the kernel, which calls of HIP have.
    pub kernel: Option<u32>,
    /// Zeros if the call has no geometry.
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Line of code around the call.
    pub call_site: Option<u32>,
}

/// One capture: all launches between its start and its end on the capturing thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapturedGraph {
    /// Name of the file.
    pub file: String,
    /// Process of the timeline that captured it; `None` for a trace of only the capture.
    pub process: Option<i64>,
    pub rank: Option<u32>,
    /// Requests or tokens of the graph, by the range `capture_8_FULL` around the capture.
    pub batch: Option<u64>,
    /// Kind of the graph by the same name: `FULL`, `PIECEWISE`, `DECODE`.
    pub mode: Option<String>,
    /// In the order of their calls.
    pub launches: Vec<CapturedLaunch>,
    /// Indices into [`GraphCaptures::operators`], in order of start and from the outermost.
    pub operators: Range<u32>,
    /// False if the trace lacks the start or the end of the capture.
    pub is_whole: bool,
    /// True if a stream waited for another one: nodes may run in another order.
    pub is_forked: bool,
}

/// The captures of all files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphCaptures {
    pub operators: Vec<CapturedOperator>,
    pub graphs: Vec<CapturedGraph>,
    /// Batches of all graphs that the engine captured, if it lists them; sorted.
    pub listed: Vec<u64>,
    /// Names of the files that trace only a capture, or list the captures.
    pub files: Vec<String>,
}

/// Batch and mode in the name of a range around a capture: `capture_8_FULL`.
pub fn capture_range(name: &str) -> Option<(u64, &str)> {
    let (batch, mode) = name.strip_prefix("capture_")?.split_once('_')?;
    let is_mode = |it: char| it.is_ascii_uppercase() || it == '_';
    let batch = Some(batch).filter(|it| it.bytes().all(|digit| digit.is_ascii_digit()))?;
    let mode = Some(mode).filter(|it| !it.is_empty() && it.chars().all(is_mode))?;
    Some((batch.parse().ok()?, mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_around_a_capture_has_its_batch_and_mode() {
        for (name, found) in [
            ("capture_8_FULL", Some((8, "FULL"))),
            ("capture_32_DECODE", Some((32, "DECODE"))),
            ("capture_1_FULL_DECODE_ONLY", Some((1, "FULL_DECODE_ONLY"))),
            ("capture_8", None),
            ("capture_8_", None),
            ("capture__FULL", None),
            ("capture_+8_FULL", None),
            ("capture_8_frames", None),
            ("recapture_8_FULL", None),
            ("capture_99999999999999999999999_FULL", None),
        ] {
            assert_eq!(capture_range(name), found, "{name}");
        }
    }
}

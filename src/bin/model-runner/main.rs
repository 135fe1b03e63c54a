//! `model-runner`: runs one model on one input, repeatedly, and says what happened when.
//!
//! Started by `llmprof` as a child process, or by hand. The only binary that links candle; it knows no profiler but NVTX.

mod nvtx;
mod ops;
mod record;
mod site;

fn main() {}

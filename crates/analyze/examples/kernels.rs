//! Prints the kernels and findings of a capture: an export of nsys, or traces by the profiler of
//! PyTorch, one per process.
//!
//! ```sh
//! cargo run --package llmprof-analyze --example kernels -- trace.json.gz
//! ```

use std::{env, error::Error, path::PathBuf};

use llmprof_analyze::{analyze, parse};
use llmprof_core::{domain::subject::SubjectKind, trace::Trace};

fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let timeline = parse::timeline(&files)?;
    let trace =
        Trace { subject: SubjectKind::Import, timeline: Some(timeline), ..Trace::default() };
    let analysis = analyze(&trace, None, None);
    println!("{:24} {:>9} {:>9}  kernel", "stage", "calls", "total ms");
    for row in analysis.kernels.measured().take(10) {
        println!("{:24} {:9} {:9.3}  {}", row.stage, row.calls, row.total_ms, row.kernel_name);
    }
    for finding in &analysis.findings {
        println!("{}: {}", finding.id, finding.message);
    }
    Ok(())
}

//! Reports mention only what their subject has: no pass, log, mode or tool of this host if captures
//! were taken elsewhere.

use crate::parse::sums::{OpenCapture, llmprof};

/// Texts that are true only if this service ran something.
const OF_RUNS_HERE: &[&str] = &[
    "baseline step",
    "mode light",
    "mode deep",
    "Submit with",
    "requested was collected",
    "asked for was collected",
    "none found",
    "not found",
    "unprofiled pass completed",
    "during the unprofiled pass",
    "Let the unprofiled pass start",
    "nsys step's log",
    "The runner recorded",
    "No GPU was sampled",
];

#[test]
fn no_report_of_a_capture_speaks_of_passes_logs_or_tools_of_this_host() {
    let captures =
        ["hf-deepseek-decoder", "hf-llama-e2e", "hf-llama-attention-mock", "torch-cuda-graph-node"];
    for name in captures {
        let capture = OpenCapture::open(name);
        let (export, out) = (capture.dir.path().join("run.sqlite"), capture.dir.path().join("out"));
        // Without stages of its own, most tables are gaps, each with a sentence.
        for stage in [&[][..], &["--stage", "prefill=decode_step", "--stage", "decode_all=prefill"]]
        {
            let mut args = vec![export.to_str().unwrap(), "--out", out.to_str().unwrap()];
            args.extend(stage);
            let (good, _, error) = llmprof(&args);
            if !good {
                assert!(error.contains("no range named"), "{name}: {error}");
                continue;
            }
            for file in std::fs::read_dir(&out).unwrap() {
                let path = file.unwrap().path();
                let Ok(text) = std::fs::read_to_string(&path) else { continue };
                for phrase in OF_RUNS_HERE {
                    let at = text.find(phrase).map(|at| {
                        text[..at + phrase.len()].lines().last().unwrap_or_default().to_owned()
                    });
                    assert_eq!(at, None, "{name}, {}: {phrase:?}", path.display());
                }
            }
        }
    }
}

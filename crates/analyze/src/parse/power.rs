//! Reader of `nvml.jsonl`, the samples of power and clocks.
//!
//! A killed sampler leaves half a line, or no last line: a gap with a finding. Any other line that
//! is not a sample is an error with its number.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
};

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    layout,
    trace::power::{POWER_SCHEMA, PowerLine, PowerLog},
};

use super::ParseError;
use crate::parse::stored;

/// Longest line of a sample: a hundred times the longest that the sampler writes.
const MAX_LINE: u64 = 64 << 10;

/// Maximum number of GPUs of a pass.
const MAX_GPUS: u32 = 256;

/// Reads the samples of all GPUs in the folder `dir` of a run; `None` without samples of the first.
pub fn read_all(dir: &Path) -> Result<(Option<PowerLog>, Vec<Finding>), ParseError> {
    let path = dir.join(layout::NVML);
    if !path.exists() {
        return Ok((None, vec![]));
    }
    let (mut log, mut findings) = read(&path)?;
    if let Some(log) = &mut log {
        for gpu in 2..=log.device.gpus {
            let path = dir.join(layout::nvml_of(gpu));
            let (other, found) = if path.exists() { read(&path)? } else { (None, vec![]) };
            log.others.push(other.filter(|it| !it.samples.is_empty()));
            findings.extend(found);
        }
    }
    Ok((log, findings))
}

/// Reads the samples in `path`; `None` if the first line is incomplete.
pub fn read(path: &Path) -> Result<(Option<PowerLog>, Vec<Finding>), ParseError> {
    let file =
        stored::open_own(path).map_err(|source| ParseError::Read { path: path.into(), source })?;
    parse(BufReader::new(file), path)
}

/// Parses lines of JSON; `path` is for errors and findings.
pub fn parse(
    mut from: impl BufRead,
    path: &Path,
) -> Result<(Option<PowerLog>, Vec<Finding>), ParseError> {
    let mut log: Option<PowerLog> = None;
    let mut line = Vec::new();
    let mut cut = false;
    for number in 1.. {
        line.clear();
        let read = from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        let read = read.map_err(|source| ParseError::Read { path: path.into(), source })?;
        if read == 0 {
            break;
        }
        let order = |what| ParseError::Order { path: path.into(), line: number, what };
        let whole = line.last() == Some(&b'\n');
        match serde_json::from_slice(&line) {
            Ok(parsed) => add(&mut log, parsed, path, order)?,
            Err(_) if !whole && (read as u64) < MAX_LINE => cut = true,
            Err(source) => {
                let what = format!("line {number} is not a sample: {source}");
                return Err(ParseError::Foreign { path: path.into(), what });
            }
        }
    }
    let samples = log.as_ref().map_or(0, |log| log.samples.len());
    let ended = log.as_ref().is_some_and(|log| log.end.is_some());
    let message = "the sampler of power and clocks did not finish: later samples are missing";
    let gap = || Finding::new(catalogue::POWER_CUT, message).with("samples", samples);
    let findings = if cut || !ended { vec![gap()] } else { vec![] };
    Ok((log, findings))
}

/// Adds one line to the log; `at` creates the error for an invalid position or value.
fn add(
    log: &mut Option<PowerLog>,
    line: PowerLine,
    path: &Path,
    at: impl Fn(&'static str) -> ParseError,
) -> Result<(), ParseError> {
    match (line, log) {
        (PowerLine::Device(device), None) if device.schema > POWER_SCHEMA => {
            Err(ParseError::Newer { path: path.into(), found: device.schema, known: POWER_SCHEMA })
        }
        (PowerLine::Device(device), None) if !(1..=MAX_GPUS).contains(&device.gpus) => {
            Err(at("a number of GPUs that is not 1 to 256"))
        }
        (PowerLine::Device(device), log @ None) => {
            *log = Some(PowerLog { device, samples: Vec::new(), end: None, others: Vec::new() });
            Ok(())
        }
        (PowerLine::Device(_), Some(_)) => Err(at("a second device")),
        (_, None) => Err(at("the first line is not a device")),
        (_, Some(PowerLog { end: Some(_), .. })) => Err(at("a line after the end")),
        (PowerLine::End(end), Some(log)) => {
            log.end = Some(end);
            Ok(())
        }
        (PowerLine::Sample(sample), Some(log)) => {
            if log.samples.last().is_some_and(|last| sample.t_ns < last.t_ns) {
                return Err(at("a sample that is earlier than the one before"));
            }
            if sample.power_w.is_some_and(|power| !power.is_finite() || power < 0.0) {
                return Err(at("an invalid power"));
            }
            log.samples.push(sample);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: &str = concat!(
        r#"{"kind":"device","schema":1,"uuid":"GPU-1","board_uuid":"GPU-1","name":"g","#,
        r#""period_ns":20000000,"#,
        r#""power_source":"instant","power_limit_w":700.0,"max_sm_mhz":1980,"max_memory_mhz":3201}"#
    );
    const SAMPLE: &str = r#"{"kind":"sample","t_ns":7,"power_w":80.5,"energy_mj":12}"#;
    const END: &str = r#"{"kind":"end","t_ns":9,"samples":1,"skipped":0}"#;

    /// The number of samples and the ids of the findings, or the error.
    fn outcome(lines: &[&str]) -> Result<(Option<usize>, Vec<String>), String> {
        let (log, findings) =
            parse(lines.concat().as_bytes(), Path::new("nvml.jsonl")).map_err(|e| e.to_string())?;
        Ok((log.map(|log| log.samples.len()), findings.into_iter().map(|f| f.id.clone()).collect()))
    }

    #[test]
    fn a_whole_log_has_no_finding() {
        assert_eq!(outcome(&[DEVICE, "\n", SAMPLE, "\n", END, "\n"]), Ok((Some(1), vec![])));
    }

    #[test]
    fn a_log_that_was_cut_is_a_gap() {
        let gap = || vec!["power_cut".to_owned()];
        assert_eq!(outcome(&[DEVICE, "\n", SAMPLE, "\n", &SAMPLE[..20]]), Ok((Some(1), gap())));
        assert_eq!(outcome(&[DEVICE, "\n", SAMPLE, "\n"]), Ok((Some(1), gap())));
        assert_eq!(outcome(&[&DEVICE[..30]]), Ok((None, gap())));
        assert_eq!(outcome(&[]), Ok((None, gap())));
    }

    #[test]
    fn an_error_names_file_and_line() {
        let at = |line, what: &str| Err(format!("nvml.jsonl, line {line}: {what}"));
        assert_eq!(outcome(&[SAMPLE, "\n"]), at(1, "the first line is not a device"));
        assert_eq!(outcome(&[DEVICE, "\n", DEVICE, "\n"]), at(2, "a second device"));
        assert_eq!(
            outcome(&[DEVICE, "\n", END, "\n", SAMPLE, "\n"]),
            at(3, "a line after the end")
        );
        let earlier = SAMPLE.replace("\"t_ns\":7", "\"t_ns\":6");
        assert_eq!(
            outcome(&[DEVICE, "\n", SAMPLE, "\n", &earlier, "\n"]),
            at(3, "a sample that is earlier than the one before")
        );
        assert_eq!(
            outcome(&[DEVICE, "\n", &SAMPLE.replace("80.5", "-1.0"), "\n"]),
            at(2, "an invalid power")
        );
        assert!(
            outcome(&[DEVICE, "\n", "{}\n"])
                .unwrap_err()
                .starts_with("nvml.jsonl: line 2 is not a sample: ")
        );
    }

    #[test]
    fn a_run_has_the_samples_of_each_of_its_gpus_or_lacks_them() {
        let line = |gpus: &str| DEVICE.replace("\"name\"", &format!("{gpus}\"name\""));
        assert!(outcome(&[&line("\"gpus\":0,"), "\n"]).unwrap_err().contains("number of GPUs"));
        assert!(outcome(&[&line("\"gpus\":257,"), "\n"]).unwrap_err().contains("number of GPUs"));
        for (stated, files, expected) in [
            ("", &[2][..], &[][..]),
            ("\"gpus\":3,", &[2, 3], &[true, true]),
            ("\"gpus\":3,", &[3], &[false, true]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join(layout::BASELINE)).unwrap();
            let device = line(stated);
            let text = [device.as_str(), "\n", SAMPLE, "\n", END, "\n"].concat();
            std::fs::write(dir.path().join(layout::NVML), &text).unwrap();
            for gpu in files {
                std::fs::write(dir.path().join(layout::nvml_of(*gpu)), &text).unwrap();
            }
            let (log, findings) = read_all(dir.path()).unwrap();
            let others: Vec<bool> = log.unwrap().others.iter().map(Option::is_some).collect();
            assert_eq!((others.as_slice(), findings.len()), (expected, 0));
        }
    }

    #[test]
    fn a_newer_format_is_refused() {
        let newer = "nvml.jsonl: format 2 is newer than 1, the newest known; use a newer llmprof";
        assert_eq!(
            outcome(&[&DEVICE.replace(r#""schema":1"#, r#""schema":2"#), "\n"]),
            Err(newer.into())
        );
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..256),
            cut in 0usize..400,
        ) {
            let whole = [DEVICE, "\n", SAMPLE, "\n", END, "\n"].concat();
            let cut = &whole.as_bytes()[..cut.min(whole.len())];
            let outcome = parse([cut, &bytes].concat().as_slice(), Path::new("x"));
            proptest::prop_assert!(!bytes.is_empty() || outcome.is_ok(), "a log that was cut \
                anywhere is readable");
        }
    }
}

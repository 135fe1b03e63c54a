//! Records of the loads of a server: lines of `requests-N.jsonl`, a file per repeat.

use std::{
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use llmprof_core::{
    layout,
    trace::requests::{LoadLine, LoadPass, RequestLoad},
};

use super::ParseError;
use crate::parse::stored;

/// Longest line: a request with the times of a million tokens.
const MAX_LINE: u64 = 32 << 20;
/// Maximum number of repeats of a run.
const MAX_REPEATS: usize = 100;

/// Reads the loads of both passes in a run's folder.
pub fn read(dir: &Path) -> Result<Vec<RequestLoad>, ParseError> {
    let mut loads = Vec::new();
    for (pass, file) in [
        (LoadPass::BeforeWindow, layout::REQUESTS_BEFORE),
        (LoadPass::AfterWindow, layout::REQUESTS_AFTER),
    ] {
        let load = read_load(&dir.join(layout::NSYS).join(file))?;
        loads.extend(load.map(|load| RequestLoad { pass, ..load }));
    }
    for (pass, folder) in
        [(LoadPass::Unprofiled, layout::BASELINE), (LoadPass::Traced, layout::NSYS)]
    {
        for repeat in 1..=MAX_REPEATS {
            let path = dir.join(folder).join(layout::requests(repeat));
            let Some(mut load) = read_load(&path)? else { break };
            (load.pass, load.repeat) = (pass, repeat as u32 - 1);
            loads.push(load);
        }
    }
    Ok(loads)
}

/// Reads one load; `None` if the file is missing. A line that a killed client did not complete is
/// skipped.
fn read_load(path: &Path) -> Result<Option<RequestLoad>, ParseError> {
    let failed = |source| ParseError::Read { path: path.into(), source };
    let file = match stored::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(source)),
    };
    let mut load =
        RequestLoad { pass: LoadPass::Unprofiled, repeat: 0, header: None, requests: Vec::new() };
    let (mut from, mut line) = (BufReader::with_capacity(1 << 16, file), Vec::new());
    loop {
        line.clear();
        if from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).map_err(failed)? == 0 {
            return Ok(Some(load));
        }
        match serde_json::from_slice(&line) {
            Ok(LoadLine::Load(header)) => load.header = Some(header),
            Ok(LoadLine::Request(record)) => load.requests.push(record),
            Ok(LoadLine::End(_)) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use llmprof_core::trace::requests::{LoadEnd, RequestRecord};

    use super::*;

    #[test]
    fn loads_of_each_pass_and_repeat_are_read_and_a_cut_line_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let line = |request: u64| {
            let record = RequestRecord { request, token_ns: vec![1, 2], ..Default::default() };
            serde_json::to_string(&LoadLine::Request(record)).unwrap() + "\n"
        };
        let end = LoadLine::End(LoadEnd { ended_ns: 9, is_stopped: false });
        for (file, text) in [
            ("baseline/requests-1.jsonl", line(0) + &line(1)),
            ("baseline/requests-2.jsonl", line(0) + &line(1)[..40]),
            ("nsys/requests-1.jsonl", serde_json::to_string(&end).unwrap()),
            ("nsys/requests-3.jsonl", line(0)),
        ] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let loads = read(dir.path()).unwrap();
        let found: Vec<_> =
            loads.iter().map(|it| (it.pass, it.repeat, it.requests.len())).collect();
        assert_eq!(
            found,
            [(LoadPass::Unprofiled, 0, 2), (LoadPass::Unprofiled, 1, 1), (LoadPass::Traced, 0, 0)]
        );
    }
}

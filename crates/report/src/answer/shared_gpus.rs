//! Sentences on GPUs with work of several processes.

use std::collections::BTreeMap;

use llmprof_analyze::{stats::percent, timeline::processes::ProcessStage};

use super::cited::{Cited, Figure, Row};

/// Min share of a GPU's kernel time, percent, of a named process.
const NAMED_PCT: f64 = 1.0;
/// Named processes of one GPU.
const NAMED: usize = 4;

/// One sentence for each GPU on which several processes have kernels.
pub fn sentences(rows: &[ProcessStage]) -> Vec<Cited> {
    let mut gpus: BTreeMap<u32, BTreeMap<u32, Vec<&ProcessStage>>> = BTreeMap::new();
    for it in rows.iter().filter(|it| it.kernel_ms.is_some()) {
        gpus.entry(it.device).or_default().entry(it.process).or_default().push(it);
    }
    gpus.into_iter().filter_map(|(gpu, processes)| sentence(gpu, &processes)).collect()
}

fn sentence(gpu: u32, processes: &BTreeMap<u32, Vec<&ProcessStage>>) -> Option<Cited> {
    let kernels = |rows: &Vec<&ProcessStage>| Figure::sum(rows.iter().filter_map(|it| cell(it)));
    let times = processes.values().map(|rows| (rows, kernels(rows)));
    let mut times: Vec<(&Vec<&ProcessStage>, Figure)> = times.collect();
    let all: f64 = times.iter().map(|it| it.1.value()).sum();
    times.retain(|it| percent(it.1.value(), all).is_some_and(|pct| pct >= NAMED_PCT));
    times.sort_by(|a, b| b.1.value().total_cmp(&a.1.value()));
    if times.len() < 2 {
        return None;
    }
    let number = Figure::number(times.iter().map(|it| it.1.clone())).quantity("process");
    let named = times.iter().take(NAMED).filter_map(|(rows, ms)| {
        let it = rows.first()?;
        let pid = it.process;
        let name = match it.process_name.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => format!("{name} (pid {pid})"),
            None => format!("pid {pid}"),
        };
        Some(Cited::of("{}, {} ms of kernels", [Cited::name(name), ms.clone().short()]))
    });
    let named = Cited::list(named, "; ");
    let others = times.iter().skip(NAMED).map(|it| it.1.clone());
    let others = match times.len() > NAMED {
        true => Cited::of("; {}", [Figure::number(others).quantity("other process")]),
        false => Cited::default(),
    };
    let gpu = Cited::name(gpu.to_string());
    Some(Cited::of(
        "{} have work on GPU {}: {}{}. Each waits while only work of the others runs.",
        [number, gpu, named, others],
    ))
}

fn cell(it: &ProcessStage) -> Option<Figure> {
    let row = Row::of("processes")
        .with("process", it.process)
        .with("device", it.device)
        .with("stage", &it.stage);
    Some(row.figure("kernel_ms", it.kernel_ms?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(process: u32, name: Option<&str>, device: u32, kernel_ms: Option<f64>) -> ProcessStage {
        ProcessStage {
            process,
            process_name: name.map(str::to_owned),
            device,
            stage: "decode_all".into(),
            launches: 1,
            kernel_ms,
            graph_launches: 0,
            busy_ms: kernel_ms,
            copies: 0,
            copied_bytes: 0,
            fills: 0,
            filled_bytes: 0,
        }
    }

    fn stated(rows: &[ProcessStage]) -> Vec<String> {
        let found = sentences(rows);
        let report = json!({ "processes": rows });
        found.iter().for_each(|it| assert_eq!(it.unfounded(&report), [""; 0]));
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn processes_that_share_a_gpu_are_named_longest_first() {
        let rows = [row(7, Some("vllm"), 0, Some(50.0)), row(8, Some("train"), 0, Some(400.0))];
        assert_eq!(
            stated(&rows),
            ["2 processes have work on GPU 0: train (pid 8), 400 ms of kernels; vllm (pid 7), \
              50.0 ms of kernels. Each waits while only work of the others runs."]
        );
        for (rows, why) in [
            ([row(7, None, 0, Some(50.0)), row(8, None, 1, Some(50.0))], "each has a GPU"),
            ([row(7, None, 0, Some(50.0)), row(8, None, 0, Some(0.1))], "too short"),
            ([row(7, None, 0, Some(50.0)), row(8, None, 0, None)], "unknown"),
            ([row(7, None, 0, Some(50.0)), row(7, None, 0, Some(50.0))], "one process"),
        ] {
            assert!(stated(&rows).is_empty(), "{why}");
        }
    }
}

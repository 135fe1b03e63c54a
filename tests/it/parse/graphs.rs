//! Captures with CUDA graphs traced as a whole, compared with the same capture traced by node;
//! captures without a GPU, and with two.

use std::fs;

use llmprof_analyze::{
    Analysis, parse,
    stages::coverage::coverage,
    timeline::{capture::Capture, gpu::StageGpu},
};
use llmprof_core::trace::stage::StageRules;

use crate::parse::sums::{OpenCapture, llmprof, with_a_second_process};

const GRAPHS: &str = "torch-cuda-graph-node";

/// Replaces the rows of graph nodes by one row per launch, as `--cuda-graph-trace=graph` records.
fn collapse(capture: &OpenCapture) {
    capture
        .sql
        .execute_batch(
            "create table CUPTI_ACTIVITY_KIND_GRAPH_TRACE as
               select min(start) as start, max(end) as end, deviceId, contextId,
                      min(streamId) as streamId, correlationId, globalPid,
                      3 as graphId, 4 as graphExecId, null as eventId
               from CUPTI_ACTIVITY_KIND_KERNEL where graphNodeId is not null
               group by correlationId, globalPid;
             delete from CUPTI_ACTIVITY_KIND_KERNEL where graphNodeId is not null;
             drop table CUDA_GRAPH_NODE_EVENTS;",
        )
        .unwrap();
}

fn stage<'a>(analysis: &'a Analysis, stage: &str) -> &'a StageGpu {
    analysis.stage_gpu.totals.iter().find(|it| it.stage == stage).unwrap()
}

#[test]
fn a_whole_traced_decode_is_at_least_as_busy_as_the_node_traced_one() {
    let capture = OpenCapture::open(GRAPHS);
    let by_node = capture.analysis(StageRules::default());
    collapse(&capture);
    let whole = capture.analysis(StageRules::default());
    let (node, graph) = (stage(&by_node, "decode_all"), stage(&whole, "decode_all"));
    assert_eq!(node.window_ms, graph.window_ms);
    assert!(graph.busy_ms.unwrap() >= node.busy_ms.unwrap() && graph.busy_ms <= graph.window_ms);
    assert!(graph.idle_ms.unwrap() <= node.idle_ms.unwrap());
    assert_eq!(
        (node.graph_launches, node.whole_graphs, node.busy_is_upper_bound),
        (Some(32), 0, false)
    );
    assert_eq!(
        (graph.graph_launches, graph.whole_graphs, graph.busy_is_upper_bound),
        (Some(32), 32, true)
    );

    let (node, graph) = (by_node.step.unwrap(), whole.step.as_ref().unwrap());
    assert_eq!(
        (node.step, node.steps, node.window_us),
        (graph.step, graph.steps, graph.window_us),
        "the same step"
    );
    assert!(graph.busy_us >= node.busy_us && graph.idle_us.unwrap() <= node.idle_us.unwrap());
    assert_eq!((graph.kernels, graph.whole_graphs), (0, 1));
}

#[test]
fn replays_of_a_whole_graph_equal_plain_sql() {
    let capture = OpenCapture::open(GRAPHS);
    collapse(&capture);
    let query = "select count(*), sum(end - start), min(end - start), max(end - start)
                 from CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
    let sums: [i64; 4] = capture
        .sql
        .query_row(query, [], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))
        .unwrap();
    let analysis = capture.analysis(StageRules::default());
    let [graph] = &analysis.graphs[..] else { panic!("{:?}", analysis.graphs) };
    let ns = graph.launch_ns;
    assert_eq!([ns.count as i64, ns.total, ns.min, ns.max], sums);
    assert_eq!(
        (graph.stage.as_str(), graph.graph, ns.mean),
        ("decode_all", Some(3), sums[1] as f64 / sums[0] as f64)
    );
    let region = analysis.regions.iter().find(|it| it.name == "decode_step").unwrap();
    assert_eq!((region.whole_graphs, (region.graph_ms * 1e6).round() as i64), (32, sums[1]));
    let projected = analysis.sums.ranges.iter().find(|it| it.name == "decode_step").unwrap();
    assert_eq!((projected.gpu_ops, projected.projected_ns.unwrap().total), (32, sums[1]));
    let kernels = analysis.kernels.stages.iter().find(|it| it.stage == "decode_all").unwrap();
    assert_eq!((kernels.launches, kernels.graph_launches, kernels.kernel_ms), (0, 32, Some(0.0)));
}

#[test]
fn decode_of_a_light_run_on_an_h200_is_busy_where_its_graphs_run() {
    let capture = OpenCapture::open("h200-whole-graphs");
    let analysis = capture.analysis(StageRules::default());
    let query = "
        with ranges as (
            select start, end,
                coalesce(text, (select value from StringIds where id = textId)) as name
            from NVTX_EVENTS)
        select count(*), sum(graph.end - graph.start) from CUPTI_ACTIVITY_KIND_GRAPH_TRACE graph
        join CUPTI_ACTIVITY_KIND_RUNTIME call using (correlationId)
        join ranges stage
            on call.start between stage.start and stage.end and stage.name = 'decode_all'
        where not exists (select 1 from ranges warm
            where warm.name = 'warmup' and call.start between warm.start and warm.end)";
    let (replays, total): (i64, i64) =
        capture.sql.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let decode = stage(&analysis, "decode_all");
    assert_eq!(
        (decode.graph_launches, decode.whole_graphs, decode.busy_is_upper_bound),
        (Some(4), replays.unsigned_abs(), true)
    );
    let (busy, window) = (decode.busy_ms.unwrap(), decode.window_ms.unwrap());
    assert!(
        total as f64 / 1e6 <= busy && busy <= window,
        "{total} ns of graphs, {busy} ms busy in {window} ms"
    );
    let ids: Vec<&str> = analysis.findings.iter().map(|it| it.id.as_str()).collect();
    assert!(ids.contains(&"graphs_traced_whole") && !ids.contains(&"decode_eager"), "{ids:?}");
}

#[test]
fn a_launch_of_a_graph_is_covered_by_its_row_and_lost_without_it() {
    let capture = OpenCapture::open(GRAPHS);
    collapse(&capture);
    let counts = || {
        let trace = parse::nsys::read(&capture.dir.path().join("run.sqlite")).unwrap();
        assert_eq!(Capture::of(&trace).graphs().count(), trace.graphs.len());
        let coverage = coverage(&trace, &[]);
        (coverage.launched, coverage.recorded)
    };
    let (launched, recorded) = counts();
    assert_eq!(launched, recorded);
    capture
        .sql
        .execute_batch("delete from CUPTI_ACTIVITY_KIND_GRAPH_TRACE where rowid % 2 = 0")
        .unwrap();
    assert_eq!(counts(), (launched, recorded - 16));
}

#[test]
fn a_report_of_whole_graphs_lists_unrecorded_kernels_and_the_remedy() {
    let capture = OpenCapture::open(GRAPHS);
    collapse(&capture);
    let (export, out) = (capture.dir.path().join("run.sqlite"), capture.dir.path().join("out"));
    let (good, _, error) = llmprof(&[export.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(good, "{error}");
    let text = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    let report = text("report.md");
    assert!(
        report.contains("The kernels inside 32 launches of CUDA graphs in decode are not recorded"),
        "{report}"
    );
    assert!(report.contains("nsys --cuda-graph-trace=node"), "the remedy");
    assert!(report.contains("Sums and shares are of recorded kernels only."));
    let all = [report, text("report.html"), text("kernels.md"), text("stakeholder_summary.md")];
    assert!(all.iter().all(|it| it.contains("not recorded")));
    let json: serde_json::Value = serde_json::from_str(&text("report.json")).unwrap();
    let findings: Vec<&str> =
        json["findings"].as_array().unwrap().iter().filter_map(|it| it["id"].as_str()).collect();
    assert!(findings.contains(&"graphs_traced_whole"));
    assert!(
        !findings.iter().any(|id| ["decode_eager", "decode_launch_bound"].contains(id)),
        "decode replays a graph already"
    );
    let decode = json["stage_gpu"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["stage"] == "decode_all")
        .unwrap();
    assert!(decode["busy_is_upper_bound"] == true && decode["busy_pct"].as_f64().unwrap() > 50.0);
    assert_eq!(json["whole_graphs"][0]["launch_ns"]["count"], 32);
    assert_eq!(json["decode_step"]["whole_graphs"], 1);
}

#[test]
fn with_a_folder_for_the_files_the_first_page_and_their_places_are_printed() {
    let capture = OpenCapture::open("hf-deepseek-decoder");
    let (export, out) = (capture.dir.path().join("run.sqlite"), capture.dir.path().join("out"));
    let (good, printed, error) =
        llmprof(&[export.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(good, "{error}");
    assert!(printed.contains("Prefill takes") && !printed.contains("## "), "{printed}");
    let last = printed.lines().last().unwrap();
    for name in ["report.html", "report.md", "stakeholder_summary.md"] {
        assert!(last.contains(name) && out.join(name).exists(), "{name}: {last}");
    }
    assert!(last.contains(out.to_str().unwrap()), "{last}");
}

/// Every file of the report of a capture.
fn files(capture: &OpenCapture) -> Vec<(String, String)> {
    let (export, out) = (capture.dir.path().join("run.sqlite"), capture.dir.path().join("out"));
    let (good, _, error) = llmprof(&[export.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(good, "{error}");
    let files = fs::read_dir(&out).unwrap().map(|it| it.unwrap().path());
    let read = |path: std::path::PathBuf| {
        let text = String::from_utf8(fs::read(&path).unwrap()).ok()?;
        Some((path.file_name().unwrap().to_string_lossy().into_owned(), text))
    };
    files.filter_map(read).collect()
}

#[test]
fn a_capture_without_a_gpu_has_no_table_of_one_in_any_file() {
    let capture = OpenCapture::open("hf-llama-attention-mock");
    for table in ["RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION"] {
        capture.sql.execute_batch(&format!("drop table CUPTI_ACTIVITY_KIND_{table}")).unwrap();
    }
    let analysis = capture.analysis(StageRules::default());
    assert!(
        !analysis.stages.rows.is_empty()
            && analysis.stage_gpu.totals.is_empty()
            && analysis.processes.stages.is_empty()
    );
    let files = files(&capture);
    assert!(files.len() > 10);
    for (name, text) in &files {
        for gone in ["GPU per stage", "Idle: host", "Device time per stage", "GPU idle"] {
            assert!(!text.contains(gone), "{name} has {gone:?}");
        }
    }
    let of = |name: &str| &files.iter().find(|it| it.0 == name).unwrap().1;
    let json: serde_json::Value = serde_json::from_str(of("report.json")).unwrap();
    for empty in [
        "stage_gpu",
        "stage_gpu_devices",
        "stage_kernels",
        "whole_graphs",
        "processes",
        "kernels_topk",
    ] {
        assert_eq!(json[empty], serde_json::json!([]), "{empty}");
    }
}

#[test]
fn copies_fills_and_busy_time_of_two_gpus_equal_plain_sql_in_every_table() {
    let capture = OpenCapture::open("hf-llama-e2e");
    with_a_second_process(&capture);
    let sum = |table: &str| -> (u64, u64) {
        let query = format!("select count(*), sum(bytes) from CUPTI_ACTIVITY_KIND_{table}");
        capture
            .sql
            .query_row(&query, [], |row| {
                Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64))
            })
            .unwrap()
    };
    let analysis = capture.analysis(StageRules::default());
    let apart = &analysis.processes.stages;
    let copies =
        (apart.iter().map(|it| it.copies).sum(), apart.iter().map(|it| it.copied_bytes).sum());
    let fills =
        (apart.iter().map(|it| it.fills).sum(), apart.iter().map(|it| it.filled_bytes).sum());
    assert_eq!((copies, fills), (sum("MEMCPY"), sum("MEMSET")), "a fill copies nothing");

    let gpus = &analysis.stage_gpu;
    assert_eq!(gpus.devices.len(), 2 * gpus.totals.len());
    for total in &gpus.totals {
        assert_eq!((total.device, total.devices), (None, 2));
        let of: Vec<&StageGpu> = gpus.devices.iter().filter(|it| it.stage == total.stage).collect();
        for (at, device) in of.iter().enumerate() {
            assert_eq!(device.device, Some(at as u32));
            let same =
                apart.iter().find(|it| it.stage == total.stage && it.device == at as u32).unwrap();
            assert_eq!(
                same.busy_ms, device.busy_ms,
                "a process that has a GPU to itself is busy as the GPU is"
            );
            assert_eq!(
                (same.copies, same.fills),
                (device.copies.iter().map(|it| it.calls).sum(), device.fills)
            );
        }
        let twice = |of_one: Option<f64>, all: Option<f64>| {
            (all.unwrap() - 2.0 * of_one.unwrap()).abs() < 1e-6
        };
        assert!(twice(of[0].busy_ms, total.busy_ms) && twice(of[0].idle_ms, total.idle_ms));
        assert!(
            twice(of[0].window_ms, total.window_ms)
                && (total.busy_pct.unwrap() - of[0].busy_pct.unwrap()).abs() < 1e-9
        );
        let kernels = analysis.kernels.stages.iter().find(|it| it.stage == total.stage).unwrap();
        assert!(
            (kernels.busy_ms.unwrap() - total.busy_ms.unwrap()).abs() < 1e-6,
            "one figure in every table"
        );
    }
}

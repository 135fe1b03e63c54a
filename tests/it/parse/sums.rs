//! Sums over real captures, equal to the nanosecond to plain SQL on the same export: the
//! definitions of nsys's tables `cuda_gpu_kern_sum`, `cuda_api_sum`, `nvtx_sum` and
//! `nvtx_gpu_proj_sum`.

use std::{collections::BTreeMap, fs::File, path::Path, process::Command};

use llmprof_analyze::{Analysis, parse};
use llmprof_core::trace::{Trace, stage::StageRules};
use rusqlite::Connection;
use tempfile::TempDir;

const CAPTURES: [&str; 4] =
    ["hf-deepseek-decoder", "hf-llama-e2e", "hf-llama-attention-mock", "torch-cuda-graph-node"];

pub struct OpenCapture {
    pub dir: TempDir,
    pub sql: Connection,
}

impl OpenCapture {
    pub fn open(name: &str) -> Self {
        let packed = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures/captures")
            .join(format!("{name}.sqlite.zst"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.sqlite");
        zstd::stream::copy_decode(File::open(packed).unwrap(), File::create(&path).unwrap())
            .unwrap();
        let sql = Connection::open(&path).unwrap();
        Self { dir, sql }
    }

    pub fn analysis(&self, rules: StageRules) -> Analysis {
        let mut nsys = parse::nsys::read(&self.dir.path().join("run.sqlite")).unwrap();
        nsys.rules = rules;
        llmprof_analyze::analyze(&Trace { timeline: Some(nsys), ..Trace::default() }, None, None)
    }

    fn has(&self, table: &str) -> bool {
        self.sql
            .query_row("select count(*) from sqlite_master where name = ?1", [table], |row| {
                row.get(0)
            })
            .unwrap_or(0)
            == 1
    }

    /// Name, count, total, minimum and maximum of each row.
    fn sums(&self, query: &str) -> BTreeMap<String, [i64; 4]> {
        let mut statement = self.sql.prepare(query).unwrap();
        let row = |row: &rusqlite::Row| {
            Ok((row.get(0)?, [row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?]))
        };
        statement.query_map([], row).unwrap().map(Result::unwrap).collect()
    }

    /// Creates a table of device work joined to its launching calls.
    fn with_ops(&self) -> &Self {
        self.sql
            .execute_batch(
                "create temp table ops (tid int, api_start int, api_end int, start int, end int)",
            )
            .unwrap();
        for table in [
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            "CUPTI_ACTIVITY_KIND_MEMSET",
        ] {
            if self.has(table) {
                self.sql
                    .execute_batch(&format!(
                        "create index if not exists temp_{table}
                           on CUPTI_ACTIVITY_KIND_RUNTIME (correlationId);
                         insert into ops select r.globalTid, r.start, r.end, k.start, k.end
                         from {table} k join CUPTI_ACTIVITY_KIND_RUNTIME r
                           on r.correlationId = k.correlationId
                              and r.globalTid / 0x1000000 = k.globalPid / 0x1000000"
                    ))
                    .unwrap();
            }
        }
        self
    }
}

const RANGES: &str = "select coalesce(d.text, '') || ':' || coalesce(n.text, s.value) as name,
           n.start, n.end, n.globalTid as tid
    from NVTX_EVENTS n
    left join StringIds s on s.id = n.textId
    left join NVTX_EVENTS d on d.eventType = 75 and d.domainId = n.domainId
        and d.globalTid / 0x1000000 = n.globalTid / 0x1000000
    where n.eventType in (59, 60) and n.end is not null";

#[test]
fn kernels_calls_and_ranges_equal_plain_sql() {
    for name in CAPTURES {
        let capture = OpenCapture::open(name);
        let analysis = capture.analysis(StageRules::default());

        let mut kernels: BTreeMap<String, [i64; 4]> = BTreeMap::new();
        for it in &analysis.kernels.records {
            let sum = kernels.entry(it.kernel_name.clone()).or_insert([0, 0, i64::MAX, i64::MIN]);
            let ns = it.launch_ns;
            *sum = [
                sum[0] + it.calls as i64,
                sum[1] + ns.total,
                sum[2].min(ns.min),
                sum[3].max(ns.max),
            ];
        }
        let expected = "select s.value, count(*),
                sum(k.end - k.start), min(k.end - k.start), max(k.end - k.start)
            from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.shortName group by 1";
        assert_eq!(kernels, capture.sums(expected), "{name}");

        let calls = analysis.sums.calls.iter();
        let calls: BTreeMap<_, _> = calls
            .map(|it| (it.name.clone(), [it.ns.count as i64, it.ns.total, it.ns.min, it.ns.max]))
            .collect();
        let expected =
            "select s.value, count(*), sum(end - start), min(end - start), max(end - start)
            from CUPTI_ACTIVITY_KIND_RUNTIME join StringIds s on s.id = nameId group by 1";
        assert_eq!(calls, capture.sums(expected), "{name}");

        let named = |it: &llmprof_analyze::kernels::nsys_sums::RangeSum| {
            format!("{}:{}", it.domain, it.name)
        };
        let ranges = analysis.sums.ranges.iter();
        let ranges: BTreeMap<_, _> = ranges
            .map(|it| (named(it), [it.ns.count as i64, it.ns.total, it.ns.min, it.ns.max]))
            .collect();
        let expected = format!(
            "select name, count(*), sum(end - start), min(end - start), max(end - start)
             from ({RANGES}) group by 1"
        );
        assert_eq!(ranges, capture.sums(&expected), "{name}");

        let projected = analysis.sums.ranges.iter().filter_map(|it| Some((it, it.projected_ns?)));
        let projected: BTreeMap<_, _> = projected
            .map(|(it, ns)| (named(it), [ns.count as i64, ns.total, ns.max, it.gpu_ops as i64]))
            .collect();
        let expected = format!(
            "select name, count(*), sum(last - first), max(last - first), sum(n) from (
                select r.name, min(o.start) as first, max(o.end) as last, count(*) as n
                from ({RANGES}) r
                join ops o on o.tid = r.tid and o.api_start >= r.start and o.api_end <= r.end
                group by r.name, r.start, r.end) group by 1"
        );
        assert_eq!(projected, capture.with_ops().sums(&expected), "{name}");
    }
}

#[test]
fn medians_and_deviations_equal_those_of_the_sorted_times() {
    let capture = OpenCapture::open("hf-llama-e2e");
    let analysis = capture.analysis(StageRules::default());
    let call = analysis.sums.calls.iter().find(|it| it.name == "cudaLaunchKernel_v7000").unwrap();
    let query = "select end - start from CUPTI_ACTIVITY_KIND_RUNTIME
                 join StringIds s on s.id = nameId where s.value = ?1 order by 1";
    let mut statement = capture.sql.prepare(query).unwrap();
    let times: Vec<i64> =
        statement.query_map([&call.name], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let (n, mean) = (times.len(), times.iter().sum::<i64>() as f64 / times.len() as f64);
    assert_eq!(call.ns.median, (times[(n - 1) / 2] + times[n / 2]) as f64 / 2.0);
    let std =
        (times.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum::<f64>() / (n as f64 - 1.0)).sqrt();
    assert!((call.ns.std.unwrap() / std - 1.0).abs() < 1e-9);
}

#[test]
fn included_and_excluded_ranges_equal_plain_sql() {
    let capture = OpenCapture::open("hf-llama-e2e");
    capture.with_ops();
    let inside = |stage: &str, outer: &str| {
        let query = format!(
            "with r as materialized ({RANGES}),
                 s as materialized (select * from r where name = 'LLM:{stage}'),
                 m as materialized (select * from r where name = 'LLM:measured')
             select 'x', count(*), sum(o.end - o.start), 0, 0
             from s, m, ops o where s.tid = o.tid and o.api_start between s.start and s.end
               and {outer} (o.api_start between m.start and m.end)"
        );
        let sum = capture.sums(&query)["x"];
        (sum[0] as u64, sum[1])
    };
    let stage = |rules: StageRules, stage: &str| {
        let analysis = capture.analysis(rules);
        let copies = analysis.stage_gpu.totals.iter().find(|it| it.stage == stage);
        let copies =
            copies.map_or(0, |it| it.fills + it.copies.iter().map(|it| it.calls).sum::<u64>());
        let kernels = analysis.kernels.stages.iter().find(|it| it.stage == stage).unwrap().launches;
        (
            kernels + copies,
            analysis.stage_gpu.totals.iter().find(|it| it.stage == stage).unwrap().instances,
        )
    };
    let measured = || StageRules::with(vec![], vec!["measured".into()], vec![]);
    let others = || StageRules::with(vec![], vec![], vec!["measured".into()]);
    for name in ["prefill", "decode_all"] {
        assert_eq!(stage(measured(), name), (inside(name, "").0, 1), "{name}");
    }
    // The first of the other instances may be cold and count as warm-up.
    let stages = ["prefill", "decode_all", "warmup"].map(|name| stage(others(), name));
    let all = inside("prefill", "not").0 + inside("decode_all", "not").0;
    assert_eq!(stages.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1)), (all, 4));
    let rules = StageRules::with(
        vec!["attention=decoder.self_attn@LLM".parse().unwrap()],
        vec!["measured".into()],
        vec![],
    );
    let attention = capture
        .analysis(rules)
        .kernels
        .stages
        .iter()
        .find(|it| it.stage == "attention")
        .unwrap()
        .clone();
    assert_eq!(
        (attention.launches, (attention.kernel_ms.unwrap() * 1e4).round()),
        (136 + 2_304, (7_240 + 81_973) as f64)
    );
}

/// Adds a second process with the same work, on another GPU that it also calls device 0.
pub fn with_a_second_process(capture: &OpenCapture) {
    for (table, column) in [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "globalPid"),
        ("CUPTI_ACTIVITY_KIND_MEMSET", "globalPid"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
        ("NVTX_EVENTS", "globalTid"),
        ("PROCESSES", "globalPid"),
    ] {
        let other = format!(
            "create temp table other as select * from {table};
             update other set {column} = {column} + (5000 << 24);
             insert into {table} select * from other; drop table other"
        );
        capture.sql.execute_batch(&other).unwrap();
    }
    capture
        .sql
        .execute_batch(
            "insert into TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid)
             select 1, 0, pid + 5000 from TARGET_INFO_CUDA_DEVICE",
        )
        .unwrap();
}

#[test]
fn two_processes_are_separate_and_add_up_to_the_totals() {
    let capture = OpenCapture::open("hf-llama-e2e");
    let alone = capture.analysis(StageRules::default());
    assert!(alone.processes.kernels.is_empty() && alone.processes.ranges.is_empty());
    with_a_second_process(&capture);
    let both = capture.analysis(StageRules::default());
    let seen: std::collections::BTreeSet<_> = both
        .processes
        .stages
        .iter()
        .map(|it| (it.process, it.process_name.as_deref(), it.device))
        .collect();
    assert_eq!(seen, [(440, Some("python3"), 0), (5_440, Some("python3"), 1)].into());
    for stage in &alone.kernels.stages {
        let apart: Vec<_> =
            both.processes.stages.iter().filter(|it| it.stage == stage.stage).collect();
        assert_eq!(apart.len(), 2);
        for it in apart {
            assert_eq!(
                (it.launches, it.kernel_ms, it.busy_ms),
                (stage.launches, stage.kernel_ms, stage.busy_ms)
            );
        }
        let together = both.kernels.stages.iter().find(|it| it.stage == stage.stage).unwrap();
        assert_eq!(together.launches, 2 * stage.launches);
        assert!(
            (together.busy_ms.unwrap() - 2.0 * stage.busy_ms.unwrap()).abs() < 1e-9,
            "busy time is summed over GPUs"
        );
    }
    let calls: u64 =
        both.processes.kernels.iter().filter(|it| it.process == 440).map(|it| it.calls).sum();
    assert_eq!((calls, both.processes.kernels.len() % 2), (18_262, 0));
    let steps: Vec<_> = both.processes.ranges.iter().filter(|it| it.name == "decode_all").collect();
    assert!(steps.len() == 2 && steps[0].ns == steps[1].ns);
}

#[test]
fn idle_time_is_the_window_without_busy_and_other_time() {
    for name in CAPTURES {
        let analysis = OpenCapture::open(name).analysis(StageRules::default());
        assert!(!analysis.stage_gpu.totals.is_empty() && analysis.stage_gpu.devices.is_empty());
        for it in &analysis.stage_gpu.totals {
            let sum = |parts: &[Option<f64>]| parts.iter().map(|it| it.unwrap()).sum::<f64>();
            let idle = it.idle_ms.unwrap();
            let parts =
                sum(&[it.idle_host_ms, it.idle_copy_ms, it.idle_sync_ms, it.idle_unknown_ms]);
            let whole = sum(&[it.busy_ms, it.other_ms, it.idle_ms]);
            assert!(
                (parts - idle).abs() < 1e-6 && (whole - it.window_ms.unwrap()).abs() < 1e-6,
                "{name}: {it:?}"
            );
            let busy = analysis
                .kernels
                .stages
                .iter()
                .find(|stage| stage.stage == it.stage)
                .unwrap()
                .busy_ms;
            assert!(
                (busy.unwrap() - it.busy_ms.unwrap()).abs() < 1e-9,
                "{name}: busy time is equal in all tables"
            );
            // Idle time between the nodes of a replayed graph has no host reason.
            let replays = name == "torch-cuda-graph-node" && it.stage == "decode_all";
            assert!(replays || it.idle_unknown_ms.unwrap() <= 0.2 * idle, "{name}: {it:?}");
        }
    }
}

pub fn llmprof(args: &[&str]) -> (bool, String, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_llmprof")).arg("analyze").args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn analysing_a_capture_writes_the_files_of_a_run() {
    let capture = OpenCapture::open("hf-deepseek-decoder");
    let (export, out) = (capture.dir.path().join("run.sqlite"), capture.dir.path().join("out"));
    let (good, _, error) = llmprof(&[export.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(good, "{error}");
    let report = std::fs::read_to_string(out.join("report.md")).unwrap();
    assert!(report.contains("there is no unprofiled one"));
    let mut table = csv::Reader::from_path(out.join("kernels.csv")).unwrap();
    let names: Vec<String> = table.headers().unwrap().iter().map(str::to_owned).collect();
    let at = |name: &str| names.iter().position(|it| it == name).unwrap();
    let (stage, calls, total_ns) = (at("stage"), at("calls"), at("launch_ns.total"));
    let mut sums: BTreeMap<String, (u64, i64)> = BTreeMap::new();
    for row in table.records() {
        let row = row.unwrap();
        let sum = sums.entry(row[stage].to_owned()).or_default();
        sum.0 += row[calls].parse::<u64>().unwrap();
        sum.1 += row[total_ns].parse::<i64>().unwrap();
    }
    // The first prefill is cold and counts as warm-up.
    let stages = ["prefill", "decode_all", "warmup"].map(|stage| sums[stage]);
    assert_eq!(
        stages.iter().fold((0, 0), |all, it| (all.0 + it.0, all.1 + it.1)),
        (1_972 + 10_800, 15_243_102 + 27_012_363)
    );
    assert_eq!(sums["warmup"].0, 986);
    assert_eq!(
        sums.values().fold((0, 0), |all, it| (all.0 + it.0, all.1 + it.1)),
        (13_050, 50_249_920)
    );
    for name in [
        "report.md",
        "report.html",
        "report.json",
        "operators.md",
        "kernels.md",
        "gemms.md",
        "stages.json",
        "kernels.json",
    ] {
        assert!(out.join(name).exists(), "{name}");
    }
}

#[test]
fn other_files_are_refused_in_one_line_that_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let whole =
        std::fs::read(OpenCapture::open("hf-llama-attention-mock").dir.path().join("run.sqlite"))
            .unwrap();
    for (name, bytes) in [
        ("empty", &b""[..]),
        ("text", b"stage,kernel\n"),
        ("cut", &whole[..whole.len() / 2]),
        ("head", &whole[..100]),
    ] {
        let path = dir.path().join(format!("{name}.sqlite"));
        std::fs::write(&path, bytes).unwrap();
        let (good, _, error) = llmprof(&[path.to_str().unwrap()]);
        assert!(
            !good && error.lines().count() == 1 && error.contains(&format!("{name}.sqlite")),
            "{error}"
        );
    }
    let path = dir.path().join("page.csv");
    std::fs::write(&path, "a,b\n").unwrap();
    let export = dir.path().join("whole.sqlite");
    std::fs::write(&export, &whole).unwrap();
    let (good, _, error) = llmprof(&[export.to_str().unwrap(), "--ncu", path.to_str().unwrap()]);
    assert!(!good && error.contains("page.csv"), "{error}");
}

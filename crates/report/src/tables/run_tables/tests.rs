//! Long tables, with a limit of a few rows.

use llmprof_analyze::{
    kernels::{
        call_sites::CallSite,
        nsys_sums::{CallSum, RangeSum},
    },
    requests::RequestRow,
    timeline::{duration_stats::DurationStats, regions::Region},
};
use proptest::prelude::*;
use serde_json::json;

use super::{
    super::stored::{self, RowSelection},
    *,
};

fn region(number: usize, kernels: u64) -> Region {
    let (name, kernel_ms) = (format!("layer_{number}"), kernels as f64 / 8.0);
    Region { name, kernels, kernel_ms, instances: 2, share_pct: Some(1.0), ..Region::default() }
}

/// The stored table, with at most `max` rows of its own.
fn stored(table: RunTable, max: usize) -> Value {
    serde_json::from_str(&RunTable { max, ..table }.line()).unwrap()
}

fn regions_of(records: &[Region]) -> RunTable<'_> {
    RunTable::new("regions", regions::columns(), records)
}

#[test]
fn the_rest_of_a_long_table_is_one_row_that_has_their_number_and_sums() {
    let records: Vec<Region> = (0..5).map(|at| region(at, 10 - at as u64)).collect();
    let line = stored(regions_of(&records), 2);
    assert_eq!((&line["total"], &line["left_out"]), (&json!(3), &json!(3)));
    let [first, _, rest] = line["rows"].as_array().unwrap().as_slice() else { panic!("{line}") };
    assert_eq!(first[0], "layer_0");
    let sums = json!(["(3 more rows)", null, 6, 21, 2.625, 0, 0.0, null, null]);
    assert_eq!(rest.as_array().unwrap()[..9], sums.as_array().unwrap()[..], "a share has no sum");
    let csv = RunTable { max: 2, ..regions_of(&records) }.csv();
    assert!(csv.lines().nth(3).unwrap().starts_with("(3 more rows),,6,21,2.625,"), "{csv}");
}

#[test]
fn a_list_whose_rest_is_summed_already_has_the_same_row() {
    let records: Vec<Region> = (0..5).map(|at| region(at, 10 - at as u64)).collect();
    let mut kept = Limited { rows: records[..2].to_vec(), rest: None };
    kept.rest = Some((Region { kernels: 21, kernel_ms: 2.625, instances: 6, ..region(9, 0) }, 3));
    let line = stored(RunTable::new("regions", regions::columns(), &kept), MAX_ROWS);
    assert_eq!(line, stored(regions_of(&records), 2));
}

#[test]
fn a_table_within_the_limit_has_its_rows_alone() {
    let records: Vec<Region> = (0..5).map(|at| region(at, 1)).collect();
    let line = stored(regions_of(&records), 5);
    assert_eq!((&line["total"], line.get("left_out")), (&json!(5), None));
    assert_eq!(regions_of(&records).max, MAX_ROWS);
}

#[test]
fn a_stored_long_table_states_how_many_rows_are_left_out() {
    let records: Vec<Region> = (0..9).map(|at| region(at, 1)).collect();
    let line = RunTable { max: 4, ..regions_of(&records) }.line();
    let heads = stored::heads(line.as_bytes(), |_, _| None).unwrap();
    assert_eq!((heads[0].total, heads[0].left_out), (5, Some(5)));
    let table = stored::find(line.as_bytes(), "regions", |_, _| None).unwrap().unwrap();
    let filters = vec!["name=layer_3".parse().unwrap()];
    let found = table.select(&RowSelection { filters, ..RowSelection::default() }).unwrap();
    let found = found.json("00000000-0000-0000-0000-000000000000".parse().unwrap());
    assert_eq!((found.total, found.left_out), (1, Some(5)));
}

#[test]
fn requests_that_are_left_out_have_no_sum_of_times() {
    let request = |number: u64| {
        serde_json::from_value::<RequestRow>(json!({
            "pass": "unprofiled", "repeat": 0, "request": number, "start_ms": 1.0,
            "send_delay_ms": 0.0, "first_token_ms": 2.0, "token_ms": 1.0, "end_ms": 9.0,
            "prompt_tokens": 3, "output_tokens": 8, "requested_tokens": 8, "finish": null,
            "status": 200, "failure": null, "message": null
        }))
        .unwrap()
    };
    let records: Vec<RequestRow> = (0..4).map(request).collect();
    let table = RunTable::new("requests", requests::columns(), &records);
    let at = |name: &str| table.columns.iter().position(|it| it.0 == name).unwrap();
    let [tokens, time] = ["output_tokens", "first_token_ms"].map(at);
    let line = stored(table, 1);
    assert_eq!((&line["rows"][1][tokens], &line["rows"][1][time]), (&json!(24), &Value::Null));
}

/// Sum of each column of numbers.
fn totals(line: &Value) -> Vec<f64> {
    let rows = line["rows"].as_array().unwrap();
    let columns = line["columns"].as_array().unwrap().len();
    let sum = |at: usize| rows.iter().filter_map(|row| row[at].as_f64()).sum();
    (0..columns).map(sum).collect()
}

fn check<R: std::fmt::Debug>(columns: fn() -> Vec<TableColumn<R>>, records: &[R], max: usize) {
    let whole = stored(RunTable::new("table", columns(), records), usize::MAX);
    let limited = stored(RunTable::new("table", columns(), records), max);
    let left_out = limited["left_out"].as_u64().unwrap_or(0);
    assert_eq!(left_out, records.len().saturating_sub(max) as u64);
    let sums = totals(&whole).into_iter().zip(totals(&limited));
    for (column, (whole, limited)) in columns().iter().zip(sums) {
        let is_equal = (whole - limited).abs() < 1e-6;
        let has_sum = column.is_summed() || left_out == 0;
        assert!(is_equal || !has_sum, "{}: {whole} and {limited}", column.name);
    }
}

proptest! {
    #[test]
    fn totals_are_equal_with_and_without_the_limit(
        values in prop::collection::vec((0u64..100, 0i64..1000), 0..12), max in 0usize..14
    ) {
        let stats = |ns: i64| DurationStats { count: 2, total: ns, ..DurationStats::default() };
        let name = |at: usize| format!("name {at}");
        let all = || values.iter().copied().enumerate();
        let regions: Vec<Region> = all().map(|(at, (count, _))| region(at, count)).collect();
        check(regions::columns, &regions, max);
        let ranges = all().map(|(at, (count, ns))| RangeSum {
            domain: String::new(),
            name: name(at),
            style: "push_pop".into(),
            ns: stats(ns),
            projected_ns: (ns % 2 == 0).then(|| stats(ns)),
            gpu_ops: count,
        });
        check(traced::range_columns, &ranges.collect::<Vec<_>>(), max);
        let calls = all().map(|(at, (_, ns))| CallSum {
            name: name(at),
            processes: 1,
            ns: stats(ns),
            before_work_ns: None,
            nested_ns: 0,
        });
        check(traced::call_columns, &calls.collect::<Vec<_>>(), max);
        let sites = all().map(|(at, (kernels, ns))| CallSite {
            call_site: name(at),
            stage: String::new(),
            kernels,
            kernel_ms: ns as f64,
            share_pct: None,
        });
        check(traced::call_site_columns, &sites.collect::<Vec<_>>(), max);
    }
}

//! Pages of a real report, and pages that go wrong.

use std::{collections::BTreeSet, io::Read};

use proptest::prelude::*;

use super::*;

mod encodings;
mod pages_and_units;

/// A capture that the fixtures hold, unpacked.
fn capture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/captures")
        .join(format!("{name}.zst"));
    let mut text = String::new();
    zstd::stream::read::Decoder::new(std::fs::File::open(path).unwrap())
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    text
}

fn raw() -> CounterPage {
    parse_page(&capture("hf-llama-decode.ncu-raw.csv"))
}

fn line(launch: &LaunchCounters) -> String {
    let values = &launch.values;
    let pct = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
    let stalls: Vec<String> =
        values.stalls.iter().map(|it| format!("{} {:.2}", it.reason, it.warps_per_issue)).collect();
    format!(
        "{} {} {:?} {:?}\n  regs {} {:.0} ns, sm {} mem {} dram {},\n  l1 {} l2 {}, \
         occ {} of {}, tensor {}, {} B, {:.0} fp32,\n  {}",
        launch.id,
        launch.kernel.replace("_16x128x128_", "\n  _16x128x128_"),
        launch.grid.unwrap_or_default(),
        launch.block.unwrap_or_default(),
        values.registers.unwrap_or_default(),
        values.duration_ns.unwrap_or_default(),
        pct(values.sm_pct),
        pct(values.memory_pct),
        pct(values.dram_pct),
        pct(values.l1_hit_pct),
        pct(values.l2_hit_pct),
        pct(values.achieved_occupancy_pct),
        pct(values.theoretical_occupancy_pct),
        pct(values.tensor_pct),
        values.dram_bytes.unwrap_or_default().round(),
        values.flops["fp32"],
        stalls.join(", ")
    )
}

#[test]
fn a_real_raw_page_holds_sixty_launches_in_base_units() {
    let page = raw();
    assert_eq!(
        (page.launches.len(), page.truncated, page.not_a_number.len(), page.messages.len()),
        (60, false, 0, 0)
    );
    let lines = [0, 6, 7, 21, 37].map(|at| line(&page.launches[at])).join("\n");
    insta::assert_snapshot!(lines, @r"
    0 reduce_kernel [1, 1, 1] [512, 1, 1]
      regs 32 3488 ns, sm 0.10 mem 1.55 dram 0.43,
      l1 0.00 l2 68.74, occ 23.11 of 100.00, tensor 0.00, 71169 B, 6625 fp32,
      short_scoreboard 3.72, long_scoreboard 3.14, wait 2.73
    6 nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT [4, 8, 1] [384, 1, 1]
      regs 168 6688 ns, sm 4.18 mem 26.28 dram 26.28,
      l1 0.00 l2 4.58, occ 13.98 of 18.75, tensor 1.03, 8409090 B, 0 fp32,
      long_scoreboard 4.87, wait 1.77, no_instruction 0.76
    7 nvjet_sm90_tst_8x64_64x16_2x1_v_bz_TNN [2, 64, 1] [384, 1, 1]
      regs 168 13664 ns, sm 8.30 mem 15.26 dram 6.42,
      l1 0.00 l2 73.25, occ 14.25 of 18.75, tensor 2.01, 4218118 B, 0 fp32,
      long_scoreboard 16.30, wait 1.80, no_instruction 1.09
    21 cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_35
      _16x128x128_1x4x1_cga1x1x1_kernel0_0 [4, 8, 1] [128, 1, 1]
      regs 183 6816 ns, sm 3.27 mem 6.52 dram 6.52,
      l1 0.72 l2 13.06, occ 5.97 of 12.50, tensor 0.95, 2136830 B, 911936 fp32,
      wait 0.86, short_scoreboard 0.78, barrier 0.49
    37 nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT [4, 24, 1] [384, 1, 1]
      regs 168 10048 ns, sm 8.14 mem 48.09 dram 48.09,
      l1 0.00 l2 4.50, occ 14.27 of 18.75, tensor 1.91, 23098111 B, 0 fp32,
      long_scoreboard 9.26, wait 1.77, no_instruction 0.96
    ");
    assert_eq!(
        page.launches.iter().map(|it| it.kernel.as_str()).collect::<BTreeSet<_>>().len(),
        12
    );
}

#[test]
fn the_details_page_equals_the_raw_one_within_its_rounding() {
    let (details, raw) = (parse_page(&capture("hf-llama-decode.ncu-details.csv")), raw());
    assert_eq!(details.launches.len(), 60);
    for (one, other) in details.launches.iter().zip(&raw.launches) {
        assert_eq!(
            (one.id, &one.full_name, one.grid, one.block),
            (other.id, &other.full_name, other.grid, other.block)
        );
        assert_eq!(one.values.registers, other.values.registers);
        for (one, other) in [
            (one.values.duration_ns, other.values.duration_ns),
            (one.values.sm_pct, other.values.sm_pct),
            (one.values.memory_pct, other.values.memory_pct),
            (one.values.dram_pct, other.values.dram_pct),
            (one.values.l2_hit_pct, other.values.l2_hit_pct),
            (one.values.achieved_occupancy_pct, other.values.achieved_occupancy_pct),
            (one.values.theoretical_occupancy_pct, other.values.theoretical_occupancy_pct),
            (one.values.dram_bytes, other.values.dram_bytes),
        ] {
            let (one, other) = (one.unwrap(), other.unwrap());
            assert!((one - other).abs() <= 0.0051_f64.max(other * 0.006), "{one} {other}");
        }
    }
}

#[test]
fn intensity_is_known_where_no_tensor_core_worked() {
    let page = raw();
    let known = page.launches.iter().filter(|it| it.values.arithmetic_intensity().is_some());
    assert!(known.count() > 40);
    let matrix = page.launches.iter().filter(|it| it.kernel.starts_with("nvjet"));
    assert!(
        matrix.clone().count() > 0
            && matrix.clone().all(|it| it.values.arithmetic_intensity().is_none())
    );
}

#[test]
fn every_empty_page_is_a_failure_with_the_tools_message() {
    let wanted = ["gemm".to_owned()];
    let failure = |text: &str| parse_page(text).failure(&wanted).unwrap();
    assert_eq!(failure(""), "ncu's pages have no kernel launch");
    assert_eq!(
        failure("==PROF== Connected\n==WARNING== No kernels were profiled.\n"),
        "ncu's pages have no kernel launch: ==WARNING== No kernels were profiled."
    );
    let head = "\"ID\",\"Kernel Name\",\"Block Size\",\"Grid \
                Size\",\"gpu__time_duration.sum\"\n\"\",\"\",\"\",\"\",\"ns\"\n";
    assert_eq!(
        failure(&format!("{head}\"0\",\"gemm\",\"(1, 1, 1)\",\"(2, 1, 1)\",\"nan\"\n")),
        "1 counters are not numbers; the first is gemm: gpu__time_duration.sum"
    );
    assert_eq!(
        failure(&format!("{head}\"0\",\"copy\",\"(1, 1, 1)\",\"(2, 1, 1)\",\"1,000\"\n")),
        "ncu profiled none of the requested kernels: gemm"
    );
    let good = parse_page(&format!("{head}\"0\",\"gemm\",\"(1, 1, 1)\",\"(2, 1, 1)\",\"1,000\"\n"));
    assert_eq!((good.failure(&wanted), good.launches[0].values.duration_ns), (None, Some(1000.0)));
    assert_eq!((good.launches[0].grid, good.launches[0].block), (Some([2, 1, 1]), Some([1, 1, 1])));
}

/// The raw page of decode with its first ten launches in prefill.
fn page_of_two_stages() -> String {
    let is_early = |line: &str| {
        let id = line.split(',').next().map(|id| id.trim_matches('"').parse::<u32>());
        id.is_some_and(|id| id.is_ok_and(|id| id < 10))
    };
    let moved = |line: &str| match is_early(line) {
        true => line.replace(":decode_all:", ":prefill:").replace(":decode_step:", ":layer:"),
        false => line.to_owned(),
    };
    capture("hf-llama-decode.ncu-raw.csv").lines().map(|line| moved(line) + "\n").collect()
}

#[test]
fn a_page_of_two_stages_names_the_stage_of_each_launch() {
    let page = parse_page(&page_of_two_stages());
    let rules = llmprof_core::trace::stage::StageRules::default();
    let stages: Vec<_> = page.launches.iter().map(|it| it.stage_by(&rules)).collect();
    assert_eq!(stages[..10], [Some("prefill"); 10]);
    assert_eq!(stages[10..], [Some("decode_all"); 50]);
    assert_eq!(page.launches[0].ranges[1].name, "layer");
    let renamed = llmprof_core::trace::stage::StageRules::with(
        vec!["prefill=layer".parse().unwrap()],
        vec![],
        vec![],
    );
    assert_eq!(page.launches[9].stage_by(&renamed), Some("prefill"));
}

#[test]
fn a_process_has_the_stages_of_its_ranges_and_an_older_folder_its_own() {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["process-1", "decode_all"] {
        let folder = dir.path().join(layout::NCU).join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(layout::NCU_RAW), page_of_two_stages()).unwrap();
    }
    assert_eq!(folders(dir.path()).unwrap(), ["decode_all", "process-1"]);
    let first = |folder: &str| read(dir.path(), folder).unwrap().unwrap().launches.swap_remove(0);
    let (new, old) = (first("process-1"), first("decode_all"));
    assert_eq!((new.stage.as_str(), new.all_stages), ("", true));
    assert_eq!((old.stage.as_str(), old.all_stages), ("decode_all", false));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Wherever a page is cut or overwritten, reading ends with no more launches than it had.
    #[test]
    fn a_damaged_page_gives_less_and_never_panics(
        cut in 0usize..375_133,
        damage in prop::collection::vec((0usize..375_133, any::<u8>()), 0..20),
    ) {
        let mut bytes = capture("hf-llama-decode.ncu-raw.csv").into_bytes();
        for (at, byte) in damage {
            bytes[at] = byte;
        }
        bytes.truncate(cut);
        prop_assert!(parse_page(&String::from_utf8_lossy(&bytes)).launches.len() <= 61);
    }
}

/// The page with every number of its metrics written by `write`.
fn rewritten(page: &str, write: &dyn Fn(&str) -> String) -> String {
    let text = page.lines().filter(|line| !line.starts_with("==")).collect::<Vec<_>>().join("\n");
    let page = csv::page(&text);
    let raw = !page.header.iter().any(|name| name == "Metric Value");
    let number = |at: usize| {
        if raw { page.header[at].contains("__") } else { page.header[at] == "Metric Value" }
    };
    let cell = |at: usize, text: &str| {
        if number(at) && numbers::DecimalMark::Point.read(text).is_some() {
            write(text)
        } else {
            text.into()
        }
    };
    let quoted = |record: &[String]| {
        let cells = record
            .iter()
            .enumerate()
            .map(|(at, text)| format!("\"{}\"", cell(at, text).replace('"', "\"\"")));
        cells.collect::<Vec<_>>().join(",")
    };
    std::iter::once(&page.header).chain(&page.records).map(|record| quoted(record) + "\n").collect()
}

/// A number of the English locale in another one.
fn in_locale(text: &str, decimal: &str, grouping: &str) -> String {
    text.replace(',', "#").replace('.', decimal).replace('#', grouping)
}

#[test]
fn a_page_of_any_locale_reads_as_the_english_one() {
    for name in ["hf-llama-decode.ncu-raw.csv", "hf-llama-decode.ncu-details.csv"] {
        let english = capture(name);
        let expected = parse_page(&english);
        for (decimal, grouping) in
            [(",", "."), (",", "\u{202f}"), (",", " "), (".", "'"), (",", ""), (".", "")]
        {
            let page = parse_page(&rewritten(&english, &|text| in_locale(text, decimal, grouping)));
            assert_eq!(page.launches, expected.launches, "{name} {decimal:?} {grouping:?}");
        }
    }
}

#[test]
fn a_page_of_an_undecided_locale_is_refused_in_one_line() {
    let head = "\"ID\",\"Kernel Name\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric \
                Value\"\n";
    let of = |values: &[&str]| {
        let row = |value: &&str| {
            format!(
                "\"0\",\"gemm\",\"Command line profiler \
                 metrics\",\"gpu__time_duration.sum\",\"ns\",\"{value}\"\n"
            )
        };
        parse_page(&format!("{head}{}", values.iter().map(row).collect::<String>()))
    };
    let refused = of(&["117.344"]);
    assert!(refused.launches.is_empty());
    let why = refused.failure(&[]).unwrap();
    assert!(
        why.starts_with(
            "ncu's page cannot be read: the locale of its numbers is undecided (117.344"
        ),
        "{why}"
    );
    assert_eq!(of(&["117.344", "1.234.567"]).launches[0].values.duration_ns, Some(1_234_567.0));
}

#[test]
fn metrics_requested_by_name_are_read_and_unknown_ones_listed() {
    let text = "\"ID\",\"Process ID\",\"Kernel Name\",\"Kernel \
                Time\",\"Context\",\"Stream\",\"Section Name\",\"Metric Name\",\"Metric \
                Unit\",\"Metric Value\"
\"0\",\"7\",\"void <unnamed\",\"2024-Nov-13 18:14:36\",\"1\",\"7\",\"Command line profiler \
metrics\",\"gpu__time_duration.sum\",\"nsecond\",\"152,192\"
\"0\",\"7\",\"void <unnamed\",\"2024-Nov-13 18:14:36\",\"1\",\"7\",\"Command line profiler \
metrics\",\"smsp__inst_executed.sum\",\"inst\",\"12\"
\"0\",\"8\",\"\",\"2024-Nov-13 18:14:36\",\"1\",\"7\",\"Command line profiler \
metrics\",\"sm__throughput.avg.pct_of_peak_sustained_elapsed\",\"%\",\"73.25\"
";
    let page = parse_page(text);
    let of = |at: usize| &page.launches[at];
    assert_eq!(page.launches.len(), 2, "two processes number their launches alike");
    assert_eq!((of(0).values.duration_ns, of(1).values.sm_pct), (Some(152_192.0), Some(73.25)));
    assert_eq!((of(0).kernel.as_str(), of(1).kernel.as_str()), ("void <unnamed", "(unnamed)"));
    assert_eq!(
        (of(0).grid, of(0).block),
        (None, None),
        "a geometry that was not printed is absent"
    );
    assert_eq!(page.unread, ["smsp__inst_executed.sum"]);
    let ids: Vec<String> = page.gaps("a.csv").into_iter().map(|it| it.id.clone()).collect();
    assert_eq!(ids, ["ncu_sections_unread", "ncu_geometry_missing"]);
}

#[test]
fn pages_of_older_versions_read_the_same() {
    let head = "\"ID\",\"Process ID\",\"Kernel Name\",\"Section Name\",\"Metric Name\",\"Metric \
                Unit\",\"Metric Value\"\n";
    for (section, sm, memory, dram) in [
        ("GPU Speed Of Light", "SM [%]", "Memory [%]", "SOL FB"),
        ("GPU Speed Of Light", "SM [%]", "Memory [%]", "SOL DRAM"),
        ("GPU Speed Of Light", "SOL SM", "SOL Memory", "SOL DRAM"),
        ("GPU Speed Of Light Throughput", "Compute (SM) [%]", "Memory [%]", "DRAM Throughput"),
        (
            "GPU Speed Of Light Throughput",
            "Compute (SM) Throughput",
            "Memory Throughput",
            "DRAM Throughput",
        ),
    ] {
        let row = |label: &str, unit: &str, value: &str| {
            format!("\"0\",\"7\",\"gemm\",\"{section}\",\"{label}\",\"{unit}\",\"{value}\"\n")
        };
        let rows = [
            row(sm, "%", "65.77"),
            row(memory, "%", "12.50"),
            row(dram, "%", "11.25"),
            row("Duration", "usecond", "117.34"),
        ];
        let page = parse_page(&format!("{head}{}", rows.concat()));
        let values = &page.launches[0].values;
        let read = (values.sm_pct, values.memory_pct, values.dram_pct, values.duration_ns);
        assert_eq!(read, (Some(65.77), Some(12.5), Some(11.25), Some(117_340.0)), "{section} {sm}");
        assert_eq!(page.unread, [""; 0]);
    }
}

#[test]
fn the_grid_of_a_page_without_its_columns_is_that_of_the_launch_metrics() {
    let names =
        ["grid_dim_x", "grid_dim_y", "grid_dim_z", "block_dim_x", "block_dim_y", "block_dim_z"];
    let head: String = names.iter().map(|name| format!(",\"launch__{name}\"")).collect();
    let text = format!(
        "\"ID\",\"Kernel Name\"{head}\n\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\"\n\
         \"0\",\"gemm\",\"1,024\",\"8\",\"1\",\"128\",\"1\",\"1\"\n"
    );
    let page = parse_page(&text);
    assert_eq!(
        (page.launches[0].grid, page.launches[0].block),
        (Some([1024, 8, 1]), Some([128, 1, 1]))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Numbers of some rows in another locale: each value is the true one, or absent with a reason.
    #[test]
    fn a_page_of_mixed_locales_reads_true_values_or_none(
        seed in any::<u64>(),
        every in 1u64..40,
        comma in any::<bool>(),
    ) {
        let english = capture("hf-llama-decode.ncu-details.csv");
        let expected = parse_page(&english);
        let count = std::cell::Cell::new(seed % every);
        let page = parse_page(&rewritten(&english, &|text| {
            count.set(count.get() + 1);
            if count.get() % every != 0 {
                return text.to_owned();
            }
            let (point, group) = if comma { (",", ".") } else { (".", "'") };
            in_locale(text, point, group)
        }));
        match &page.refused {
            Some(why) => prop_assert!(page.launches.is_empty() && why.contains("decimal points")),
            None => prop_assert_eq!(page.launches, expected.launches),
        }
    }
}

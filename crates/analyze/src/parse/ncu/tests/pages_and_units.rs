//! Several pages in one file, and the units of their columns.

use super::*;

/// A raw page of two launches with these units of time and values.
fn page_in(unit: &str, values: [&str; 2]) -> String {
    let row = |(id, value): (usize, &str)| {
        format!("\"{id}\",\"gemm\",\"(1, 1, 1)\",\"(2, 1, 1)\",\"{value}\"\n")
    };
    let rows: String = values.into_iter().enumerate().map(row).collect();
    format!(
        "\"ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"gpu__time_duration.sum\"\n\
         \"\",\"\",\"\",\"\",\"{unit}\"\n{rows}"
    )
}

#[test]
fn pages_in_one_file_are_read_each_in_its_own_units_and_locale() {
    let pages = [("us", ["1.5", "23.25"]), ("ns", ["1,500", "2.5"]), ("ms", ["0,5", "1,25"])];
    let texts = pages.map(|(unit, values)| page_in(unit, values));
    let one = parse_page(&texts.concat());
    let each: Vec<_> = texts.iter().flat_map(|text| parse_page(text).launches).collect();
    assert_eq!((one.launches.len(), one.truncated, one.refused), (6, false, None));
    assert_eq!(one.launches, each);
    let ns: Vec<_> = each.iter().filter_map(|it| it.values.duration_ns).collect();
    assert_eq!(ns, [1_500.0, 23_250.0, 1_500.0, 2.5, 500_000.0, 1_250_000.0]);
    let other = texts[1].replace("gpu__time_duration.sum", "dram__bytes.sum");
    let mixed = parse_page(&[&texts[0], &other].map(String::as_str).concat());
    assert!(mixed.launches.is_empty());
    assert!(mixed.failure(&[]).unwrap().contains("pages with different columns"));
}

#[test]
fn a_real_page_twice_in_one_file_has_its_launches_twice() {
    for name in ["hf-llama-decode.ncu-raw.csv", "hf-llama-decode.ncu-details.csv"] {
        let text = capture(name);
        let (once, twice) = (parse_page(&text), parse_page(&format!("{text}{text}")));
        assert_eq!(twice.launches, [once.launches.clone(), once.launches].concat(), "{name}");
        assert_eq!((twice.truncated, twice.unread), (false, once.unread), "{name}");
    }
}

#[test]
fn without_units_times_and_bytes_are_absent_and_named() {
    let header = |line: &&str| line.starts_with("\"ID\"");
    let text = capture("hf-llama-decode.ncu-raw.csv");
    let at = text.lines().position(|line| header(&line)).unwrap() + 1;
    let lines = text.lines().enumerate().filter(|(row, _)| *row != at);
    let without: String = lines.map(|(_, line)| line.to_owned() + "\n").collect();
    let (page, with) = (parse_page(&without), raw());
    assert_eq!(page.launches.len(), 60);
    for (one, other) in page.launches.iter().zip(&with.launches) {
        assert_eq!((one.values.duration_ns, one.values.dram_bytes), (None, None));
        assert_eq!(
            (one.values.sm_pct, one.values.waves),
            (other.values.sm_pct, other.values.waves)
        );
    }
    let gaps = page.gaps("a.csv");
    let named = gaps.iter().find(|it| it.id == "ncu_values_unreadable").unwrap();
    assert!(named.evidence["counters"].contains("reduce_kernel: gpu__time_duration.sum"));
    assert!(named.message.contains("no known unit"), "{}", named.message);
    assert_eq!(page.failure(&[]), None, "its other counters are read");
}

#[test]
fn a_time_in_an_unknown_unit_is_absent() {
    for (unit, ns) in
        [("us", Some(1_500.0)), ("second", Some(1.5e9)), ("fortnight", None), ("byte", None)]
    {
        let page = parse_page(&page_in(unit, ["1.5", "2.5"]));
        assert_eq!(page.launches[0].values.duration_ns, ns, "{unit}");
        assert_eq!(page.unreadable.is_empty(), ns.is_some(), "{unit}");
    }
}

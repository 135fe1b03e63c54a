//! Faults of the words on first pages, whatever their figures are: counts of one with a plural,
//! figures without a unit, names of tables and files that do not exist, sentences and rows that
//! stand twice, legends of other charts.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_report::answer::Answer;
use regex::Regex;
use serde_json::Value;

/// Faults in the files of a report, whose first page on a terminal is `page`.
pub fn faults(files: &BTreeMap<&str, String>, page: &str, answer: &Answer) -> Vec<String> {
    let html = visible(&files["report.html"]);
    let markdown = ["report.md", "stakeholder_summary.md"].map(|it| plain(&files[it]));
    let mut found = marks(page);
    let placed = markdown.iter().chain([&html]).filter(|it| !it.contains("in the folder of this"));
    found.extend(placed.map(|_| "no place of the tables".to_owned()));
    for text in markdown.iter().map(String::as_str).chain([html.as_str(), page]) {
        found.extend(plurals_of_one(text));
        found.extend(missing_names(text, files));
    }
    let texts = answer.sentences.iter().chain(answer.reasons.iter().map(|it| &it.text));
    let texts = texts.map(|it| it.as_str());
    let evidence = answer.reasons.iter().map(|it| it.evidence.as_str());
    found.extend(texts.chain(evidence).flat_map(without_unit));
    found.extend(answer.reasons.iter().flat_map(|it| small_savings(it.advice.as_str())));
    found.extend(recommended_twice(&markdown[1]));
    found.extend(markdown.iter().flat_map(|it| equal_rows(it)));
    found.extend(wrong_legends(&files["report.html"]));
    found
}

/// Markdown without its escapes.
fn plain(text: &str) -> String {
    text.replace('\\', "").replace("**", "")
}

/// The text of a page, cells and paragraphs apart.
fn visible(html: &str) -> String {
    let hidden = Regex::new(r"(?s)<style>.*?</style>|<svg.*?</svg>|<[^>]*>").unwrap();
    hidden.replace_all(html, " | ").replace("&lt;", "<").replace("&gt;", ">")
}

/// Counts of one with a plural: `1 steps`.
fn plurals_of_one(text: &str) -> Vec<String> {
    let one = Regex::new(r"(?:^|[\s(])1 ([a-z]+s)\b").unwrap();
    let units = ["ms", "us", "ns", "is", "as", "was", "has"];
    let is_plural = |word: &str| !units.contains(&word) && !word.ends_with("ss");
    let found = one.captures_iter(text).filter(|it| is_plural(&it[1]));
    found.map(|it| format!("plural of one: {}", &it[0])).collect()
}

/// Escapes and marks of Markdown and HTML, which a terminal shows as they are.
fn marks(page: &str) -> Vec<String> {
    let mark = Regex::new(r"\\[[:punct:]]|&(?:[a-z]+|#x?[0-9a-f]+);|\*\*").unwrap();
    mark.find_iter(page).map(|it| format!("mark on a terminal: {}", it.as_str())).collect()
}

/// Min part of a stage that an advice saves.
const MIN_SAVING: f64 = 0.03;

/// Advice that saves too little of its stage, however its figures were rounded.
fn small_savings(advice: &str) -> Vec<String> {
    let saves = Regex::new(r"saves at most ([\d,.]*\d)(?: ms)? of ([\d,.]*\d) ms").unwrap();
    // A figure and half a unit of its last digit.
    let figure = |text: &str| -> (f64, f64) {
        let places = text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        let half = 0.5 / 10_f64.powi(places.try_into().unwrap());
        (text.replace(',', "").parse().unwrap(), half)
    };
    let is_small = |saving: &str, whole: &str| {
        let ((saving, up), (whole, down)) = (figure(saving), figure(whole));
        saving + up < MIN_SAVING * (whole - down)
    };
    let found = saves.captures_iter(advice).filter(|it| is_small(&it[1], &it[2]));
    found.map(|it| format!("too small for an advice: {}", &it[0])).collect()
}

/// Nouns before a number that names one of them.
const NAMED: [&str; 4] = ["process", "thread", "GPU", "rank"];

/// Figures that a clause ends with: a unit or a noun follows each.
fn without_unit(text: &str) -> Vec<String> {
    let bare = Regex::new(r"(?:^|[\s(])[\d,]*\d(?:\.\d+)?(?:[.;:)]|$)").unwrap();
    let found = bare.find_iter(text).filter(|it| {
        // A decimal point does not end a clause, and `process 482` is a name.
        let is_named = NAMED.iter().any(|noun| text[..it.start()].ends_with(noun));
        !is_named && !text[it.end()..].starts_with(|next: char| next.is_ascii_digit())
    });
    found.map(|it| format!("no unit: {:?} in {text}", it.as_str())).collect()
}

/// Tables and files that a text names and the report lacks.
fn missing_names(text: &str, files: &BTreeMap<&str, String>) -> Vec<String> {
    let lines = files["tables.jsonl"].lines();
    let tables = lines.map(|it| serde_json::from_str::<Value>(it).unwrap());
    let tables: BTreeSet<String> =
        tables.filter_map(|it| it["name"].as_str().map(str::to_owned)).collect();
    let named = Regex::new(r"\b[Tt]able `?([a-z]+(?:[_.][a-z_]+)+)").unwrap();
    let file = Regex::new(r"\b(?:in|to) ([a-z_]+\.(?:csv|md|jsonl?))\b").unwrap();
    let missing_tables = named.captures_iter(text).map(|it| it[1].to_owned());
    let missing_tables = missing_tables.filter(|it| !tables.contains(it));
    let missing_files = file.captures_iter(text).map(|it| it[1].to_owned());
    let missing_files = missing_files.filter(|it| !files.contains_key(it.as_str()));
    missing_tables.chain(missing_files).map(|it| format!("missing: {it}")).collect()
}

/// Sentences of the recommendations that stand on the page twice.
fn recommended_twice(summary: &str) -> Vec<String> {
    let Some((page, rest)) = summary.split_once("## Further recommendations") else {
        return vec!["no recommendations".into()];
    };
    let advice = rest.split("## Figures").next().unwrap();
    let sentences = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|it| it.trim_start_matches(|c: char| " -.".contains(c)));
        let parts = lines.flat_map(|it| it.split(". ")).map(|it| it.trim_end_matches('.').trim());
        parts.filter(|it| it.contains(' ')).map(str::to_owned).collect()
    };
    let mut seen: BTreeSet<String> = sentences(page).into_iter().collect();
    let twice = sentences(advice).into_iter().filter(|it| !seen.insert(it.clone()));
    twice.map(|it| format!("recommended twice: {it}")).collect()
}

/// Rows of a table that read the same.
fn equal_rows(markdown: &str) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for line in markdown.lines() {
        match line.starts_with('|') {
            true if !seen.insert(line) => found.push(format!("equal rows: {line}")),
            true => {}
            false => seen.clear(),
        }
    }
    found
}

/// Legends of charts with colours that the chart lacks, and charts with colours that the legend
/// lacks.
fn wrong_legends(html: &str) -> Vec<String> {
    let class = Regex::new("class=\"([^\"]*)\"").unwrap();
    let classes = |text: &str| -> BTreeSet<String> {
        let all = class
            .captures_iter(text)
            .flat_map(|it| it[1].split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        all.collect()
    };
    let mut found = Vec::new();
    for figure in html.split("<figure>").skip(1).filter_map(|it| it.split("</figure>").next()) {
        let Some((drawing, legend)) = figure.split_once("<figcaption>") else { continue };
        let keys: BTreeSet<String> = classes(legend).into_iter().filter(|it| it != "key").collect();
        let drawn = classes(drawing);
        found.extend(keys.difference(&drawn).map(|it| format!("no {it} in the chart: {legend}")));
        let is_colour = |it: &&String| it.starts_with("w-") || it.starts_with("k-");
        let named = drawn.iter().filter(is_colour).filter(|it| !keys.contains(*it));
        // Operators of an unknown kind are grey.
        let named = named.filter(|it| *it != "k-module");
        found.extend(named.map(|it| format!("no legend of {it}: {legend}")));
    }
    found
}

#[test]
fn each_fault_is_found_and_right_words_are_not() {
    assert_eq!(marks(r"**a** is token\_\* and &lt; 0.1 %, &#x27;").len(), 6);
    assert!(marks("token_*_processing of Gemm<T&, float*> takes < 0.1 %").is_empty());
    assert_eq!(plurals_of_one("takes 1 steps (1 calls), 1 ms, 11 steps").len(), 2);
    assert!(plurals_of_one("1 of 94 steps takes 1 ms of layer 1 is").is_empty());
    assert_eq!(without_unit("takes 4.5; then 3.").len(), 2);
    let right = "python (process 482) takes 4.50 ms (p99 5.0 ms), 2.4 times, 5 and 6 steps, \
                 gemm_128x64 (12 calls).";
    assert_eq!(without_unit(right), Vec::<String>::new());
    let files = [("tables.jsonl", "{\"name\": \"step_times\"}\n".to_owned())];
    let files: BTreeMap<&str, String> = files.into_iter().collect();
    let text = "The table step_times has it, the table no_such not; all are in gone.csv.";
    assert_eq!(missing_names(text, &files), ["missing: no_such", "missing: gone.csv"]);
    let summary = "A b.\n## Further recommendations\n1. C d. E f.\n2. G h. E f.\n## Figures\nC d.";
    assert_eq!(recommended_twice(summary), ["recommended twice: E f"]);
    assert_eq!(equal_rows("| a |\n| a |\n\n| a |"), ["equal rows: | a |"]);
    let small = "Do. This saves at most 0.054 of 2.50 ms of decode.";
    assert_eq!(small_savings(small).len(), 1);
    for worth in ["17.3 of 575 ms", "34.6 of 1,151 ms", "0.075 of 2.50 ms", "7 of 9 ms"] {
        let advice = format!("The same remedy saves at most {worth} of decode.");
        assert_eq!(small_savings(&advice), Vec::<String>::new(), "{worth}");
    }
    let figure = "<figure><rect class=\"w-gap\"/><figcaption><span class=\"key w-floor\">\
                  </span></figcaption></figure>";
    assert_eq!(wrong_legends(figure).len(), 2);
}

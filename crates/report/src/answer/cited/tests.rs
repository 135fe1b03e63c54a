//! Figures, shares and their cells.

use serde_json::json;

use super::*;

#[test]
fn a_figure_is_founded_on_the_cells_of_the_report() {
    let steps = Row::of("step_times").with("stage", "decode_all");
    let (mean, n) = (steps.figure("ms.mean", 2.5), steps.count("ms.n", 4));
    let longest = steps.figure("longest.0.ms", 4.0);
    let all = [
        longest.clone(),
        Figure::sum([mean.clone(), n.clone()]),
        Figure::least([mean.clone(), n.clone()]).unwrap(),
        n.minus(&longest),
        mean.over(&n).unwrap(),
    ];
    let sentence = Cited::list(all.map(Figure::short), ", ");
    assert_eq!(sentence, "4.00, 6.50, 2.50, 0, 0.625");
    let report = |mean: f64| {
        json!({"step_times": [
            {"stage": "prefill", "ms": {"mean": 9.0, "n": 1}},
            {"stage": "decode_all", "ms": {"mean": mean, "n": 4}, "longest": [{"ms": 4.0}]},
        ]})
    };
    assert_eq!(sentence.unfounded(&report(2.5)), [""; 0]);
    assert_eq!(sentence.unfounded(&report(2.6)).len(), 3, "all with the mean");
    assert_eq!(sentence.unfounded(&json!({})).len(), 5);
    let columns = ["longest.0.ms", "ms.mean", "ms.n"].map(str::to_owned).into();
    let stage = Some("decode_all".to_owned());
    assert_eq!(sentence.sources(), [Source { table: "step_times", stage, columns }]);
}

#[test]
fn a_share_is_of_a_whole_that_is_not_less() {
    let row = Row::of("ledger");
    let share = |part: f64, whole: f64| {
        row.figure("a", part).share_of(&row.figure("b", whole)).map(|it| it.text().text)
    };
    assert_eq!(share(1.0, 2.0).as_deref(), Some("50 %"));
    assert_eq!(share(2.0, 2.0).as_deref(), Some("100 %"));
    assert_eq!([share(3.0, 2.0), share(-1.0, 2.0), share(1.0, 0.0)], [None, None, None]);
}

#[test]
fn words_have_no_numbers_but_those_of_percentiles() {
    assert!(has_no_number("takes {} ms; p99 {} ms."));
    assert!(["5 ms", "of 12", "p9 9", "99p"].into_iter().all(|it| !has_no_number(it)));
}

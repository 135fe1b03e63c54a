//! Links between the tables of the HTML report: from a kernel to its counters, samples, causes,
//! roofline point and operators, and back.

use llmprof_analyze::{Analysis, ledger::LedgerMember};
use serde::Serialize;

use super::tables::ReportTable;

/// A link in the first cell of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RowLink {
    pub label: String,
    /// Id of the row that it leads to.
    pub to: String,
}

/// Maximum number of operators linked from one kernel.
const MAX_OPERATORS: usize = 3;

/// Links the rows of `kernels` to rows of `others`, each with its label, and to rows of
/// `operators`.
pub fn link_kernels(
    analysis: &Analysis,
    kernels: &mut ReportTable,
    operators: &mut ReportTable,
    others: &mut [(&'static str, &mut ReportTable)],
) {
    for at in 0..kernels.subjects.len() {
        let subject = kernels.subjects[at].clone();
        let mut links = Vec::new();
        for (label, other) in others.iter_mut() {
            let found = other.subjects.iter().position(|it| *it == subject);
            let Some(row) = found else { continue };
            let to = kernels.anchor(at);
            link(other, row, RowLink { label: "kernel".into(), to });
            links.push(RowLink { label: (*label).to_owned(), to: other.anchor(row) });
        }
        for row in operators_of(analysis, operators, &subject) {
            let to = kernels.anchor(at);
            let (_, path) = &operators.subjects[row];
            let label = path.rsplit('.').next().unwrap_or_default().to_owned();
            links.push(RowLink { label, to: operators.anchor(row) });
            link(operators, row, RowLink { label: subject.1.clone(), to });
        }
        links.into_iter().for_each(|it| link(kernels, at, it));
    }
}

/// The rows of the operators that launch a kernel, longest first.
fn operators_of(
    analysis: &Analysis,
    operators: &ReportTable,
    (stage, kernel): &(String, String),
) -> Vec<usize> {
    let is_of =
        |it: &&LedgerMember| it.stage == *stage && it.kernel.as_deref() == Some(kernel.as_str());
    let mut members: Vec<&LedgerMember> = analysis.ledger.members.iter().filter(is_of).collect();
    members.sort_by_key(|it| std::cmp::Reverse(it.ns));
    let mut rows = Vec::new();
    for member in members {
        let Some(path) = &member.operator else { continue };
        let is_row = |it: &(String, String)| it.0 == *stage && it.1 == *path;
        let row = operators.subjects.iter().position(is_row);
        rows.extend(row.filter(|row| !rows.contains(row)));
    }
    rows.truncate(MAX_OPERATORS);
    rows
}

fn link(table: &mut ReportTable, row: usize, link: RowLink) {
    table.links.resize(table.rows.len(), Vec::new());
    if let Some(links) = table.links.get_mut(row)
        && !links.contains(&link)
    {
        links.push(link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(id: &'static str, subjects: &[(&str, &str)]) -> ReportTable {
        let mut table = ReportTable::new(id, "t", "", &["a"]);
        for (stage, name) in subjects {
            table.row([(*name).to_owned()]);
            table.subjects.push(((*stage).to_owned(), (*name).to_owned()));
        }
        table
    }

    #[test]
    fn a_kernel_leads_to_the_first_row_of_its_stage_and_back() {
        let mut kernels = table("kernels", &[("prefill", "k"), ("decode_all", "k")]);
        let mut counters = table("counters", &[("decode_all", "k"), ("decode_all", "k")]);
        let mut operators = table("operators", &[("decode_all", "mlp"), ("prefill", "mlp")]);
        let mut analysis = Analysis::default();
        analysis.ledger.members = vec![member("decode_all", "mlp", "k"); 2];
        link_kernels(&analysis, &mut kernels, &mut operators, &mut [("counters", &mut counters)]);
        let link = |label: &str, to: &str| RowLink { label: label.into(), to: to.into() };
        assert_eq!(
            kernels.links,
            [vec![], vec![link("counters", "counters-1"), link("mlp", "operators-1")]]
        );
        assert_eq!(counters.links, [vec![link("kernel", "kernels-2")], vec![]]);
        assert_eq!(operators.links, [vec![link("k", "kernels-2")], vec![]]);
    }

    fn member(stage: &str, operator: &str, kernel: &str) -> LedgerMember {
        serde_json::from_value(serde_json::json!({
            "stage": stage, "cause": "latency", "operator": operator, "kernel": kernel,
            "grid": null, "block": null, "calls": 1.0, "ns": 1, "share_pct": null, "pass": "",
            "samples": 0, "evidence": "", "max_saving_ns": 0
        }))
        .unwrap()
    }
}

//! Tool `ledger`: where the time of a run goes, with reasons, causes and what is not known.

use llmprof_analyze::ledger::{LedgerMember, LedgerRow};
use llmprof_report::answer::stored_answer;
use rmcp::{
    model::Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Effect, known, links, of, text};
use crate::mcp::{
    answer::ToolAnswer,
    arguments::{invalid, run_path},
    service_api::{ApiCall, ApiRefusal, ServiceApi, unreadable},
};

/// Kernels or gaps of one cause.
const MEMBERS: usize = 3;
/// Findings in the answer, most severe first.
const FINDINGS: usize = 12;

/// The run, and one of its stages.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// Id of the run
    #[schemars(length(max = 40), example = &"019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")]
    run_id: String,
    /// Only causes of this stage; all stages when absent
    #[schemars(length(max = 200), example = &"decode_all")]
    stage: Option<String>,
}

/// The parts of a report that the answer needs.
#[derive(Deserialize)]
struct StoredLedger {
    state: String,
    #[serde(default)]
    ledger: Vec<LedgerRow>,
    #[serde(default)]
    ledger_members: Vec<LedgerMember>,
    #[serde(default)]
    ledger_stages: Vec<Value>,
    #[serde(default)]
    findings: Vec<Value>,
}

pub fn tool() -> Tool {
    of::<Arguments>(
        "ledger",
        "Where the time goes",
        "The answer about a run that has ended: the time of each stage, its steps and outliers, \
         its distance from the hardware's floor, the largest reasons with what to try, the causes \
         that add up to the measured time with their largest kernels and operators, an upper \
         bound of what removing each saves, findings with advice, and what is unknown and how to \
         measure it. A figure that is absent is unknown: never estimate it. Sentences and reasons \
         name the tables and columns that their figures are from (`sources`). Causes name the \
         pass and counter of their evidence; prove one by table (ledger_members) or \
         source_of_figure.",
        Effect::Reads,
    )
}

pub async fn call(api: &impl ServiceApi, arguments: Arguments) -> Result<ToolAnswer, ApiRefusal> {
    let path = format!("{}/report", run_path(&arguments.run_id)?);
    let report = api.call(ApiCall::get(&*path)).await?;
    let stored: StoredLedger =
        serde_json::from_slice(&report).map_err(|error| unreadable(&path, &error))?;
    let answers = stored_answer(&report).map_err(|error| unreadable(&path, &error))?;
    let id = &arguments.run_id;
    if let Some(stage) = &arguments.stage {
        let mut known: Vec<&str> = stored.ledger.iter().map(|it| it.stage.as_str()).collect();
        known.dedup();
        if !known.contains(&stage.as_str()) {
            let known = known.join(", ");
            return Err(invalid(format!("run {id} has no stage {stage:.60?}; it has {known}")));
        }
    }
    let mut answer = ToolAnswer::default();
    answer.field("run_id", id.as_str());
    answer.field("state", stored.state.as_str());
    if stored.state == "partial" {
        answer.line("partial: something could not be collected; see findings");
    }
    for part in &answers {
        part.sentences.iter().for_each(|it| answer.line(it.as_str()));
        part.reasons.iter().for_each(|it| answer.line(format!("reason: {}", it.text)));
        answer.field("sentences", json!(part.sentences));
        answer.field("reasons", json!(part.reasons));
        answer.list("unknown", part.unknown.iter().map(|it| json!(it)).collect(), "GET the report");
        answer.list(
            "overhead",
            part.overhead.iter().map(|it| json!(it)).collect(),
            "table with table=overhead",
        );
    }
    if answers.is_empty() {
        answer.field("sentences", json!([]));
        answer.line("no stage has a time; read findings");
    } else if stored.ledger.is_empty() {
        answer.line("no ledger; table operators has the host's time of each module, if recorded");
    }
    answer.list("stages", stored.ledger_stages.clone(), "table with table=ledger_stages");
    let causes = causes(&stored, arguments.stage.as_deref());
    answer.list("causes", causes, "table with table=ledger, where=stage=...");
    findings(&mut answer, &stored.findings);
    answer.field("evidence", links(id));
    Ok(answer)
}

/// Causes with their largest members, largest saving first; then what is not a cause.
fn causes(stored: &StoredLedger, stage: Option<&str>) -> Vec<Value> {
    let mut rows: Vec<&LedgerRow> =
        stored.ledger.iter().filter(|row| stage.is_none_or(|stage| row.stage == stage)).collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.max_saving_ns), std::cmp::Reverse(row.ns)));
    let cause = |row: &LedgerRow| {
        let mut members: Vec<&LedgerMember> = stored
            .ledger_members
            .iter()
            .filter(|it| it.stage == row.stage && it.cause == row.cause)
            .collect();
        members.sort_by_key(|it| std::cmp::Reverse(it.ns));
        let largest: Vec<Value> = members
            .iter()
            .take(MEMBERS)
            .map(|it| {
                let member = json!({ "operator": it.operator, "kernel": it.kernel,
                    "grid": it.grid, "block": it.block, "ns": it.ns, "calls": it.calls,
                    "evidence": it.evidence });
                let names = ["operator", "kernel", "grid", "block", "ns", "calls", "evidence"];
                known(&member, &names)
            })
            .collect();
        let row = json!({
            "stage": row.stage, "cause": row.cause, "meaning": row.cause.words(), "ns": row.ns,
            "share_pct": row.share_pct, "max_saving_ns": row.max_saving_ns, "pass": row.pass,
            "counter": row.counter, "samples": row.samples, "members": row.members,
            "largest": largest,
        });
        known(
            &row,
            &[
                "stage",
                "cause",
                "meaning",
                "ns",
                "share_pct",
                "max_saving_ns",
                "pass",
                "counter",
                "samples",
                "members",
                "largest",
            ],
        )
    };
    rows.into_iter().map(cause).collect()
}

/// The findings, most severe first.
fn findings(answer: &mut ToolAnswer, findings: &[Value]) {
    let rank = |it: &&Value| match text(it, "severity") {
        "critical" => 0,
        "warning" => 1,
        _ => 2,
    };
    let mut sorted: Vec<&Value> = findings.iter().collect();
    sorted.sort_by_key(rank);
    let kept = sorted
        .iter()
        .take(FINDINGS)
        .map(|it| known(it, &["id", "severity", "message", "advice", "max_saving", "evidence"]));
    answer.list("findings", kept.collect(), "table with table=findings");
    answer.leave_out("findings", sorted.len().saturating_sub(FINDINGS) as u64);
    if let Some(worst) = sorted.first().filter(|it| rank(it) < 2) {
        answer.line(format!("{}: {}", text(worst, "severity"), text(worst, "message")));
    }
}

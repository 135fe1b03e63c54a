//! Tool `table`: rows of one table of a run, or the list of its tables.

use llmprof_core::domain::json_numbers::Within;
use rmcp::{
    model::Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Effect, items, of, text};
use crate::mcp::{
    answer::ToolAnswer,
    arguments::{invalid, run_path},
    service_api::{ApiCall, ApiRefusal, ServiceApi, read},
};

/// The table and the rows of it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// Id of the run
    #[schemars(length(max = 40), example = &"019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")]
    run_id: String,
    /// Name of the table; the list of tables and their columns when absent
    #[schemars(length(max = 100), example = &"kernels")]
    table: Option<String>,
    /// Conditions that must all hold: COLUMN=VALUE, COLUMN!=VALUE, COLUMN~TEXT (contains), and of
    /// numbers COLUMN=MIN..MAX (either may be missing)
    #[serde(default, rename = "where")]
    #[schemars(length(max = 16), example = ["stage=decode_all", "total_ms=0.1.."])]
    filters: Vec<String>,
    /// Only rows with this text in any cell
    #[schemars(length(max = 200))]
    q: Option<String>,
    /// Column to sort by; descending after a `-`
    #[schemars(length(max = 200), example = &"-total_ms")]
    sort: Option<String>,
    /// Columns to return; all when absent
    #[serde(default)]
    #[schemars(length(max = 60))]
    columns: Vec<String>,
    /// Rows to return; 20 when absent
    #[serde(default, deserialize_with = "Within::<1, 200>::optional")]
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
}

/// Rows of a table, as the API returns them.
#[derive(Debug, Deserialize)]
pub struct TableRows {
    pub columns: Vec<String>,
    pub total: u64,
    pub rows: Vec<Map<String, Value>>,
}

pub fn tool() -> Tool {
    of::<Arguments>(
        "table",
        "Rows of a table",
        "Rows of one table of a run that has ended, filtered and sorted by the service. Without \
         `table`: the tables with their columns. Useful ones: kernels, operators, ledger_members \
         (kernel and operator of each cause), stage_gpu (idle time by reason), counters, gemms, \
         regions. Units end the names of columns (_ms, _ns, _pct, bytes). A cell that is absent is \
         unknown, not 0. Choose columns and conditions: an answer has at most 16 kB.",
        Effect::Reads,
    )
}

/// The path of a table, of a name that an agent gave.
pub fn table_path(run: &str, name: &str) -> Result<String, ApiRefusal> {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || it == '_' || it == '.';
    if name.is_empty() || !name.chars().all(is_plain) || name.contains("..") {
        return Err(invalid(format!(
            "table {name:.60?} is not a name; call table without it for the list"
        )));
    }
    Ok(format!("{}/tables/{name}", run_path(run)?))
}

pub async fn call(api: &impl ServiceApi, arguments: Arguments) -> Result<ToolAnswer, ApiRefusal> {
    let Some(name) = &arguments.table else {
        let is_filtered = !arguments.filters.is_empty() || !arguments.columns.is_empty();
        if is_filtered || arguments.q.is_some() || arguments.sort.is_some() {
            return Err(invalid(
                "conditions need table; call table with run_id alone for the list",
            ));
        }
        return list(api, &arguments.run_id).await;
    };
    let limit = arguments.limit.unwrap_or(20);
    let mut call = ApiCall::get(table_path(&arguments.run_id, name)?);
    for filter in &arguments.filters {
        call = call.with("where", Some(filter));
    }
    let call = call
        .with("q", arguments.q.as_ref())
        .with("sort", arguments.sort.as_ref())
        .with("limit", Some(limit));
    let target = call.target();
    let found: TableRows = rows(api, call).await?;
    let columns = &arguments.columns;
    if let Some(unknown) = columns.iter().find(|it| !found.columns.contains(it)) {
        let known = found.columns.join(", ");
        return Err(invalid(format!("table {name} has no column {unknown:.60?}; it has {known}")));
    }
    let mut answer = ToolAnswer::default();
    let shown = found.rows.len() as u64;
    answer.line(format!("table {name}: {shown} of {} matching rows", found.total));
    answer.field("run_id", arguments.run_id.as_str());
    answer.field("table", name.as_str());
    answer.field("columns", found.columns.clone());
    answer.field("total", found.total);
    let is_chosen = |column: &String| columns.is_empty() || columns.contains(column);
    let rows = found.rows.into_iter().map(|row| {
        let cells = row.into_iter().filter(|(name, cell)| is_chosen(name) && !cell.is_null());
        Value::Object(cells.collect())
    });
    answer.list("rows", rows.collect(), "fewer columns, more conditions in where, or another sort");
    answer.leave_out("rows", found.total.saturating_sub(shown));
    answer.field("evidence", target);
    Ok(answer)
}

/// The rows of a call; a refusal of a name states where the names are.
pub async fn rows(api: &impl ServiceApi, call: ApiCall) -> Result<TableRows, ApiRefusal> {
    read(api, call).await.map_err(|mut refusal| {
        if matches!(refusal.code.as_deref(), Some("table_not_found" | "column_not_found")) {
            refusal.message += "; call table with run_id alone for the names";
        }
        refusal
    })
}

/// The tables of a run: those with rows in full, the names of the others.
async fn list(api: &impl ServiceApi, run: &str) -> Result<ToolAnswer, ApiRefusal> {
    let path = format!("{}/tables", run_path(run)?);
    let found: Value = read(api, ApiCall::get(&*path)).await?;
    let (full, empty): (Vec<&Value>, Vec<&Value>) = items(&found["tables"])
        .iter()
        .partition(|it| it["total"].as_u64().is_some_and(|it| it > 0));
    let mut answer = ToolAnswer::default();
    let names: Vec<&str> = full.iter().map(|it| text(it, "name")).collect();
    answer.line(format!("tables with rows: {}", names.join(", ")));
    answer.field("run_id", run);
    let tables = full.into_iter().map(|it| super::known(it, &["name", "total", "columns"]));
    answer.list("tables", tables.collect(), "table with its name");
    let names: Vec<&str> = empty.into_iter().map(|it| text(it, "name")).collect();
    answer.field("without_rows", names);
    answer.field("evidence", path);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_named_by_a_plain_name() {
        let run = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";
        assert_eq!(
            table_path(run, "roofline.points").unwrap(),
            format!("/runs/{run}/tables/roofline.points")
        );
        for name in ["", "..", "a/b", "a?b", "../models", "a%2fb"] {
            assert!(table_path(run, name).is_err(), "{name}");
        }
    }
}

//! Columns of a table, which differ between versions of exports.
//!
//! A query names columns as `{column}`; a missing one reads as null, and an error names it.

use std::{collections::HashSet, fmt::Write as _};

use rusqlite::{Connection, Error, Result, types::Type};

use super::export::string;

/// Stored columns of `table`: the pragma omits generated ones.
pub fn stored(db: &Connection, table: &str) -> Result<HashSet<String>> {
    let mut statement = db.prepare("select name from pragma_table_info(?1)")?;
    statement.query_map([table], |row| string(row, 0))?.collect()
}

/// Replaces each `{column}` by `"column"` if it exists, else by `null`.
pub fn fit(sql: &str, columns: &HashSet<String>) -> String {
    let mut parts = sql.split('{');
    let mut fitted = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (column, rest) = part.split_once('}').unwrap_or((part, ""));
        if columns.contains(column) {
            let _ = write!(fitted, "\"{column}\"");
        } else {
            fitted.push_str("null");
        }
        fitted.push_str(rest);
    }
    fitted
}

/// The missing column that caused `error`, if a query read null instead.
pub fn lacking<'a>(error: &Error, sql: &'a str, columns: &HashSet<String>) -> Option<&'a str> {
    let Error::InvalidColumnType(_, alias, Type::Null) = error else { return None };
    let wanted = sql.split('{').skip(1).filter_map(|part| part.split_once('}'));
    let named = |rest: &str| {
        rest.trim_start()
            .strip_prefix("as ")
            .is_some_and(|rest| rest.split([',', '\n', ' ']).next() == Some(alias))
    };
    wanted
        .filter(|(column, _)| !columns.contains(*column))
        .find(|(_, rest)| named(rest))
        .map(|(column, _)| column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_that_is_missing_reads_as_null_and_is_named() {
        let columns = ["start", "end"].map(str::to_owned).into();
        let sql = "select {start}, {end} as e, {graphNodeId} as g";
        assert_eq!(fit(sql, &columns), r#"select "start", "end" as e, null as g"#);
        let error = Error::InvalidColumnType(2, "g".into(), Type::Null);
        assert_eq!(lacking(&error, sql, &columns), Some("graphNodeId"));
        assert_eq!(
            lacking(&Error::InvalidColumnType(1, "e".into(), Type::Null), sql, &columns),
            None
        );
    }
}

//! CSV of a table: one record per line, empty cells if a value is unknown.

use std::borrow::Cow;

use csv::{Writer, WriterBuilder};
use serde_json::{Number, Value};

use super::schema::TableCell;

/// A CSV text in the making.
pub struct CsvTable {
    writer: Writer<Vec<u8>>,
}

const IN_MEMORY: &str = "writing to memory does not fail, and rows may differ in length";

impl CsvTable {
    /// Starts a text with its header.
    pub fn new<T: AsRef<str>>(columns: impl IntoIterator<Item = T>) -> Self {
        let writer = WriterBuilder::new().flexible(true).from_writer(Vec::new());
        let mut table = Self { writer };
        table.row(columns.into_iter().map(|name| one_line(name.as_ref()).into_owned()));
        table
    }

    /// Adds a record of cells that [`one_line`] or [`cell`] made.
    pub fn row<T: AsRef<[u8]>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.writer.write_record(cells).expect(IN_MEMORY);
    }

    /// Returns the text.
    pub fn finish(self) -> String {
        let bytes = self.writer.into_inner().expect(IN_MEMORY);
        String::from_utf8(bytes).expect("every field is text")
    }
}

/// A cell of a table as a CSV field. Numbers are written as in JSON, so that both forms agree.
pub fn cell<'a>(cell: &TableCell<'a>) -> Cow<'a, str> {
    match cell {
        TableCell::Unknown => Cow::Borrowed(""),
        TableCell::Text(text) => one_line(text),
        TableCell::Flag(flag) => Cow::Borrowed(if *flag { "true" } else { "false" }),
        TableCell::Count(count) => Cow::Owned(count.to_string()),
        TableCell::Signed(number) => Cow::Owned(number.to_string()),
        TableCell::Figure(figure) => {
            Cow::Owned(Number::from_f64(*figure).map_or_else(String::new, |it| it.to_string()))
        }
        TableCell::Size([x, y, z]) => Cow::Owned(format!("[{x},{y},{z}]")),
        TableCell::Nested(value) => Cow::Owned(stored_cell(value)),
    }
}

/// A stored cell as a CSV field.
pub fn stored_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => one_line(text).into_owned(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        Value::Array(_) | Value::Object(_) => one_line(&value.to_string()).into_owned(),
    }
}

/// Text on one line. Text that a spreadsheet would execute as a formula gets a leading quote.
fn one_line(text: &str) -> Cow<'_, str> {
    let text = text.trim().trim_start_matches(is_invisible);
    let formula = text.starts_with(FORMULA);
    if !formula && !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let quote = if formula { "'" } else { "" };
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    Cow::Owned(quote.chars().chain(plain).collect())
}

/// First characters of formulas, also in the wide and small forms that some spreadsheets accept.
const FORMULA: [char; 14] =
    ['=', '+', '-', '@', '|', '＝', '＋', '－', '＠', '﹦', '﹢', '﹣', '﹫', '−'];

/// Returns true for characters that a spreadsheet may skip in front of a formula: white space,
/// controls, and marks without a width, such as the byte order mark.
fn is_invisible(c: char) -> bool {
    c.is_whitespace()
        || c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[TableCell]) -> String {
        let mut table = CsvTable::new(cells.iter().map(|_| "a"));
        table.row(cells.iter().map(|it| cell(it).into_owned()));
        table.finish().lines().nth(1).unwrap().to_owned()
    }

    #[test]
    fn text_stays_one_field_and_never_becomes_a_formula() {
        for (text, field) in [
            ("gemm_bf16<128, 64>", "\"gemm_bf16<128, 64>\""),
            ("a \"b\"\nc", "\"a \"\"b\"\" c\""),
            ("=cmd()", "'=cmd()"),
            ("\t=cmd()", "'=cmd()"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(1)", "'@SUM(1)"),
            ("|cmd", "'|cmd"),
            ("＝cmd()", "'＝cmd()"),
            ("＋1", "'＋1"),
            ("﹫SUM(1)", "'﹫SUM(1)"),
            ("\u{feff}=cmd()", "'=cmd()"),
            (" \u{200b}\u{feff} ＝cmd()", "'＝cmd()"),
            ("\u{feff}name", "name"),
        ] {
            assert_eq!(
                row(&[TableCell::Text(text), TableCell::Flag(true)]),
                format!("{field},true")
            );
        }
    }

    #[test]
    fn unknown_cells_are_empty_and_numbers_are_those_of_json() {
        let cells = [
            TableCell::Text("x"),
            TableCell::Unknown,
            TableCell::Figure(f64::NAN),
            TableCell::Figure(2.0),
            TableCell::Size([1, 2, 3]),
        ];
        assert_eq!(row(&cells), "x,,,2.0,\"[1,2,3]\"");
    }
}

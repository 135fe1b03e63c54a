//! CSV as ncu prints it: messages before the header, then records; the last one may be cut.
//!
//! Text that is not CSV of ncu has no header. Several pages in one file are one page whose header
//! is repeated among the records.

use csv::{ReaderBuilder, StringRecord};

/// Cells of a page that are read: enough for ten thousand launches with all of the tool's metrics.
const MAX_CELLS: usize = 16 << 20;

/// Name of the first column.
const ID: &str = "ID";

/// One printed page.
#[derive(Debug, Default, PartialEq)]
pub struct PrintedPage {
    pub header: Vec<String>,
    pub records: Vec<Vec<String>>,
    /// Lines `==WARNING== ...` and `==ERROR== ...` around the table.
    pub messages: Vec<String>,
    /// The last record has fewer fields than the header, since the file was cut; or the page has
    /// more cells than are read.
    pub truncated: bool,
    /// Another page follows whose header differs.
    pub has_other_columns: bool,
    /// Fields of the shortest valid record: rows without a rule end after their value.
    min_fields: usize,
    cells: usize,
}

/// Returns true if a record is a header.
pub fn is_header(record: &[String]) -> bool {
    record.first().is_some_and(|name| name == ID)
}

/// Reads one page. Its header is the first record that starts with `ID`.
pub fn page(text: &str) -> PrintedPage {
    let mut page = PrintedPage::default();
    let mut rest = at_most_cells(text.trim_start_matches('\u{feff}'));
    while !rest.is_empty() && !page.truncated_by_size() {
        if rest.starts_with("==") || page.header.is_empty() && !rest.starts_with("\"ID\"") {
            let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
            let line = line.trim_end();
            if line.starts_with("==WARNING==") || line.starts_with("==ERROR==") {
                page.messages.push(line.to_owned());
            }
            rest = after;
        } else {
            rest = page.read_records(rest);
        }
    }
    page
}

/// The text up to the comma after which no page has more cells, quoted commas included.
fn at_most_cells(text: &str) -> &str {
    text.match_indices(',').nth(2 * MAX_CELLS).map_or(text, |(at, _)| &text[..at])
}

impl PrintedPage {
    fn truncated_by_size(&self) -> bool {
        self.cells > MAX_CELLS
    }

    /// Reads records up to the next message; returns the text from there on.
    fn read_records<'a>(&mut self, text: &'a str) -> &'a str {
        let mut reader =
            ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
        let (mut record, mut start) = (StringRecord::new(), 0);
        while let Ok(true) = reader.read_record(&mut record) {
            let end = reader.position().byte() as usize;
            self.add(&record, &text[start..end.min(text.len())]);
            start = end;
            let rest = text.get(end..).unwrap_or_default().trim_start_matches(['\r', '\n']);
            if self.truncated_by_size() {
                self.truncated = true;
                return "";
            }
            if rest.starts_with("==") {
                return rest;
            }
        }
        ""
    }

    /// Adds one record with its text.
    fn add(&mut self, record: &StringRecord, text: &str) {
        let mut fields: Vec<String> = record.iter().map(str::to_owned).collect();
        // An odd number of quotes leaves the last field open: it was cut.
        if text.matches('"').count() % 2 == 1 {
            fields.pop();
        }
        self.cells += fields.len();
        if fields.len() <= 1 && fields.iter().all(String::is_empty) {
            return;
        }
        // A file that was appended may start with its byte order mark.
        if let Some(first) = fields.first_mut().filter(|it| it.starts_with('\u{feff}')) {
            *first = first.trim_start_matches('\u{feff}').trim_matches('"').to_owned();
        }
        let (all, complete) = (self.header.len(), text.ends_with(['\r', '\n']));
        if self.header.is_empty() {
            self.min_fields = fields
                .iter()
                .position(|name| name == "Metric Value")
                .map_or(fields.len(), |at| at + 1);
            self.header = fields;
        } else if complete && is_header(&fields) && fields != self.header {
            self.has_other_columns = true;
        } else if fields.len() == all || complete && (self.min_fields..all).contains(&fields.len())
        {
            fields.resize(all, String::new());
            self.records.push(fields);
        } else {
            self.truncated = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_before_the_header_are_kept_and_progress_is_not() {
        let text = "==PROF== Connected to process 7\nhello from the program\n==WARNING== \
                    odd\n\"ID\",\"Kernel Name\"\n\"0\",\"f<1, \"\"2\"\">(T1)\"\n";
        let page = page(text);
        assert_eq!(page.messages, ["==WARNING== odd"]);
        assert_eq!(
            (page.header, page.records),
            (
                vec!["ID".into(), "Kernel Name".into()],
                vec![vec!["0".into(), "f<1, \"2\">(T1)".into()]]
            )
        );
        assert!(!page.truncated);
    }

    #[test]
    fn messages_between_records_are_kept_and_line_ends_may_be_those_of_windows() {
        let text = "\"ID\",\"A\"\r\n\"0\",\"1\"\r\n==ERROR== lost\r\n\r\n\"1\",\"==2\n==3\"\r\n";
        let page = page(text);
        assert_eq!((page.messages.len(), page.truncated), (1, false));
        assert_eq!(page.records, [["0", "1"], ["1", "==2\n==3"]]);
    }

    #[test]
    fn a_cut_record_is_dropped_and_reported() {
        for cut in ["\"1\"", "\"1\",\"2", "\"1\",\"2\",\"a\nb", "\"1\"\n", "\"1\",\"2\",\"a\"\""] {
            let page = page(&format!("\"ID\",\"A\",\"B\"\n\"0\",\"1\",\"2\"\n{cut}"));
            assert_eq!((page.records.len(), page.truncated), (1, true), "{cut}");
        }
    }

    #[test]
    fn a_header_is_repeated_or_has_other_columns() {
        let first = "\"ID\",\"A\"\n\"0\",\"1\"\n";
        for again in ["\"ID\",\"A\"\n", "\u{feff}\"ID\",\"A\"\r\n"] {
            let page = page(&format!("{first}{again}\"0\",\"2\"\n"));
            assert_eq!((page.truncated, page.has_other_columns), (false, false));
            assert_eq!(page.records, [["0", "1"], ["ID", "A"], ["0", "2"]]);
        }
        for other in ["\"ID\",\"B\"\n", "\"ID\",\"A\",\"B\"\n", "==PROF== x\n\"ID\"\n"] {
            assert!(page(&format!("{first}{other}")).has_other_columns, "{other}");
        }
        let cut = page(&format!("{first}\"ID\",\"A"));
        assert_eq!((cut.truncated, cut.has_other_columns), (true, false));
    }

    #[test]
    fn text_of_another_kind_has_no_header() {
        for text in ["", "\n\n", "a,b\n1,2\n", "==ERROR== no\n", "\"", "\u{0}\u{fffd}"] {
            assert_eq!(page(text).header, [""; 0], "{text:?}");
        }
    }
}

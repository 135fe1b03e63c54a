//! CSV as ncu prints it: messages before the header, quoted fields, perhaps a last record that was cut.
//!
//! Text that is no CSV of ncu gives no header, never a panic.

/// Cells of a page that are kept: those of ten thousand launches with all of the tool's metrics.
const MAX_CELLS: usize = 16 << 20;

/// One printed page.
#[derive(Debug, Default, PartialEq)]
pub struct Page {
    pub header: Vec<String>,
    pub records: Vec<Vec<String>>,
    /// Lines `==WARNING== ...` and `==ERROR== ...` around the table.
    pub messages: Vec<String>,
    /// The last record has fewer fields than the header, so the file was cut; or it holds more than is kept.
    pub truncated: bool,
}

/// Reads one page. The header is the record that begins with `ID`.
pub fn page(text: &str) -> Page {
    let mut page = Page::default();
    let (mut least, mut cells) = (0, 0);
    let mut rest = text.trim_start_matches('\u{feff}');
    while !rest.is_empty() {
        if rest.starts_with("==") || page.header.is_empty() && !rest.starts_with("\"ID\"") {
            let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
            let line = line.trim_end();
            if line.starts_with("==WARNING==") || line.starts_with("==ERROR==") {
                page.messages.push(line.to_owned());
            }
            rest = after;
            continue;
        }
        let (mut record, after, ended) = record(rest);
        rest = after;
        cells += record.len();
        if cells > MAX_CELLS {
            page.truncated = true;
            break;
        }
        if record.iter().all(String::is_empty) && record.len() <= 1 {
            continue;
        }
        if page.header.is_empty() {
            // Rows without a rule end after their value.
            least = record.iter().position(|name| name == "Metric Value").map_or(record.len(), |at| at + 1);
            page.header = record;
        } else if record.len() == page.header.len() || ended && (least..page.header.len()).contains(&record.len()) {
            record.resize(page.header.len(), String::new());
            page.records.push(record);
        } else {
            page.truncated = true;
        }
    }
    page
}

/// One record, what follows it, and whether a line's end ends it.
fn record(text: &str) -> (Vec<String>, &str, bool) {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let full = fields.len() > MAX_CELLS;
        let Some(field) = fields.last_mut() else { break };
        match c {
            '"' if quoted && chars.peek().is_some_and(|(_, next)| *next == '"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            // What is longer than any record is told by its length alone.
            ',' if !quoted && full => {}
            ',' if !quoted => fields.push(String::new()),
            '\n' if !quoted => return (fields, &text[at + 1..], true),
            '\r' if !quoted => {}
            c => field.push(c),
        }
    }
    if quoted {
        fields.pop(); // a field that was cut is none
    }
    (fields, "", false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_before_the_header_are_kept_and_progress_is_not() {
        let text = "==PROF== Connected to process 7\nhello from the program\n==WARNING== odd\n\"ID\",\"Kernel Name\"\n\"0\",\"f<1, \"\"2\"\">(T1)\"\n";
        let page = page(text);
        assert_eq!(page.messages, ["==WARNING== odd"]);
        assert_eq!(
            (page.header, page.records),
            (vec!["ID".into(), "Kernel Name".into()], vec![vec!["0".into(), "f<1, \"2\">(T1)".into()]])
        );
        assert!(!page.truncated);
    }

    #[test]
    fn a_cut_record_is_left_out_and_said() {
        for cut in ["\"1\"", "\"1\",\"2", "\"1\",\"2\",\"a\nb", "\"1\"\n"] {
            let page = page(&format!("\"ID\",\"A\",\"B\"\n\"0\",\"1\",\"2\"\n{cut}"));
            assert_eq!((page.records.len(), page.truncated), (1, true), "{cut}");
        }
    }

    #[test]
    fn what_is_no_page_has_no_header() {
        for text in ["", "\n\n", "a,b\n1,2\n", "==ERROR== no\n", "\"", "\u{0}\u{fffd}"] {
            assert_eq!(page(text).header, [""; 0], "{text:?}");
        }
    }
}

//! Text for a terminal: tables as wide as it is, escaped text, durations and ages.
//!
//! If the output is not a terminal, a table is complete, with tabs between its columns.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use console::{measure_text_width, truncate_str};
pub use llmprof_core::{print, print_json, print_line, print_notice};
pub use llmprof_report::format::escaped;

/// Spaces between columns.
const GAP: usize = 2;
/// Width to which a column of text is cut at most.
const MIN_TEXT: usize = 24;

/// Columns of the terminal on standard output; `None` if it is not one.
pub fn width() -> Option<usize> {
    let columns = || console::Term::stdout().size_checked().map_or(80, |(_, columns)| columns);
    io::stdout().is_terminal().then(|| usize::from(columns()))
}

/// A column of a table.
#[derive(Debug, Clone)]
pub struct Column {
    name: String,
    is_number: bool,
    /// Cells are never cut.
    is_whole: bool,
}

impl Column {
    pub fn text(name: &str) -> Self {
        Self { name: name.into(), is_number: false, is_whole: false }
    }

    pub fn number(name: &str) -> Self {
        Self { name: name.into(), is_number: true, is_whole: true }
    }

    /// A name that is copied, such as an id.
    pub fn name(name: &str) -> Self {
        Self { name: name.into(), is_number: false, is_whole: true }
    }
}

/// A table for people.
#[derive(Debug, Clone)]
pub struct TerminalTable {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl TerminalTable {
    pub fn new(columns: Vec<Column>) -> Self {
        Self { columns, rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| escaped(cell)).collect());
    }

    /// The text for a terminal of `width` columns, or for a program.
    pub fn text(&self, width: Option<usize>) -> String {
        match width {
            Some(width) => self.aligned(width),
            None => {
                let names = self.columns.iter().map(|column| column.name.clone()).collect();
                let lines = std::iter::once(&names).chain(&self.rows);
                lines.map(|cells: &Vec<String>| cells.join("\t") + "\n").collect()
            }
        }
    }

    fn aligned(&self, width: usize) -> String {
        let mut widths: Vec<usize> =
            self.columns.iter().map(|it| it.name.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(measure_text_width(cell));
            }
        }
        let shown = self.fit(&mut widths, width);
        let mut text = String::new();
        let names = self.columns.iter().map(|column| column.name.clone()).collect();
        for cells in std::iter::once(&names).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, column), width) in cells.iter().zip(&self.columns).zip(&widths).take(shown)
            {
                let cell = truncate_str(cell, *width, "…");
                let padding = " ".repeat(width - measure_text_width(&cell));
                match column.is_number {
                    true => line += &format!("{padding}{cell}"),
                    false => line += &format!("{cell}{padding}"),
                }
                line += &" ".repeat(GAP);
            }
            text += line.trim_end();
            text.push('\n');
        }
        if shown < self.columns.len() {
            let hidden: Vec<&str> =
                self.columns[shown..].iter().map(|column| column.name.as_str()).collect();
            text += &format!("(too narrow for: {})\n", hidden.join(", "));
        }
        text
    }

    /// Narrows columns of text, the widest first; returns the number of columns that fit.
    fn fit(&self, widths: &mut [usize], available: usize) -> usize {
        let total = |widths: &[usize]| widths.iter().map(|it| it + GAP).sum::<usize>() - GAP;
        loop {
            if total(widths) <= available {
                return widths.len();
            }
            let shrinkable = (0..widths.len())
                .filter(|at| !self.columns[*at].is_whole && widths[*at] > MIN_TEXT)
                .max_by_key(|at| widths[*at]);
            let Some(widest) = shrinkable else { break };
            let excess = total(widths) - available;
            widths[widest] = widths[widest].saturating_sub(excess).max(MIN_TEXT);
        }
        (1..widths.len()).rev().find(|count| total(&widths[..*count]) <= available).unwrap_or(1)
    }
}

/// A duration for people: `0.8 s`, `42 s`, `3 min 5 s`, `2 h 10 min`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Time between two times of a service; `None` if one does not parse.
pub fn between(start: &str, end: &str) -> Option<Duration> {
    let parse = |text: &str| text.parse::<jiff::Timestamp>().ok();
    let milliseconds = parse(end)?.as_millisecond() - parse(start)?.as_millisecond();
    Some(Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0)))
}

/// Time since a time of a service, by this host's clock.
pub fn since(start: &str) -> Option<Duration> {
    between(start, &jiff::Timestamp::now().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TerminalTable {
        let columns = vec![Column::name("run"), Column::text("name"), Column::number("ms")];
        let mut table = TerminalTable::new(columns);
        table.row(vec!["a1".into(), "a kernel with a long name".into(), "1.5".into()]);
        table.row(vec!["b2".into(), "\u{1b}[31mred\u{202e}".into(), "120".into()]);
        table
    }

    #[test]
    fn a_table_is_as_wide_as_the_terminal_and_numbers_are_aligned_to_the_right() {
        let text = table().text(Some(34));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], format!("run  {:24}   ms", "name"));
        assert_eq!(lines[1], "a1   a kernel with a long na…  1.5");
        assert!(lines.iter().all(|line| measure_text_width(line) <= 34), "{text}");
        let narrow = table().text(Some(10));
        assert!(narrow.ends_with("(too narrow for: name, ms)\n"), "{narrow}");
    }

    #[test]
    fn a_program_gets_complete_cells_with_tabs_and_no_control_characters() {
        assert_eq!(
            table().text(None),
            "run\tname\tms\na1\ta kernel with a long name\t1.5\nb2\t‹U+001B›[31mred‹U+202E›\t120\n"
        );
    }

    #[test]
    fn a_duration_has_one_or_two_units() {
        let texts = [0.84, 42.0, 185.0, 7815.0].map(|s| duration(Duration::from_secs_f64(s)));
        assert_eq!(texts, ["0.8 s", "42 s", "3 min 5 s", "2 h 10 min"]);
        assert_eq!(
            between("2026-11-20T09:00:00.000Z", "2026-11-20T09:00:01.500Z"),
            Some(Duration::from_millis(1500))
        );
    }
}

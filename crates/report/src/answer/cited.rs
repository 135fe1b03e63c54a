//! Sentences whose figures are cited: each follows from cells of the report's tables.
//!
//! Words are constants without digits and names are quoted from records, so every other number of
//! a sentence is a [`Figure`]. A [`Share`] is at most 100 % of its whole.

use std::{borrow::Cow, fmt};

use llmprof_analyze::stats::{percent, ratio};
use serde::{Serialize, Serializer, ser::SerializeStruct};
use serde_json::Value;

use crate::format;

/// A row of a list of `report.json`, or an object in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Path of the list in the report.
    list: &'static str,
    keys: Vec<(&'static str, Value)>,
}

/// A number and the cells that it follows from.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    value: f64,
    origin: Origin,
}

#[derive(Debug, Clone, PartialEq)]
enum Origin {
    Cell {
        row: Row,
        /// Path of the field in the row.
        column: Cow<'static, str>,
        /// Unit of the cell over the unit of the figure.
        scale: f64,
    },
    Sum(Vec<Figure>),
    Least(Vec<Figure>),
    Most(Vec<Figure>),
    /// The number of the cells.
    Number(Vec<Figure>),
    Difference(Box<[Figure; 2]>),
    Product(Box<[Figure; 2]>),
    Quotient(Box<[Figure; 2]>),
}

/// A part of a whole, 0 to 100 %.
#[derive(Debug, Clone, PartialEq)]
pub struct Share(Figure);

/// A text, and the figures in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cited {
    text: String,
    figures: Vec<Figure>,
    /// Tables that the text names, without a figure of them.
    tables: Vec<&'static str>,
}

/// The rows of one table that figures of a text are from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Source {
    pub table: &'static str,
    /// The stage of the rows; `None` for tables without stages.
    pub stage: Option<String>,
    pub columns: Vec<String>,
}

impl Row {
    pub const fn of(list: &'static str) -> Self {
        Self { list, keys: vec![] }
    }

    /// The table that has these rows.
    fn table(&self) -> &'static str {
        match self.list {
            "kernels_topk" => "kernels",
            "aggregates.devices.transfers" => "transfers",
            "aggregates.loads" => "request_loads",
            list => list,
        }
    }

    /// The row with this value of a field.
    pub fn with(mut self, key: &'static str, value: impl Serialize) -> Self {
        self.keys.push((key, serde_json::to_value(value).unwrap_or_default()));
        self
    }

    pub fn figure(&self, column: impl Into<Cow<'static, str>>, value: f64) -> Figure {
        self.scaled(column.into(), value, 1.0)
    }

    pub fn count(&self, column: impl Into<Cow<'static, str>>, value: u64) -> Figure {
        self.scaled(column.into(), value as f64, 1.0)
    }

    /// Milliseconds of a cell in nanoseconds.
    pub fn ns(&self, column: impl Into<Cow<'static, str>>, ns: i64) -> Figure {
        self.scaled(column.into(), ns as f64, 1e-6)
    }

    /// Seconds of a cell in milliseconds.
    pub fn seconds(&self, column: impl Into<Cow<'static, str>>, ms: f64) -> Figure {
        self.scaled(column.into(), ms, 1e-3)
    }

    fn scaled(&self, column: Cow<'static, str>, value: f64, scale: f64) -> Figure {
        let origin = Origin::Cell { row: self.clone(), column, scale };
        Figure { value: value * scale, origin }
    }

    /// Values of a field in all rows of `report` that this one names.
    fn read<'a>(&'a self, report: &'a Value, column: &'a str) -> impl Iterator<Item = f64> + 'a {
        let rows = match field(report, self.list) {
            Some(Value::Array(rows)) => rows.as_slice(),
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        let is_named = |row: &&Value| self.keys.iter().all(|(key, value)| row[*key] == *value);
        rows.iter().filter(is_named).filter_map(move |row| field(row, column)?.as_f64())
    }
}

fn field<'a>(row: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(row, |at, name| match name.parse::<usize>() {
        Ok(index) => at.get(index),
        Err(_) => at.get(name),
    })
}

impl Figure {
    pub fn sum(all: impl IntoIterator<Item = Self>) -> Self {
        let all: Vec<Self> = all.into_iter().collect();
        Self { value: all.iter().map(|it| it.value).sum(), origin: Origin::Sum(all) }
    }

    /// `None` of nothing.
    pub fn least(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        let all: Vec<Self> = all.into_iter().collect();
        let value = all.iter().map(|it| it.value).reduce(f64::min)?;
        Some(Self { value, origin: Origin::Least(all) })
    }

    /// `None` of nothing.
    pub fn most(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        let all: Vec<Self> = all.into_iter().collect();
        let value = all.iter().map(|it| it.value).reduce(f64::max)?;
        Some(Self { value, origin: Origin::Most(all) })
    }

    /// The number of figures.
    pub fn number(all: impl IntoIterator<Item = Self>) -> Self {
        let all: Vec<Self> = all.into_iter().collect();
        Self { value: all.len() as f64, origin: Origin::Number(all) }
    }

    pub fn minus(&self, other: &Self) -> Self {
        let both = Box::new([self.clone(), other.clone()]);
        Self { value: self.value - other.value, origin: Origin::Difference(both) }
    }

    pub fn times(&self, other: &Self) -> Self {
        let both = Box::new([self.clone(), other.clone()]);
        Self { value: self.value * other.value, origin: Origin::Product(both) }
    }

    /// `None` over zero.
    pub fn over(&self, other: &Self) -> Option<Self> {
        let value = ratio(self.value, other.value)?;
        let both = Box::new([self.clone(), other.clone()]);
        Some(Self { value, origin: Origin::Quotient(both) })
    }

    /// The part that this is of a whole; `None` of a whole that is less.
    pub fn share_of(&self, whole: &Self) -> Option<Share> {
        let value = percent(self.value, whole.value)?;
        let is_part = (0.0..=100.0 * (1.0 + ROUNDING)).contains(&value);
        is_part.then(|| self.over(whole).map(Share))?
    }

    pub const fn value(&self) -> f64 {
        self.value
    }

    /// Three digits.
    pub fn short(self) -> Cited {
        self.shown(format::figure)
    }

    pub fn decimals(self, places: usize) -> Cited {
        self.shown(|value| format::decimals(value, places))
    }

    pub fn bytes(self) -> Cited {
        self.shown(|value| format::bytes(value as u64))
    }

    pub fn quantity(self, noun: &str) -> Cited {
        self.shown(|value| format::quantity(value as u64, noun))
    }

    pub fn shown(self, shown: impl FnOnce(f64) -> String) -> Cited {
        Cited { text: shown(self.value), figures: vec![self], tables: vec![] }
    }

    /// The same figure of the cells in a stored report; `None` if it lacks one.
    fn read(&self, report: &Value) -> Option<f64> {
        let all = |of: &[Self]| of.iter().map(|it| it.read(report)).collect::<Option<Vec<f64>>>();
        let both = |of: &[Self; 2]| Some((of[0].read(report)?, of[1].read(report)?));
        match &self.origin {
            Origin::Cell { row, column, scale } => {
                let mut cells = row.read(report, column).map(|it| it * scale);
                let first = cells.next()?;
                let is_it = |it: &f64| is_equal(*it, self.value);
                Some(if is_it(&first) { first } else { cells.find(is_it).unwrap_or(first) })
            }
            Origin::Sum(of) => Some(all(of)?.iter().sum()),
            Origin::Least(of) => all(of)?.into_iter().reduce(f64::min),
            Origin::Most(of) => all(of)?.into_iter().reduce(f64::max),
            Origin::Number(of) => Some(all(of)?.len() as f64),
            Origin::Difference(of) => both(of).map(|(a, b)| a - b),
            Origin::Product(of) => both(of).map(|(a, b)| a * b),
            Origin::Quotient(of) => both(of).and_then(|(a, b)| ratio(a, b)),
        }
    }

    fn cells<'a>(&'a self, to: &mut Vec<(&'a Row, &'a str)>) {
        match &self.origin {
            Origin::Cell { row, column, .. } => to.push((row, column)),
            Origin::Sum(of) | Origin::Least(of) | Origin::Most(of) | Origin::Number(of) => {
                of.iter().for_each(|it| it.cells(to));
            }
            Origin::Difference(of) | Origin::Product(of) | Origin::Quotient(of) => {
                of.iter().for_each(|it| it.cells(to));
            }
        }
    }
}

/// Part of a figure by which sums of its cells in another order may differ.
const ROUNDING: f64 = 1e-9;

fn is_equal(a: f64, b: f64) -> bool {
    (a - b).abs() <= ROUNDING * a.abs().max(b.abs())
}

impl Share {
    pub fn pct(&self) -> f64 {
        100.0 * self.0.value
    }

    pub fn text(self) -> Cited {
        self.0.shown(|value| format::share(100.0 * value))
    }
}

impl Cited {
    /// Words, with digits only in a percentile such as p99.
    pub fn words(words: &'static str) -> Self {
        debug_assert!(has_no_number(words), "a number that is not cited: {words}");
        Self { text: words.to_owned(), ..Self::default() }
    }

    /// A name or text of a record.
    pub fn name(name: impl Into<String>) -> Self {
        Self { text: name.into(), ..Self::default() }
    }

    /// A part of the text, with all figures.
    pub fn with_text(self, text: String) -> Self {
        Self { text, ..self }
    }

    /// The same text, which names a table.
    pub fn naming(mut self, table: &'static str) -> Self {
        self.tables.push(table);
        self
    }

    /// Words with a part at each `{}`.
    pub fn of(template: &'static str, parts: impl IntoIterator<Item = Self>) -> Self {
        let mut words = template.split("{}");
        let mut all = Self::words(words.next().unwrap_or_default());
        let mut parts = parts.into_iter();
        for rest in words {
            let part = parts.next();
            debug_assert!(part.is_some(), "a place without a part: {template}");
            all.push(part.unwrap_or_default());
            all.push(Self::words(rest));
        }
        debug_assert!(parts.next().is_none(), "a part without a place: {template}");
        all
    }

    pub fn list(parts: impl IntoIterator<Item = Self>, between: &'static str) -> Self {
        let mut all = Self::default();
        for (at, part) in parts.into_iter().enumerate() {
            if at > 0 {
                all.push(Self::words(between));
            }
            all.push(part);
        }
        all
    }

    pub fn push(&mut self, part: Self) {
        self.text.push_str(&part.text);
        self.figures.extend(part.figures);
        self.tables.extend(part.tables);
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The tables and columns of the figures, and the named tables.
    pub fn sources(&self) -> Vec<Source> {
        let mut cells = Vec::new();
        self.figures.iter().for_each(|it| it.cells(&mut cells));
        let mut sources: Vec<Source> = Vec::new();
        for (row, column) in cells {
            let stage = row.keys.iter().find(|it| it.0 == "stage");
            let stage = stage.and_then(|it| it.1.as_str()).map(str::to_owned);
            let is_of = |it: &&mut Source| it.table == row.table() && it.stage == stage;
            let column = column.to_owned();
            match sources.iter_mut().find(is_of) {
                Some(source) if source.columns.contains(&column) => {}
                Some(source) => source.columns.push(column),
                None => sources.push(Source { table: row.table(), stage, columns: vec![column] }),
            }
        }
        for table in &self.tables {
            if sources.iter().all(|it| it.table != *table) {
                sources.push(Source { table, stage: None, columns: vec![] });
            }
        }
        sources
    }

    /// The figures that do not follow from the cells of `report`.
    pub fn unfounded(&self, report: &Value) -> Vec<String> {
        let is_founded =
            |it: &&Figure| it.read(report).is_some_and(|read| is_equal(read, it.value));
        let text = |it: &Figure| format!("{} in \"{}\": {:?}", it.value, self.text, it.origin);
        self.figures.iter().filter(|it| !is_founded(it)).map(text).collect()
    }
}

impl fmt::Display for Cited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Cited {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut it = to.serialize_struct("Cited", 2)?;
        it.serialize_field("text", &self.text)?;
        it.serialize_field("sources", &self.sources())?;
        it.end()
    }
}

impl<T: AsRef<str>> PartialEq<T> for Cited {
    fn eq(&self, other: &T) -> bool {
        self.text == other.as_ref()
    }
}

/// True if digits stand only in percentiles, such as p99.
fn has_no_number(words: &str) -> bool {
    let bytes = words.as_bytes();
    (0..bytes.len()).filter(|at| bytes[*at].is_ascii_digit()).all(|at| {
        let digits = bytes[..at].iter().rev().take_while(|it| it.is_ascii_digit()).count();
        at > digits && bytes[at - digits - 1] == b'p'
    })
}

#[cfg(test)]
mod tests;

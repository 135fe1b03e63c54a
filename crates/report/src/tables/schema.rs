//! Columns of the tables: one name, one unit and one reader per column, for every form of a table.
//!
//! A column's name is the path of its field in `report.json`, so `launch_ns.mean` is the field
//! `mean` inside `launch_ns` there. Units end the names.

use llmprof_core::trace::kernel::known_sides;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::format::{self, UNKNOWN, decimals, ms, pct, scaled, sides};

/// Content and unit of a column's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColumnKind {
    Text,
    Flag,
    /// A quantity of things.
    Count,
    /// A number that names a thing: an index, a process, a position.
    Id,
    Ms,
    Us,
    Ns,
    Percent,
    Bytes,
    BytesPerSecond,
    Flops,
    FlopsPerSecond,
    /// A figure whose unit ends the column's name, or a ratio.
    Number,
    /// The three sides of a grid or block.
    Size,
    /// A list or a map; JSON in a CSV cell.
    Nested,
}

impl ColumnKind {
    /// Cells are numbers, which are aligned to the right and sorted by size.
    pub const fn is_number(self) -> bool {
        !matches!(self, Self::Text | Self::Flag | Self::Size | Self::Nested)
    }
}

/// The value of one cell.
#[derive(Debug, Clone, PartialEq)]
pub enum TableCell<'a> {
    Unknown,
    Text(&'a str),
    Flag(bool),
    Count(u64),
    Signed(i64),
    Figure(f64),
    Size([u32; 3]),
    Nested(Value),
}

impl TableCell<'_> {
    /// A list or a map as a cell.
    pub fn nested(value: &impl Serialize) -> TableCell<'static> {
        TableCell::Nested(serde_json::to_value(value).unwrap_or_default())
    }
}

impl Serialize for TableCell<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unknown => to.serialize_unit(),
            Self::Text(text) => to.serialize_str(text),
            Self::Flag(flag) => to.serialize_bool(*flag),
            Self::Count(count) => to.serialize_u64(*count),
            Self::Signed(number) => to.serialize_i64(*number),
            // JSON has no infinity: the serializer writes null.
            Self::Figure(figure) => to.serialize_f64(*figure),
            Self::Size(size) => size.serialize(to),
            Self::Nested(value) => value.serialize(to),
        }
    }
}

macro_rules! cells_from {
    ($($from:ty => |$value:ident| $cell:expr),+ $(,)?) => {$(
        impl<'a> From<$from> for TableCell<'a> {
            fn from($value: $from) -> Self {
                $cell
            }
        }
        impl<'a> From<Option<$from>> for TableCell<'a> {
            fn from(value: Option<$from>) -> Self {
                value.map_or(Self::Unknown, Self::from)
            }
        }
    )+};
}

cells_from! {
    &'a str => |text| Self::Text(text),
    &'a String => |text| Self::Text(text),
    bool => |flag| Self::Flag(flag),
    u32 => |count| Self::Count(count.into()),
    u64 => |count| Self::Count(count),
    i32 => |number| Self::Signed(number.into()),
    i64 => |number| Self::Signed(number),
    f64 => |figure| Self::Figure(figure),
    [u32; 3] => |size| known_sides(size).map_or(Self::Unknown, Self::Size),
}

impl<'a> From<&'a Option<String>> for TableCell<'a> {
    fn from(text: &'a Option<String>) -> Self {
        text.as_ref().into()
    }
}

/// A column of a table of records `R`.
pub struct TableColumn<R> {
    /// Name in JSON, CSV and the API.
    pub name: &'static str,
    /// Head in reports for people.
    pub title: &'static str,
    pub kind: ColumnKind,
    /// Digits after the point in reports, of [`ColumnKind::Number`].
    places: usize,
    read: fn(&R) -> TableCell<'_>,
    /// True if the sum over rows means the same as a cell.
    is_summed: bool,
    /// Text in reports if it differs from the kind's own.
    show: Option<fn(&R) -> String>,
}

impl<R> Clone for TableColumn<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for TableColumn<R> {}

impl<R> TableColumn<R> {
    const fn new(
        kind: ColumnKind,
        name: &'static str,
        title: &'static str,
        read: fn(&R) -> TableCell<'_>,
    ) -> Self {
        Self { name, title, kind, places: 1, read, is_summed: false, show: None }
    }

    /// Shows `text` in reports in place of the cell.
    pub const fn shown(self, text: fn(&R) -> String) -> Self {
        Self { show: Some(text), ..self }
    }

    /// Changes the head in reports.
    pub const fn titled(self, title: &'static str) -> Self {
        Self { title, ..self }
    }

    /// True if the sum over rows means the same as a cell.
    pub fn is_summed(&self) -> bool {
        self.is_summed
    }

    /// The sum of the cells of records; unknown without a known cell, and of columns whose sum
    /// means nothing.
    pub fn sum<'a>(&self, records: &'a [R]) -> TableCell<'a> {
        if !self.is_summed {
            return TableCell::Unknown;
        }
        let add = |sum, cell| match (sum, cell) {
            (TableCell::Count(a), TableCell::Count(b)) => TableCell::Count(a.saturating_add(b)),
            (TableCell::Signed(a), TableCell::Signed(b)) => TableCell::Signed(a.saturating_add(b)),
            (TableCell::Figure(a), TableCell::Figure(b)) => TableCell::Figure(a + b),
            (sum, TableCell::Unknown) => sum,
            (_, first) => first,
        };
        records.iter().map(|it| self.cell(it)).fold(TableCell::Unknown, add)
    }

    /// The column's cell of a record.
    pub fn cell<'a>(&self, record: &'a R) -> TableCell<'a> {
        (self.read)(record)
    }

    /// The cell as reports show it.
    pub fn text(&self, record: &R) -> String {
        if let Some(show) = self.show {
            return show(record);
        }
        match self.cell(record) {
            TableCell::Unknown | TableCell::Text("") => UNKNOWN.to_owned(),
            TableCell::Text(text) => text.to_owned(),
            TableCell::Flag(flag) => if flag { "yes" } else { "no" }.to_owned(),
            TableCell::Size(size) => sides(size),
            TableCell::Nested(value) => value.to_string(),
            TableCell::Count(count) => match self.kind {
                ColumnKind::Count => format::count(count),
                ColumnKind::Bytes => format::bytes(count),
                ColumnKind::Id => count.to_string(),
                _ => self.figure(count as f64),
            },
            TableCell::Signed(number) if self.kind == ColumnKind::Id => number.to_string(),
            TableCell::Signed(number) => self.figure(number as f64),
            TableCell::Figure(figure) => self.figure(figure),
        }
    }

    fn figure(&self, value: f64) -> String {
        match self.kind {
            ColumnKind::Ms => ms(value),
            ColumnKind::Ns => ms(value / 1e6),
            ColumnKind::Us => decimals(value, 1),
            ColumnKind::Percent => pct(value),
            ColumnKind::Bytes => scaled(value, "B"),
            ColumnKind::BytesPerSecond => scaled(value, "B/s"),
            ColumnKind::Flops => scaled(value, "FLOP"),
            ColumnKind::FlopsPerSecond => scaled(value, "FLOP/s"),
            _ => decimals(value, self.places),
        }
    }
}

macro_rules! constructors {
    ($($name:ident => $kind:ident),+ $(,)?) => {$(
        pub const fn $name<R>(
            name: &'static str,
            title: &'static str,
            read: fn(&R) -> TableCell<'_>,
        ) -> TableColumn<R> {
            TableColumn::new(ColumnKind::$kind, name, title, read)
        }
    )+};
}

constructors! {
    text => Text,
    flag => Flag,
    count => Count,
    id => Id,
    millis => Ms,
    micros => Us,
    nanos => Ns,
    percent => Percent,
    bytes => Bytes,
    bytes_per_s => BytesPerSecond,
    flops => Flops,
    flops_per_s => FlopsPerSecond,
    size => Size,
    nested => Nested,
}

/// A column of [`ColumnKind::Number`], which reports show with `places` decimals.
pub const fn number<R>(
    name: &'static str,
    title: &'static str,
    places: usize,
    read: fn(&R) -> TableCell<'_>,
) -> TableColumn<R> {
    TableColumn { places, ..TableColumn::new(ColumnKind::Number, name, title, read) }
}

/// A column whose sum over rows means the same as a cell.
pub fn summed<R>(column: TableColumn<R>) -> TableColumn<R> {
    TableColumn { is_summed: true, ..column }
}

/// Columns of a `Spread` of milliseconds under `$prefix`.
macro_rules! spread_columns {
    ($prefix:literal, |$record:ident: $of:ty| $spread:expr) => {
        [
            millis(concat!($prefix, ".mean"), "Mean ms", |$record: &$of| $spread.mean.into()),
            millis(concat!($prefix, ".std"), "Std ms", |$record: &$of| $spread.std.into()),
            millis(concat!($prefix, ".min"), "Min ms", |$record: &$of| $spread.min.into()),
            millis(concat!($prefix, ".max"), "Max ms", |$record: &$of| $spread.max.into()),
            count(concat!($prefix, ".n"), "Count", |$record: &$of| $spread.n.into()),
        ]
    };
}

/// Columns of the optional `Spans` under `$prefix`.
macro_rules! span_columns {
    ($prefix:literal, |$record:ident: $of:ty| $spans:expr) => {
        [
            summed(nanos(concat!($prefix, ".total"), "Total ms", |$record: &$of| {
                $spans.map(|it| it.total).into()
            })),
            summed(count(concat!($prefix, ".count"), "Calls", |$record: &$of| {
                $spans.map(|it| it.count).into()
            })),
            nanos(concat!($prefix, ".mean"), "Mean ms", |$record: &$of| {
                $spans.map(|it| it.mean).into()
            }),
            nanos(concat!($prefix, ".median"), "Median ms", |$record: &$of| {
                $spans.map(|it| it.median).into()
            }),
            nanos(concat!($prefix, ".min"), "Min ms", |$record: &$of| {
                $spans.map(|it| it.min).into()
            }),
            nanos(concat!($prefix, ".max"), "Max ms", |$record: &$of| {
                $spans.map(|it| it.max).into()
            }),
            nanos(concat!($prefix, ".std"), "Std ms", |$record: &$of| {
                $spans.and_then(|it| it.std).into()
            }),
        ]
    };
}

pub(crate) use {span_columns, spread_columns};

#[cfg(test)]
mod tests {
    use super::*;

    struct Record {
        name: String,
        ns: Option<i64>,
        bytes: u64,
        flag: bool,
    }

    const COLUMNS: [TableColumn<Record>; 4] = [
        text("name", "Name", |it| (&it.name).into()),
        nanos("ns", "Time ms", |it| it.ns.into()),
        bytes("bytes", "Bytes", |it| it.bytes.into()),
        flag("flag", "Flag", |it| it.flag.into()),
    ];

    fn shown(record: &Record) -> Vec<String> {
        COLUMNS.iter().map(|column| column.text(record)).collect()
    }

    #[test]
    fn reports_scale_units_and_mark_unknown_cells() {
        let record = Record { name: String::new(), ns: None, bytes: 6_672_212_480, flag: true };
        assert_eq!(shown(&record), ["–", "–", "6.67 GB", "yes"]);
        let record = Record { name: "a".into(), ns: Some(1_250_000), bytes: 12, flag: false };
        assert_eq!(shown(&record), ["a", "1.250", "12 B", "no"]);
    }

    #[test]
    fn cells_are_plain_json_and_infinity_is_null() {
        let cells = [
            TableCell::from("a"),
            TableCell::from(None::<u64>),
            TableCell::from(f64::INFINITY),
            TableCell::from([1, 2, 3]),
            TableCell::from([0; 3]),
            TableCell::from(2.0),
        ];
        let expected = r#"["a",null,null,[1,2,3],null,2.0]"#;
        assert_eq!(serde_json::to_string(&cells).unwrap(), expected, "a size of zeros is unknown");
    }
}

//! Integers of rows, and their layout in the file.

use rusqlite::{Connection, Result};

use super::{
    export::string,
    pages::{Number, Record},
};

/// The integers of one row.
pub struct RowNumbers<'a, const N: usize> {
    columns: &'a [&'static str; N],
    row: RowSource<'a, N>,
}

/// Source of a row's integers.
#[derive(Clone, Copy)]
pub(super) enum RowSource<'a, const N: usize> {
    /// Decoded when they are read: most readers skip rows after a column or two.
    Page(&'a Record<'a, N>),
    Query(&'a [Number; N]),
}

/// The column with an invalid value.
pub struct ColumnError(pub(super) &'static str);

impl<'a, const N: usize> RowNumbers<'a, N> {
    pub(super) fn new(columns: &'a [&'static str; N], row: RowSource<'a, N>) -> Self {
        Self { columns, row }
    }

    #[inline(always)]
    fn number(&self, at: usize) -> Number {
        match self.row {
            RowSource::Page(record) => record.number(at),
            RowSource::Query(numbers) => numbers[at],
        }
    }

    /// The integer in the column at `at`; `None` for null.
    #[inline]
    pub fn some<T: TryFrom<i64>>(&self, at: usize) -> Result<Option<T>, ColumnError> {
        match self.number(at) {
            Number::Null => Ok(None),
            Number::Is(value) => {
                T::try_from(value).map(Some).map_err(|_| ColumnError(self.columns[at]))
            }
            Number::Other => Err(ColumnError(self.columns[at])),
        }
    }

    /// The integer in the column at `at`.
    #[inline]
    pub fn get<T: TryFrom<i64>>(&self, at: usize) -> Result<T, ColumnError> {
        self.some(at)?.ok_or(ColumnError(self.columns[at]))
    }
}

/// Layout of the rows of an ordinary table in the file.
pub(super) struct Layout<const N: usize> {
    /// Its first page.
    pub(super) root: u32,
    /// Position in a record of each requested column that exists.
    pub(super) places: [Option<usize>; N],
}

/// The layout of `table`, if its records contain the requested columns: not for keys, generated
/// columns and defaults.
pub(super) fn layout<const N: usize>(
    db: &Connection,
    table: &str,
    columns: [&str; N],
) -> Result<Option<Layout<N>>> {
    let mut places = [None; N];
    let ordinary = db.query_row(
        "select not wr from pragma_table_list(?1) where schema = 'main'",
        [table],
        |row| row.get(0),
    )?;
    let mut plain: bool = ordinary;
    let mut statement = db.prepare(
        "select name, type, dflt_value is null and pk = 0, hidden = 0 from pragma_table_xinfo(?1)",
    )?;
    let mut rows = statement.query([table])?;
    let mut at = 0;
    while let Some(row) = rows.next()? {
        let (name, kind) = (string(row, 0)?, string(row, 1)?);
        plain &= row.get::<_, bool>(3)?;
        if let Some(asked) = columns.iter().position(|column| *column == name) {
            plain &= row.get(2)? && kind.to_ascii_uppercase().contains("INT");
            places[asked] = Some(at);
        }
        at += 1;
    }
    let root: i64 = db.query_row(
        "select rootpage from sqlite_schema where type = 'table' and name = ?1",
        [table],
        |row| row.get(0),
    )?;
    Ok(u32::try_from(root).ok().filter(|_| plain).map(|root| Layout { root, places }))
}

//! The page walk against SQLite on the same file, and malicious files.

use std::path::PathBuf;

use proptest::prelude::*;
use rusqlite::Connection;
use tempfile::TempDir;

use super::{
    super::{export::Export, layout::ColumnError},
    *,
};

const META: &str = "create table META_DATA_EXPORT (name text, value text);";

fn database(prepare: impl FnOnce(&Connection)) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    let db = Connection::open(&path).unwrap();
    prepare(&db);
    db.execute_batch(META).unwrap();
    (dir, path)
}

/// The rows of `T` by [`Export::scan`], as many as there are until one is odd.
fn scanned(path: &Path, columns: [&'static str; 2]) -> Result<Vec<[Option<i64>; 2]>, String> {
    let mut rows = Vec::new();
    let take = |row: &super::super::layout::RowNumbers<2>| -> Result<(), ColumnError> {
        rows.push([row.some(0)?, row.some(1)?]);
        Ok(())
    };
    Export::open(&path.into())
        .unwrap()
        .scan("T", columns, take)
        .map(|()| rows)
        .map_err(|error| error.to_string())
}

fn root(path: &Path) -> u32 {
    let db = Connection::open(path).unwrap();
    db.query_row("select rootpage from sqlite_schema where name = 'T'", [], |row| row.get(0))
        .unwrap()
}

/// The rows of columns 0 and 1 by the walk only.
fn walked(path: &Path) -> Result<Vec<[Number; 2]>, Broken> {
    let (root, mut rows) = (root(path), Vec::new());
    let mut pages = Pages::open(path).unwrap().unwrap();
    pages.rows(root, [Some(0), Some(1)], |row| {
        rows.push([row.number(0), row.number(1)]);
        true
    })?;
    Ok(rows)
}

fn number() -> impl Strategy<Value = Option<i64>> {
    // Numbers of every length that the format has.
    prop::option::weighted(0.9, (any::<i64>(), 0u32..64).prop_map(|(value, shift)| value >> shift))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_pages_of_a_table_hold_what_a_query_gives(
        page in prop::sample::select(vec![4096u32, 8192, 65_536]),
        values in prop::collection::vec((number(), number(), 0i64..2000), 1..40),
        count in 0usize..3000,
        removed in 2i64..9,
        vacuum in any::<bool>(),
    ) {
        let (_dir, path) = database(|db| {
            db.execute_batch(&format!("pragma page_size = {page}; begin; create table T (a int, b \
                                       integer, filler blob)")).unwrap();
            let mut insert = db.prepare("insert into T values (?1, ?2, zeroblob(?3))").unwrap();
            for (a, b, filler) in values.iter().cycle().take(count) {
                insert.execute((a, b, filler)).unwrap();
            }
            drop(insert);
            db.execute_batch(&format!("delete from T where rowid % {removed} = 0; commit; alter \
                                       table T add column c int")).unwrap();
            if vacuum {
                db.execute_batch("vacuum").unwrap();
            }
        });
        let db = Connection::open(&path).unwrap();
        let mut query = db.prepare("select a, b, c from T").unwrap();
        let rows = query.query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?])).unwrap();
        let wanted: Vec<[Option<i64>; 3]> = rows.map(Result::unwrap).collect();
        let number = |value: Option<i64>| value.map_or(Number::Null, Number::Is);
        let numbers: Vec<_> = wanted.iter().map(|[a, b, _]| [number(*a), number(*b)]).collect();
        prop_assert_eq!(walked(&path).unwrap(), numbers);
        let swapped: Vec<_> = wanted.iter().map(|[_, b, c]| [*c, *b]).collect();
        prop_assert_eq!(scanned(&path, ["c", "b"]).unwrap(), swapped);
    }

    /// Whatever is overwritten, the walk ends, and hands out no more rows than the file has room
    /// for.
    #[test]
    fn damage_ends_the_walk(
        damage in prop::collection::vec((0usize..200_000, any::<u8>()), 1..60),
    ) {
        let (_dir, path) = database(|db| {
            let rows = "with recursive n(i) as (select 1 union all select i + 1 from n where i < \
                        2000) select i, i * i, zeroblob(400) from n";
            db.execute_batch(&format!("create table T (a int, b int, filler blob); insert into T \
                                       {rows}")).unwrap();
        });
        let root = root(&path);
        let mut bytes = std::fs::read(&path).unwrap();
        let length = bytes.len();
        for (at, byte) in damage {
            // Half of it in the pages that lead to the others.
            let at = if at % 2 == 0 { (root as usize - 1) * 4096 + at % 4096 } else { at };
            bytes[at % length] = byte;
        }
        std::fs::write(&path, bytes).unwrap();
        if let Ok(Some(mut pages)) = Pages::open(&path) {
            let mut rows = 0;
            pages.rows(root, [Some(0), Some(1)], |_| { rows += 1; true }).ok();
            prop_assert!(rows <= length / 4);
        }
    }
}

#[test]
fn a_page_that_leads_to_itself_ends_the_walk() {
    let (_dir, path) = database(|db| {
        let rows = "with recursive n(i) as (select 1 union all select i + 1 from n where i < \
                    5000) select i, i from n";
        db.execute_batch(&format!("create table T (a int, b int); insert into T {rows}")).unwrap();
    });
    let root = root(&path);
    let mut bytes = std::fs::read(&path).unwrap();
    let page = (root as usize - 1) * 4096;
    assert_eq!(bytes[page], INNER);
    let first = page + usize::from(u16::from_be_bytes([bytes[page + 12], bytes[page + 13]]));
    bytes[first..first + 4].copy_from_slice(&root.to_be_bytes());
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(walked(&path), Err(Broken::Page(_))));
    let message = scanned(&path, ["a", "b"]).unwrap_err();
    assert!(
        message.contains("run.sqlite: damaged: page ") && message.ends_with(", of T"),
        "{message}"
    );
}

#[test]
fn a_table_that_is_not_ordinary_is_queried() {
    for (table, rows) in [
        ("T (a integer primary key, b int)", "(7, 8)"),
        ("T (a int, b int, primary key (a, b)) without rowid", "(7, 8)"),
        ("T (a int, b int, c int generated always as (a + 1) virtual)", "(7, 8)"),
        ("T (b real, a int)", "(8, 7)"),
    ] {
        let (_dir, path) = database(|db| {
            db.execute_batch(&format!("create table {table}; insert into T values {rows}")).unwrap()
        });
        let wanted = if table.contains("real") { Err(()) } else { Ok(vec![[Some(7), Some(8)]]) };
        assert_eq!(scanned(&path, ["a", "b"]).map_err(|_| ()), wanted, "{table}");
    }
    let (_dir, path) = database(|db| {
        db.execute_batch(
            "create table T (a int); insert into T values (7); alter table T add \
                          column b int default 8",
        )
        .unwrap();
    });
    assert_eq!(scanned(&path, ["a", "b"]).unwrap(), [[Some(7), Some(8)]]);
}

#[test]
fn what_is_no_whole_number_is_named_by_row_and_column() {
    for odd in ["'x'", "1.5", "x'00'"] {
        let (_dir, path) = database(|db| {
            db.execute_batch(&format!(
                "create table T (a int, b int); insert into T values (1, 2), (1, {odd})"
            ))
            .unwrap();
        });
        let message = scanned(&path, ["a", "b"]).unwrap_err();
        assert!(
            message.ends_with("run.sqlite: damaged: no number that fits in row 2 of T, column b"),
            "{message}"
        );
    }
}

//! Proves that the simulated disk loses what is not synced, and nothing else.

use std::{path::PathBuf, sync::atomic::AtomicU64};

use rusqlite::{Connection, OpenFlags};

use super::{disk::Disk, random::Random, vfs};

/// Number of rows after a power cut at a random time, of those that were committed.
fn rows_after_power_cut(synchronous: &str, seed: u64) -> (i64, Result<i64, rusqlite::Error>) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    let (folder, disk) = (PathBuf::from(format!("/simulated/{number}")), Disk::default());
    vfs::register(&folder, &disk);
    disk.attach(None);
    let open = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let db = Connection::open_with_flags_and_vfs(folder.join("db"), flags, vfs::NAME)?;
        db.query_row("pragma journal_mode = wal", [], |_| Ok(()))?;
        db.execute_batch(&format!("pragma synchronous = {synchronous}"))?;
        Ok(db)
    };
    let db = open().unwrap();
    db.execute_batch("create table numbers (number integer); pragma wal_checkpoint").unwrap();
    let mut random = Random::new(seed);
    let rows = 1 + random.below(40) as i64;
    for row in 0..rows {
        db.execute("insert into numbers values (?)", [row]).unwrap();
        if random.chance(10) {
            db.execute_batch("pragma wal_checkpoint").unwrap();
        }
    }
    disk.attach(None);
    disk.cut_power(&mut random);
    let count =
        open().and_then(|db| db.query_row("select count(*) from numbers", [], |row| row.get(0)));
    drop(db);
    vfs::unregister(&folder);
    (rows, count)
}

#[test]
fn a_power_cut_keeps_every_synced_commit() {
    for seed in 0..100 {
        let (committed, found) = rows_after_power_cut("full", seed);
        assert_eq!(found.unwrap(), committed, "seed {seed}");
    }
}

#[test]
fn a_power_cut_loses_commits_that_were_not_synced() {
    let lost = (0..100).filter(|seed| {
        let (committed, found) = rows_after_power_cut("off", *seed);
        found.ok() != Some(committed)
    });
    assert!(lost.count() > 50);
}

//! Migrations of the database, embedded: each file of `migrations/`, in the order of its number.
//!
//! A list in place of `sqlx::migrate!`, whose macros compile SQLite a second time for the build
//! host.

use sqlx::{
    SqlStr, SqliteConnection,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
};

/// Declares the files by their names without `.sql`.
macro_rules! files {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../migrations/", $name, ".sql")))),+]
    };
}

const FILES: &[(&str, &str)] = files![
    "0001_runs",
    "0002_access",
    "0010_scheduled",
    "0020_alignments",
    "0030_keep",
    "0040_gpus",
    "0041_history",
    "0042_rank",
    "0043_alignment_keys",
    "0050_latest",
    "0051_kept",
    "0060_subject",
    "0070_removals",
    "0071_deliveries",
    "0080_damage",
    "0090_alignment_damage",
    "0100_inputs",
    "0110_earlier_steps",
    "0130_series",
    "0140_sessions",
    "0150_gates",
    "0160_sweeps",
    "0170_run_images",
    "0180_parts",
    "0190_statistics",
];

/// All migrations, up to the version of this program.
pub fn migrator() -> Migrator {
    Migrator::with_migrations(FILES.iter().map(|(name, sql)| migration(name, sql)).collect())
}

/// Applies the migrations that the database lacks. Another process may do the same: the migration
/// that both apply fails in one of them, which goes on with those that are left.
pub async fn migrate(database: &mut SqliteConnection) -> Result<(), MigrateError> {
    let mut applied = None;
    loop {
        let Err(error) = migrator().run(&mut *database).await else { return Ok(()) };
        let now = sqlx::query_scalar("select count(*) from _sqlx_migrations")
            .fetch_one(&mut *database)
            .await;
        let now: Option<i64> = now.ok();
        if now == applied {
            return Err(error);
        }
        applied = now;
    }
}

fn migration(name: &'static str, sql: &'static str) -> Migration {
    let (version, title) = name.split_once('_').unwrap_or((name, ""));
    Migration::new(
        version.parse().expect("a test reads every name"),
        title.replace('_', " ").into(),
        MigrationType::Simple,
        SqlStr::from_static(sql),
        false,
    )
}

#[cfg(test)]
mod tests;

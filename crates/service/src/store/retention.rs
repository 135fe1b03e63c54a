//! Retention of old runs: pins, packed runs, and the plan of runs to be packed or removed.
//!
//! The plan is arithmetic over rows: planning removes nothing and touches no folder.

use std::collections::HashMap;

use llmprof_core::domain::{ids::RunId, subject::title};

use super::{Store, StoreError, column, during, id_of, key, now_ms, steady_ms};
use crate::config::RetentionSettings;

const DAY_MS: i64 = 86_400_000;

/// An ended run, as far as retention needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRun {
    pub id: RunId,
    /// For readers: a part is named with its model.
    pub name: String,
    pub mode: String,
    /// Milliseconds since 1970.
    pub ended_ms: i64,
    /// On disk.
    pub bytes: u64,
    pub packed: bool,
    pub pinned: bool,
    pub labelled: bool,
    /// It succeeded, completely or partially.
    pub well: bool,
}

/// An action planned for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedAction {
    pub run: KeptRun,
    /// Milliseconds since 1970; `None`: the next round.
    pub at_ms: Option<i64>,
    pub why: String,
}

/// Planned actions, oldest run first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub runs: usize,
    /// On disk, of all ended runs.
    pub bytes: u64,
    pub pack: Vec<PlannedAction>,
    /// Due removals first, then later ones by age.
    pub remove: Vec<PlannedAction>,
    /// Limits that cannot be met, with the reason.
    pub notes: Vec<String>,
}

impl Store {
    /// Plans by these settings.
    ///
    /// A clock that is set ahead while the service runs ages no run, for a removal is final.
    pub async fn plan(&self, settings: &RetentionSettings) -> Result<Plan, StoreError> {
        Ok(plan(self.kept().await?, settings, now_ms().min(steady_ms())))
    }

    async fn kept(&self) -> Result<Vec<KeptRun>, StoreError> {
        let rows = sqlx::query(
            "select id, name, mode, part, coalesce(ended_at, queued_at) as ended, pinned,
                    packed_at is not null as packed, state in ('succeeded', 'partial') as well,
                    exists (select 1 from labels where run_id = id) as labelled,
                    coalesce((select bytes from sizes where run_id = id), 0) as bytes
             from runs indexed by runs_ended where state not in ('queued', 'running')",
        )
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list ended runs"))?;
        rows.iter()
            .map(|row| {
                Ok(KeptRun {
                    id: id_of(column(row, "id")?)?,
                    name: title(column(row, "name")?, column(row, "part")?),
                    mode: column(row, "mode")?,
                    ended_ms: column(row, "ended")?,
                    bytes: column::<i64>(row, "bytes")?.unsigned_abs(),
                    packed: column(row, "packed")?,
                    pinned: column(row, "pinned")?,
                    labelled: column(row, "labelled")?,
                    well: column(row, "well")?,
                })
            })
            .collect()
    }

    /// Pins or unpins a run; returns false if there is no such run.
    pub async fn pin(&self, id: RunId, pinned: bool) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock().await;
        let changed =
            sqlx::query("update runs set pinned = ? where id = ?").bind(pinned).bind(key(&id));
        Ok(changed.execute(&mut *writer).await.map_err(during("pin a run"))?.rows_affected() > 0)
    }

    /// Records a file's size on disk; `None`: its content's size.
    pub async fn set_stored(
        &self,
        id: RunId,
        path: &str,
        bytes: Option<u64>,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        sqlx::query("update artifacts set stored_bytes = ? where run_id = ? and path = ?")
            .bind(bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX)))
            .bind(key(&id))
            .bind(path)
            .execute(&mut *writer)
            .await
            .map_err(during("record a file's size"))?;
        Ok(())
    }

    /// Records that the raw files of a run are packed.
    pub async fn set_packed(&self, id: RunId) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let changed =
            sqlx::query("update runs set packed_at = ? where id = ?").bind(now_ms()).bind(key(&id));
        changed.execute(&mut *writer).await.map_err(during("record a packed run"))?;
        Ok(())
    }
}

/// Plans for `kept`. The newest of each name and mode, succeeded and failed runs counted
/// separately, are neither packed nor removed.
fn plan(mut kept: Vec<KeptRun>, settings: &RetentionSettings, now: i64) -> Plan {
    kept.sort_by_key(|run| std::cmp::Reverse((run.ended_ms, run.id)));
    let mut plan =
        Plan { runs: kept.len(), bytes: kept.iter().map(|run| run.bytes).sum(), ..Plan::default() };
    let mut seen: HashMap<(&str, &str, bool), u32> = HashMap::new();
    let mut older: Vec<&KeptRun> = kept
        .iter()
        .filter(|run| {
            let rank = seen.entry((&run.name, &run.mode, run.well)).or_default();
            *rank += 1;
            *rank > settings.keep_newest
        })
        .collect();
    older.reverse();
    let due = |run: &KeptRun, at_ms, why: String| PlannedAction { run: run.clone(), at_ms, why };
    if settings.pack {
        let beyond = |run: &&&KeptRun| !run.pinned && !run.packed;
        let why = |run: &KeptRun| {
            let mode = if run.mode.is_empty() { "import" } else { &run.mode };
            format!("beyond the newest {} of {}, {mode}", settings.keep_newest, run.name)
        };
        plan.pack = older.iter().filter(beyond).map(|run| due(run, None, why(run))).collect();
    }
    let (mut runs, mut bytes) = (plan.runs as u64, plan.bytes);
    let age_ms = i64::from(settings.max_days) * DAY_MS;
    let mut later = Vec::new();
    for run in older.iter().filter(|run| !run.pinned && !run.labelled) {
        let ends = run.ended_ms.saturating_add(age_ms);
        let why = if age_ms > 0 && ends <= now {
            format!("older than {} days", settings.max_days)
        } else if settings.max_runs > 0 && runs > settings.max_runs {
            format!("more than {} runs are kept", settings.max_runs)
        } else if settings.max_bytes > 0 && bytes > settings.max_bytes {
            format!("more than {} bytes are kept", settings.max_bytes)
        } else {
            if age_ms > 0 {
                later.push(due(
                    run,
                    Some(ends),
                    format!("older than {} days then", settings.max_days),
                ));
            }
            continue;
        };
        (runs, bytes) = (runs - 1, bytes - run.bytes);
        plan.remove.push(due(run, None, why));
    }
    plan.remove.extend(later);
    for (unit, left, max) in
        [("runs", runs, settings.max_runs), ("bytes", bytes, settings.max_bytes)]
    {
        if max > 0 && left > max {
            plan.notes.push(format!(
                "{left} {unit} stay, over the limit of {max}: the rest is pinned, labelled, or \
                 among the newest {} of its name and mode",
                settings.keep_newest
            ));
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> RetentionSettings {
        RetentionSettings {
            keep_newest: 2,
            pack: true,
            max_runs: 0,
            max_days: 0,
            max_bytes: 0,
            interval_s: 60,
            scrub_days: 1,
            scrub_bytes_per_s: 0,
        }
    }

    /// `count` runs of ten bytes, one a day from day 1, with the day in their ids.
    fn runs(count: i64) -> Vec<KeptRun> {
        (1..=count)
            .map(|day| KeptRun {
                id: RunId(uuid::Uuid::from_u64_pair(0, day.unsigned_abs())),
                name: "tiny".into(),
                mode: "deep".into(),
                ended_ms: day * DAY_MS,
                bytes: 10,
                packed: false,
                pinned: false,
                labelled: false,
                well: true,
            })
            .collect()
    }

    fn days(due: &[PlannedAction]) -> Vec<i64> {
        due.iter().map(|due| due.run.ended_ms / DAY_MS).collect()
    }

    #[test]
    fn the_newest_of_a_model_and_mode_stay_and_older_ones_are_packed_oldest_first() {
        let mut kept = runs(5);
        kept[1].pinned = true;
        kept[0].name = "other".into();
        assert_eq!(days(&plan(kept.clone(), &settings(), 9).pack), [3]);
        kept[0].name = "tiny".into();
        kept[2].packed = true;
        assert_eq!(days(&plan(kept.clone(), &settings(), 9).pack), [1]);
        assert_eq!(plan(kept, &RetentionSettings { pack: false, ..settings() }, 9).pack, []);
    }

    #[test]
    fn failed_runs_do_not_displace_succeeded_ones() {
        let mut kept = runs(5);
        kept[2..].iter_mut().for_each(|run| run.well = false);
        assert_eq!(days(&plan(kept, &settings(), 9).pack), [3]);
    }

    #[test]
    fn beyond_count_age_or_bytes_the_oldest_are_removed_and_pinned_labelled_and_newest_stay() {
        let mut kept = runs(6);
        kept[0].labelled = true;
        let plan_with = |change: &dyn Fn(&mut RetentionSettings), now| {
            let mut settings = settings();
            change(&mut settings);
            plan(kept.clone(), &settings, now)
        };
        assert_eq!(days(&plan_with(&|it| it.max_runs = 4, 0).remove), [2, 3]);
        assert_eq!(days(&plan_with(&|it| it.max_bytes = 55, 0).remove), [2]);
        let aged = plan_with(&|it| it.max_days = 3, 5 * DAY_MS);
        let removals: Vec<_> = aged
            .remove
            .iter()
            .map(|due| (due.run.ended_ms / DAY_MS, due.at_ms.map(|at| at / DAY_MS)))
            .collect();
        assert_eq!(removals, [(2, None), (3, Some(6)), (4, Some(7))]);
        let over = plan_with(&|it| it.max_runs = 1, 0);
        assert_eq!((days(&over.remove), over.notes.len()), (vec![2, 3, 4], 1));
        assert!(over.notes[0].starts_with("3 runs stay, over the limit of 1"), "{:?}", over.notes);
        assert_eq!(plan_with(&|_| (), i64::MAX).remove, []);
    }
}

//! Queueing of points: each gets the run that measured it before, a new run, or a reason why it has
//! none, within the limits of its sweep and the quotas of its owner.

use llmprof_core::domain::{
    ids::{RunId, SweepId},
    subject::RunSpec,
};
use sqlx::SqliteConnection;

use super::{Owner, StoreError, Submitted, during, id_of, json, key, progress::pause, submit};
use crate::store::NewRun;

/// The runs that count as measured before: of this build, on this host and one of these devices.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReuseRule {
    /// As in the points of series.
    pub build: String,
    /// `None`: any, as on a cluster.
    pub host: Option<String>,
    /// Device as requested, and as the points of series name it; `None`: any.
    pub devices: Option<Vec<(String, String)>>,
}

/// A running sweep, as far as its progress depends on it.
pub(super) struct RunningSweep {
    pub id: SweepId,
    pub owner: Option<String>,
    pub max_queued: i64,
    pub reuse: bool,
    pub deadline_at: i64,
    pub max_minutes: i64,
}

/// Result of queueing one point.
enum PointQueued {
    Yes,
    /// It became a gap, or it was measured before.
    Settled,
    /// The owner has too many queued runs.
    Later,
    /// The owner's disk quota is used up.
    DiskFull(u64),
}

/// Queues waiting points in their order until the sweep has enough queued runs.
pub(super) async fn fill(
    tx: &mut SqliteConnection,
    sweep: &RunningSweep,
    rule: &ReuseRule,
    owner: Option<&Owner>,
) -> Result<u32, StoreError> {
    let query = "select count(*) from runs where sweep = ? and state = 'queued'";
    let queued: i64 = sqlx::query_scalar(query)
        .bind(key(sweep.id))
        .fetch_one(&mut *tx)
        .await
        .map_err(during("count queued points"))?;
    let mut room = sweep.max_queued - queued;
    let mut added = 0;
    if room <= 0 {
        return Ok(added);
    }
    let waiting: Vec<(u32, String)> = sqlx::query_as(
        "select position, spec from sweep_points
         where sweep = ? and run_id is null and gap is null and spec is not null order by position",
    )
    .bind(key(sweep.id))
    .fetch_all(&mut *tx)
    .await
    .map_err(during("list waiting points"))?;
    for (position, spec) in waiting {
        if room == 0 {
            break;
        }
        let spec: RunSpec = json(RunId(sweep.id.0), "a spec", &spec)?;
        match queue_point(tx, sweep, position, spec, rule, owner).await? {
            PointQueued::Yes => (room, added) = (room - 1, added + 1),
            PointQueued::Settled => {}
            PointQueued::Later => break,
            PointQueued::DiskFull(bytes) => {
                let message = format!(
                    "disk quota exceeded: the owner stores {bytes} bytes; delete some runs and \
                     resume the sweep"
                );
                pause(tx, sweep.id, Some(&message)).await?;
                break;
            }
        }
    }
    Ok(added)
}

/// Gives a point the run that measured it before, a new run, or a reason why it has none.
async fn queue_point(
    tx: &mut SqliteConnection,
    sweep: &RunningSweep,
    position: u32,
    spec: RunSpec,
    rule: &ReuseRule,
    owner: Option<&Owner>,
) -> Result<PointQueued, StoreError> {
    if sweep.reuse
        && let Some(run) = measured_before(tx, &spec, rule).await?
    {
        set_run(tx, sweep.id, position, run, true).await?;
        return Ok(PointQueued::Settled);
    }
    let new = NewRun { id: None, spec, idempotency: None, owner: owner.cloned() };
    let gap = match submit::refusal(tx, &new).await? {
        None => {
            let run = submit::insert(tx, &new, Some(sweep.id)).await?;
            set_run(tx, sweep.id, position, run.id, false).await?;
            return Ok(PointQueued::Yes);
        }
        Some(Submitted::TooManyQueued(_)) => return Ok(PointQueued::Later),
        Some(Submitted::DiskFull(bytes)) => return Ok(PointQueued::DiskFull(bytes)),
        Some(Submitted::NoInputs(id)) => format!("the inputs {id} were deleted"),
        Some(Submitted::SessionEnded(id)) => format!("the session {id} has ended"),
        Some(other) => format!("it was not accepted: {other:?}"),
    };
    sqlx::query("update sweep_points set gap = ?3 where sweep = ?1 and position = ?2")
        .bind(key(sweep.id))
        .bind(position)
        .bind(gap)
        .execute(tx)
        .await
        .map_err(during("refuse a point of a sweep"))?;
    Ok(PointQueued::Settled)
}

async fn set_run(
    tx: &mut SqliteConnection,
    sweep: SweepId,
    position: u32,
    run: RunId,
    is_reused: bool,
) -> Result<(), StoreError> {
    sqlx::query(
        "update sweep_points set run_id = ?3, reused = ?4 where sweep = ?1 and position = ?2",
    )
    .bind(key(sweep))
    .bind(position)
    .bind(run.0.as_bytes().to_vec())
    .bind(is_reused)
    .execute(tx)
    .await
    .map_err(during("queue a point of a sweep"))?;
    Ok(())
}

/// The newest run that measured the same by the rule.
async fn measured_before(
    tx: &mut SqliteConnection,
    spec: &RunSpec,
    rule: &ReuseRule,
) -> Result<Option<RunId>, StoreError> {
    let requested = spec.device().unwrap_or_default();
    let devices = rule.devices.as_ref().map(|devices| {
        let known = devices.iter().filter(|(name, _)| name == requested);
        serde_json::Value::from_iter(known.map(|(_, device)| device.as_str())).to_string()
    });
    let run: Option<Vec<u8>> = sqlx::query_scalar(
        "select id from runs indexed by runs_by_fingerprint join points on run_id = id
         where fingerprint = ?1 and state = 'succeeded' and build = ?2
           and (?3 is null or host = ?3)
           and (?4 is null or points.device in (select value from json_each(?4)))
         order by id desc limit 1",
    )
    .bind(spec.fingerprint())
    .bind(&rule.build)
    .bind(&rule.host)
    .bind(devices)
    .fetch_optional(tx)
    .await
    .map_err(during("look for an earlier run"))?;
    run.map(|id| id_of(&id)).transpose()
}

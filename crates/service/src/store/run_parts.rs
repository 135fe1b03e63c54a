//! Steps and artifacts of a run, replaced within a transaction of the caller. Faults of the earlier
//! artifacts are forgotten.

use llmprof_core::domain::{
    ids::RunId,
    run_files::ArtifactRecord,
    state::{Step, StepRecord},
};
use sqlx::SqliteConnection;

use super::{
    StoreError,
    damage::{ScrubSubject, replace_damage},
    during, key,
};

pub(super) async fn replace_steps(
    tx: &mut SqliteConnection,
    id: RunId,
    steps: &[StepRecord],
) -> Result<(), StoreError> {
    sqlx::query("delete from steps where run_id = ? and position >= ?")
        .bind(key(&id))
        .bind(u32::try_from(steps.len()).unwrap_or(u32::MAX))
        .execute(&mut *tx)
        .await
        .map_err(during("clear steps"))?;
    for (position, step) in (0_u32..).zip(steps) {
        sqlx::query(
            "insert into steps (run_id, position, step, state, started_at, ended_at, exit_code,
             message)
             values (?, ?, ?, ?, ?, ?, ?, ?)
             on conflict (run_id, position) do update set step = excluded.step,
                  state = excluded.state,
                    started_at = excluded.started_at, ended_at = excluded.ended_at,
                         exit_code = excluded.exit_code,
                    message = excluded.message",
        )
        .bind(key(&id))
        .bind(position)
        .bind(step.step.as_str())
        .bind(step.state.as_str())
        .bind(&step.started_at)
        .bind(&step.ended_at)
        .bind(step.exit_code)
        .bind(&step.message)
        .execute(&mut *tx)
        .await
        .map_err(during("save a step"))?;
    }
    Ok(())
}

pub(super) async fn replace_artifacts(
    tx: &mut SqliteConnection,
    id: RunId,
    artifacts: &[ArtifactRecord],
) -> Result<(), StoreError> {
    replace_damage(tx, ScrubSubject::Run(id), &[]).await?;
    sqlx::query("delete from artifacts where run_id = ?")
        .bind(key(&id))
        .execute(&mut *tx)
        .await
        .map_err(during("clear artifacts"))?;
    for artifact in artifacts {
        sqlx::query(
            "insert into artifacts (run_id, path, bytes, sha256, media_type, step)
                     values (?, ?, ?, ?, ?, ?)",
        )
        .bind(key(&id))
        .bind(&artifact.path)
        .bind(i64::try_from(artifact.bytes).unwrap_or(i64::MAX))
        .bind(&artifact.sha256)
        .bind(&artifact.media_type)
        .bind(artifact.step.map(Step::as_str))
        .execute(&mut *tx)
        .await
        .map_err(during("insert an artifact"))?;
    }
    Ok(())
}

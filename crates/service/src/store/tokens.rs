//! Tokens, stored as hashes.
//!
//! The text of a token is never stored, so the database gives no access.

use std::time::Duration;

use llmprof_core::domain::named_values::named_values;
use subtle::ConstantTimeEq;

use super::{Store, StoreError, during, now_ms, rfc3339};

/// Shortest time between two records of a token's use.
const USED: Duration = Duration::from_secs(60);

named_values! {
    /// Permissions of a token; each role includes the roles before it.
    #[derive(utoipa::ToSchema)]
    Role {
        /// Reads.
        Viewer = "viewer",
        /// Submits runs, and cancels and deletes its own.
        Submitter = "submitter",
        /// Cancels and deletes runs of all owners, and reads the audit log.
        Admin = "admin",
    }
}

/// A token in the database.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    pub id: i64,
    pub name: String,
    pub role: Role,
    /// RFC 3339, UTC, as the next three.
    pub created_at: String,
    pub expires_at: Option<String>,
    pub revoked_at: Option<String>,
    /// To the minute.
    pub last_used_at: Option<String>,
    /// It is valid now.
    pub valid: bool,
}

type TokenRow = (i64, String, String, Vec<u8>, i64, Option<i64>, Option<i64>, Option<i64>);

const COLUMNS: &str =
    "select id, name, role, sha256, created_at, expires_at, revoked_at, last_used_at from tokens";

impl Store {
    /// Stores a token under a new name. `None`: the name was used before.
    pub async fn create_token(
        &self,
        name: &str,
        role: Role,
        sha256: &[u8; 32],
        lasts: Option<Duration>,
    ) -> Result<Option<Token>, StoreError> {
        let now = now_ms();
        let expires = lasts
            .map(|lasts| now.saturating_add(i64::try_from(lasts.as_millis()).unwrap_or(i64::MAX)));
        let mut writer = self.writer.lock().await;
        let made = sqlx::query(
            "insert into tokens (name, role, sha256, created_at, expires_at) values (?, ?, ?, ?,
             ?) on conflict (name) do nothing",
        )
        .bind(name)
        .bind(role.as_str())
        .bind(sha256.as_slice())
        .bind(now)
        .bind(expires)
        .execute(&mut *writer)
        .await
        .map_err(during("store a token"))?;
        drop(writer);
        if made.rows_affected() == 0 {
            return Ok(None);
        }
        Ok(self.tokens().await?.into_iter().find(|token| token.name == name))
    }

    /// All tokens, oldest first.
    pub async fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        let rows: Vec<TokenRow> =
            sqlx::query_as(sqlx::AssertSqlSafe(format!("{COLUMNS} order by id")))
                .fetch_all(&mut *self.reader().await?)
                .await
                .map_err(during("list tokens"))?;
        rows.into_iter().map(|row| token(row).map(|(token, _)| token)).collect()
    }

    /// Revokes a token by name or by id. `None`: there is no such token, or it was revoked before.
    pub async fn revoke_token(&self, name_or_id: &str) -> Result<Option<String>, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut revoked: Vec<String> = sqlx::query_scalar(
            "update tokens set revoked_at = ?1 where revoked_at is null and id = coalesce(
                (select id from tokens where name = ?2), (select id from tokens
                     where id = cast(?2 as integer) and ?2 not glob '*[^0-9]*'))
             returning name",
        )
        .bind(now_ms())
        .bind(name_or_id)
        .fetch_all(&mut *writer)
        .await
        .map_err(during("revoke a token"))?;
        Ok(revoked.pop())
    }

    /// Returns true if a token was ever created. Revoked tokens count: otherwise the last
    /// revocation would open the service.
    pub async fn has_tokens(&self) -> Result<bool, StoreError> {
        sqlx::query_scalar("select exists (select 1 from tokens)")
            .fetch_one(&mut *self.reader().await?)
            .await
            .map_err(during("look for tokens"))
    }

    /// The valid token with this hash; records its use.
    pub async fn token(&self, sha256: &[u8; 32]) -> Result<Option<Token>, StoreError> {
        let Some((token, used)) = self.find_token(sha256).await? else { return Ok(None) };
        let now = now_ms();
        let fresh = now - i64::try_from(USED.as_millis()).unwrap_or(i64::MAX);
        // A use in the future was recorded before the clock was set back.
        if used.is_none_or(|used| used < fresh || used > now) {
            // On a full disk, requests that read or delete runs still have to work.
            if let Err(error) = self.record_use(token.id, now, fresh).await {
                tracing::warn!(error = llmprof_core::chain(&error), "cannot record a token's use");
            }
        }
        Ok(Some(token))
    }

    /// Returns true if the token with this hash is valid; records no use.
    pub async fn is_valid_token(&self, sha256: &[u8; 32]) -> Result<bool, StoreError> {
        Ok(self.find_token(sha256).await?.is_some())
    }

    /// The valid token with this hash, and its last use in milliseconds since 1970.
    async fn find_token(
        &self,
        sha256: &[u8; 32],
    ) -> Result<Option<(Token, Option<i64>)>, StoreError> {
        let row: Option<TokenRow> =
            sqlx::query_as(sqlx::AssertSqlSafe(format!("{COLUMNS} where sha256 = ?")))
                .bind(sha256.as_slice())
                .fetch_optional(&mut *self.reader().await?)
                .await
                .map_err(during("look up a token"))?;
        let Some(row) = row else { return Ok(None) };
        let used = row.7;
        let (token, hash) = token(row)?;
        let is_valid = token.valid && bool::from(hash.ct_eq(sha256.as_slice()));
        Ok(is_valid.then_some((token, used)))
    }

    async fn record_use(&self, id: i64, now: i64, fresh: i64) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        sqlx::query(
            "update tokens set last_used_at = ?1 where id = ?2
                     and (last_used_at is null or last_used_at < ?3 or last_used_at > ?1)",
        )
        .bind(now)
        .bind(id)
        .bind(fresh)
        .execute(&mut *writer)
        .await
        .map_err(during("record a token's use"))?;
        Ok(())
    }
}

fn token(
    (id, name, role, sha256, created, expires, revoked, used): TokenRow,
) -> Result<(Token, Vec<u8>), StoreError> {
    let role = role.parse().map_err(|_| StoreError::UnknownRole { name: name.clone() })?;
    let valid = revoked.is_none() && expires.is_none_or(|at| at > now_ms());
    let token = Token {
        id,
        name,
        role,
        created_at: rfc3339(created),
        expires_at: expires.map(rfc3339),
        revoked_at: revoked.map(rfc3339),
        last_used_at: used.map(rfc3339),
        valid,
    };
    Ok((token, sha256))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_is_valid_although_its_use_cannot_be_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("llmprof.db")).await.unwrap();
        store.create_token("a", Role::Viewer, &[1; 32], None).await.unwrap().unwrap();
        assert!(store.is_valid_token(&[1; 32]).await.unwrap());
        assert!(!store.is_valid_token(&[2; 32]).await.unwrap());
        assert_eq!(store.tokens().await.unwrap()[0].last_used_at, None, "a check records no use");
        let full = "create trigger full before update on tokens
                    begin select raise(fail, 'full'); end";
        sqlx::query(full).execute(&mut *store.writer.lock().await).await.unwrap();
        let token = store.token(&[1; 32]).await.unwrap().unwrap();
        assert_eq!((token.name.as_str(), token.last_used_at), ("a", None));
    }
}

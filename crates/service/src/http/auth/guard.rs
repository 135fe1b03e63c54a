//! The middleware in front of every handler: finds the caller, checks its role, rates and origin,
//! and records changes in the audit log.
//!
//! Handlers read the caller from [`Caller`]. The contract is written from [`api_rule`] as well.

use std::{net::IpAddr, sync::Arc};

use axum::{
    body::Bytes,
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, Method, StatusCode, Uri},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{
    access::{AccessControl, Caller, Credential},
    host_check, recheck,
};
use crate::{
    http::{
        error::{ApiError, ErrorCode},
        request_id,
    },
    store::{Role, Store, audit::AuditEntry},
};

/// Access rule of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessRule {
    /// Open to every client.
    Open,
    /// Open to every client, and recorded in the audit log.
    OpenAudited,
    /// Open to tokens of this role or a higher one.
    Role(Role),
    /// The same for a request that only calls the API: each of its calls is checked, counted and
    /// recorded by itself, as of the same caller.
    Calls(Role),
}

/// The guard with its rules, which the router sets.
#[derive(Debug, Clone)]
pub struct Guard {
    pub access: Arc<AccessControl>,
    pub store: Store,
    /// Names of this service other than its host's.
    pub hosts: Vec<String>,
    pub rule: fn(&Method, &str) -> AccessRule,
    /// Reads the session that a browser sends by itself; true: over encrypted connections only.
    pub session: fn(&HeaderMap, bool) -> Option<&str>,
    /// The last event of a stream of events whose caller is no longer admitted.
    pub last_event: fn(&ApiError) -> Bytes,
}

/// The access rule of an operation of the API, by the path of its contract or of a request.
pub fn api_rule(method: &Method, path: &str) -> AccessRule {
    match path {
        "/healthz" | "/readyz" | "/openapi.json" | "/openapi.yaml" | "/docs" => AccessRule::Open,
        path if path.starts_with("/docs/") => AccessRule::Open,
        "/mcp" => AccessRule::Calls(Role::Viewer),
        "/audit" | "/deliveries" => AccessRule::Role(Role::Admin),
        path if path.starts_with("/deliveries/") => AccessRule::Role(Role::Admin),
        _ if method.is_safe() => AccessRule::Role(Role::Viewer),
        _ => AccessRule::Role(Role::Submitter),
    }
}

impl Guard {
    /// Identifies and checks the caller. Sets `name` to the token's name even on refusal.
    async fn admit(
        &self,
        (method, uri, headers): (&Method, &Uri, &HeaderMap),
        (rule, credential): (AccessRule, &Credential),
        address: Option<IpAddr>,
        name: &mut Option<String>,
    ) -> Result<Caller, ApiError> {
        let access = &self.access;
        host_check::check_single(headers)?;
        let session = (self.session)(headers, access.is_encrypted());
        if !method.is_safe() {
            access.check_origin(headers, session)?;
        }
        let (AccessRule::Role(required_role) | AccessRule::Calls(required_role)) = rule else {
            return Ok(Caller { name: None, role: Role::Viewer, address });
        };
        let token_required = access.requires_token(&self.store).await?;
        // A browser's session is bound to the host at which it was started, and a proxy accepts its
        // own host names only.
        if !self.hosts.is_empty() || !(token_required || access.behind_proxy) {
            host_check::check(uri, headers, &self.hosts)?;
        }
        if !token_required {
            return Ok(Caller { name: None, role: Role::Admin, address });
        }
        access.rates.take_address(address)?;
        let token = access.token(&self.store, credential).await?;
        *name = Some(token.name.clone());
        access.rates.take_token(token.id)?;
        if token.role < required_role {
            let message = format!(
                "role {required_role} required; the token {:?} has the role {}",
                token.name, token.role
            );
            return Err(ApiError::new(ErrorCode::Forbidden, message));
        }
        Ok(Caller { name: Some(token.name), role: token.role, address })
    }
}

/// Passes a request on to its handler or refuses it, and records changes and refusals other than
/// those by rates.
pub async fn guard(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    let access = &guard.access;
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let address = access.address(request.extensions(), request.headers());
    let rule = (guard.rule)(&method, &path);
    let mut name = None;
    let head = (&method, request.uri(), request.headers());
    let session = (guard.session)(request.headers(), access.is_encrypted());
    let credential = Credential::of(request.headers(), session);
    let admitted = guard.admit(head, (rule, &credential), address, &mut name).await;
    let is_of_calls = matches!(rule, AccessRule::Calls(_));
    let permit = (!is_of_calls).then(|| access.handlers.try_acquire());
    let response = match (admitted, permit) {
        (Err(refused), _) => refused.into_response(),
        (Ok(_), Some(Err(_))) if matches!(rule, AccessRule::Role(_)) => {
            ApiError::of(ErrorCode::Overloaded).retry_after(1).into_response()
        }
        (Ok(caller), _permit) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
    };
    let status = response.status();
    // A login's caller is known only from its response.
    let name = name
        .or_else(|| response.extensions().get::<Caller>().and_then(|caller| caller.name.clone()));
    let refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    // Requests beyond a rate are counted in the metrics: their number has no bound.
    let limited = status == StatusCode::TOO_MANY_REQUESTS;
    let may_change = !method.is_safe() && !is_of_calls;
    if rule != AccessRule::Open && !limited && (may_change || refused) {
        access.record(&AuditEntry {
            who: name,
            address: address.map(|address| address.to_string()),
            status: Some(status.as_u16()),
            request_id: Some(request_id::current()),
            ..AuditEntry::on_host(&format!("{method} {}", route.as_deref().unwrap_or("-")), &path)
        });
    }
    if matches!(rule, AccessRule::Role(_) | AccessRule::Calls(_)) {
        return recheck::guarded(response, guard.clone(), credential, is_of_calls);
    }
    response
}

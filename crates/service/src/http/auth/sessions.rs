//! Sessions of browsers: a random value for each login, in place of the token.
//!
//! They are in memory, by the hash of their value, and end with the service.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};

/// Longest time of a session, even if it is used.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Sessions of one token; a further login ends the one that was used least recently.
const MAX_PER_TOKEN: usize = 32;

type Hash = [u8; 32];

/// The sessions.
#[derive(Debug)]
pub struct Sessions {
    /// Longest time without a request.
    idle: Duration,
    by_value: Mutex<HashMap<Hash, Session>>,
}

#[derive(Debug)]
struct Session {
    /// Hash of the token that was entered. The token is looked up at each request, so its
    /// revocation ends the session.
    token: Hash,
    started: Instant,
    used: Instant,
}

impl Session {
    fn is_valid(&self, idle: Duration, now: Instant) -> bool {
        now.duration_since(self.used) < idle && now.duration_since(self.started) < MAX_AGE
    }
}

impl Sessions {
    pub fn new(idle: Duration) -> Self {
        Self { idle, by_value: Mutex::default() }
    }

    /// Starts a session of the token with this hash, and returns its value.
    pub fn start(&self, token: Hash) -> Result<String, getrandom::Error> {
        let mut bits = [0_u8; 32];
        getrandom::fill(&mut bits)?;
        let value = bits.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        self.insert(&value, token, Instant::now());
        Ok(value)
    }

    fn insert(&self, value: &str, token: Hash, now: Instant) {
        let mut sessions = self.by_value.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, session| session.is_valid(self.idle, now));
        let of_token = || sessions.iter().filter(|(_, session)| session.token == token);
        if of_token().count() >= MAX_PER_TOKEN {
            let oldest = of_token().min_by_key(|(_, session)| session.used).map(|(key, _)| *key);
            oldest.and_then(|key| sessions.remove(&key));
        }
        sessions.insert(hash(value), Session { token, started: now, used: now });
    }

    /// Returns the hash of a session's token; `None` if the session is unknown or has ended.
    pub fn token(&self, value: &str) -> Option<Hash> {
        self.token_at(value, Instant::now())
    }

    fn token_at(&self, value: &str, now: Instant) -> Option<Hash> {
        let mut sessions = self.by_value.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get(&hash(value))?;
        if !session.is_valid(self.idle, now) {
            sessions.remove(&hash(value));
            return None;
        }
        Some(session.token)
    }

    /// Extends a session that has not ended.
    pub fn extend(&self, value: &str) {
        self.extend_at(value, Instant::now());
    }

    fn extend_at(&self, value: &str, now: Instant) {
        let mut sessions = self.by_value.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get_mut(&hash(value)).filter(|it| it.is_valid(self.idle, now));
        if let Some(session) = session {
            session.used = now;
        }
    }

    pub fn end(&self, value: &str) {
        let mut sessions = self.by_value.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.remove(&hash(value));
    }
}

fn hash(value: &str) -> Hash {
    Sha256::digest(value).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_session_ends_after_a_pause_and_after_a_day() {
        let (sessions, start) = (Sessions::new(HOUR), Instant::now());
        sessions.insert("a", [1; 32], start);
        assert_eq!(sessions.token_at("b", start), None);
        let mut now = start;
        while now < start + MAX_AGE - HOUR {
            now += HOUR / 2;
            assert_eq!(sessions.token_at("a", now), Some([1; 32]));
            sessions.extend_at("a", now);
        }
        assert_eq!(sessions.token_at("a", now + HOUR), None, "an hour without a request");
        sessions.insert("a", [1; 32], start);
        for at in (0..48).map(|step| start + step * HOUR / 2) {
            sessions.extend_at("a", at);
            assert!(sessions.token_at("a", at).is_some());
        }
        assert_eq!(sessions.token_at("a", start + MAX_AGE), None, "used for a day");
    }

    #[test]
    fn reading_the_token_of_a_session_does_not_extend_it() {
        let (sessions, start) = (Sessions::new(HOUR), Instant::now());
        sessions.insert("a", [1; 32], start);
        assert!(sessions.token_at("a", start + HOUR / 2).is_some());
        sessions.extend_at("a", start + HOUR);
        assert_eq!(sessions.token_at("a", start + HOUR), None, "not extended after its end");
    }

    #[test]
    fn values_differ_and_are_stored_as_hashes_in_bounded_number() {
        let sessions = Sessions::new(HOUR);
        let first = sessions.start([1; 32]).unwrap();
        let other = sessions.start([2; 32]).unwrap();
        assert!(first != other && first.len() == 64);
        assert!(!format!("{sessions:?}").contains(&first));
        for _ in 0..MAX_PER_TOKEN {
            sessions.start([1; 32]).unwrap();
        }
        assert_eq!(sessions.token(&first), None, "the oldest of its token");
        assert_eq!(sessions.token(&other), Some([2; 32]));
        sessions.end(&other);
        assert_eq!(sessions.token(&other), None);
    }
}

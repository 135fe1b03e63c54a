//! Uploads received at a time: in total, and of one submitter.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use super::access::Caller;
use crate::http::{
    error::{ApiError, ErrorCode},
    traffic::{Refusal, Traffic, client_network},
};

/// Seconds after which a refused upload may be repeated.
const RETRY_S: u64 = 10;

/// The slots.
#[derive(Debug)]
pub struct UploadSlots {
    total: usize,
    per_owner: usize,
    active: Mutex<HashMap<Submitter, usize>>,
    traffic: Traffic,
}

/// The name of a token, or the address of a client without one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Submitter {
    Owner(String),
    Address(Option<IpAddr>),
}

/// An active upload; its slot is free again when it is dropped.
#[derive(Debug)]
pub struct UploadSlot {
    slots: Arc<UploadSlots>,
    submitter: Submitter,
}

impl UploadSlots {
    pub fn new(total: u32, per_owner: u32, traffic: Traffic) -> Self {
        let (total, per_owner) = (total as usize, per_owner as usize);
        Self { total, per_owner, active: Mutex::default(), traffic }
    }

    /// Takes a slot for an upload of `caller`.
    pub fn take(self: &Arc<Self>, caller: &Caller) -> Result<UploadSlot, ApiError> {
        let submitter = match &caller.name {
            Some(name) => Submitter::Owner(name.clone()),
            None => Submitter::Address(caller.address.map(client_network)),
        };
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        let own = active.get(&submitter).copied().unwrap_or_default();
        if own >= self.per_owner {
            self.traffic.refuse(Refusal::OwnerUploads);
            let name = caller.name.as_deref().map_or("this client".into(), |it| format!("{it:?}"));
            let message = format!(
                "upload limit reached: {name} already has {own} active uploads; retry later"
            );
            return Err(ApiError::new(ErrorCode::TooManyUploads, message).retry_after(RETRY_S));
        }
        if active.values().sum::<usize>() >= self.total {
            let message =
                format!("upload limit reached: {} active uploads; retry later", self.total);
            return Err(ApiError::new(ErrorCode::Overloaded, message).retry_after(RETRY_S));
        }
        *active.entry(submitter.clone()).or_default() += 1;
        drop(active);
        Ok(UploadSlot { slots: Arc::clone(self), submitter })
    }
}

impl Drop for UploadSlot {
    fn drop(&mut self) {
        let mut active = self.slots.active.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = active.get_mut(&self.submitter) {
            *count -= 1;
            if *count == 0 {
                active.remove(&self.submitter);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Role;

    fn caller(name: Option<&str>, last: u8) -> Caller {
        let address = Some(IpAddr::from([192, 0, 2, last]));
        Caller { name: name.map(str::to_owned), role: Role::Submitter, address }
    }

    #[test]
    fn a_submitter_leaves_slots_to_others() {
        let slots = Arc::new(UploadSlots::new(4, 2, Traffic::default()));
        let (ann, bob) = (caller(Some("ann"), 1), caller(Some("bob"), 1));
        let first = slots.take(&ann).unwrap();
        let _second = slots.take(&ann).unwrap();
        let refused = slots.take(&ann).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::TooManyUploads);
        assert!(refused.message().contains("\"ann\" already has 2"), "{}", refused.message());
        let _others = [slots.take(&bob).unwrap(), slots.take(&caller(None, 1)).unwrap()];
        assert_eq!(slots.take(&caller(None, 2)).unwrap_err().code(), ErrorCode::Overloaded);
        drop(first);
        assert!(slots.take(&ann).is_ok());
        assert_eq!(slots.active.lock().unwrap().len(), 3, "without those that have none");
    }

    #[test]
    fn clients_without_a_token_are_told_apart_by_address() {
        let slots = Arc::new(UploadSlots::new(8, 1, Traffic::default()));
        let _first = slots.take(&caller(None, 1)).unwrap();
        assert!(slots.take(&caller(None, 1)).is_err() && slots.take(&caller(None, 2)).is_ok());
    }
}

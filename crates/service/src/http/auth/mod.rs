//! Access to the service: tokens and roles, sessions of browsers, allowed hosts, request
//! rates, active uploads.

pub mod access;
pub mod guard;
mod host_check;
mod rates;
mod recheck;
mod sessions;
pub mod upload_slots;

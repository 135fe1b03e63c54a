//! Access to the service: tokens and roles, allowed hosts, request rates.

pub mod access;
pub mod guard;
mod host_check;
mod rates;

//! The pages, through the router and in a browser.

mod baselines;
pub mod browser;
mod commands;
mod compare;
pub mod driver;
mod forms;
mod imports;
mod inputs;
pub mod login;
pub mod page;
pub mod pages;
mod series;

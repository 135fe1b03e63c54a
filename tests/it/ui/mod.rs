//! The pages, through the router and in a browser.

pub mod browser;
pub mod driver;
mod inputs;
pub mod login;
pub mod page;
pub mod pages;

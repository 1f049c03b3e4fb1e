//! Credentials to principal, principal and action to verdict.
//!
//! [`password`] makes and checks stored passwords and remembers verified logins; [`rule`] is a rule as
//! it is written and stored; [`engine`] answers core's questions and explains the answers; [`inquiry`]
//! takes questions in text; [`roles`] holds what the console's roles mean. `README.md` has the table of
//! operations. Never reads the network or a clock, never stores anything.
#![forbid(unsafe_code)]

pub mod engine;
mod filter;
pub mod inquiry;
pub mod password;
mod pattern;
mod ready;
pub mod roles;
pub mod rule;
mod subject;
mod template;

//! Credentials to principal, principal and action to verdict.
//!
//! `password.rs` turns passwords into stored hashes and remembers verified logins.
#![forbid(unsafe_code)]

pub mod password;

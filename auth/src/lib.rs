//! Credentials to principal, principal and action to verdict.

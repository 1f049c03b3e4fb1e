//! What scripts are made of: the client's side and the broker's side as lines of text.

pub mod broker;
pub mod peer;

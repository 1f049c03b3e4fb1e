//! One file per thing a user does first.

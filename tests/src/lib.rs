//! Whole-system tests with clients nobody here wrote.

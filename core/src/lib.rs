//! Nouns and rules of Anabranch: routing, streams, subscriptions, commands. No I/O, no clock, no randomness.

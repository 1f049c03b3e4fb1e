//! Sockets, timers, write batching and back-pressure for every gateway.

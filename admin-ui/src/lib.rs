//! HTTP API, metrics and the web console.

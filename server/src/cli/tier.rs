//! `anabranch tier`.

use clap::Subcommand;
use serde_json::{Map, Value};

use super::client::{Client, Failure};
use super::{Output, ServerFlags, output};

/// What to ask of the object store.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// What lies where, what is still to move, and what is wrong
    Status,
}

pub(super) fn run(server: &ServerFlags, verb: Verb) -> Result<(), Failure> {
    let Verb::Status = verb;
    let overview = Client::new(server)?.get("/overview")?;
    let status = status(&overview);
    match server.output {
        Output::Json => output::json(&Value::Object(status)),
        Output::Table => {
            for (name, value) in status {
                let text = match value {
                    Value::Null => "-".to_owned(),
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                output::line(&format!("{:<18} {text}", name.replace('_', " ")));
            }
        }
    }
    Ok(())
}

/// The part of the node's overview that is about the object store.
fn status(overview: &Value) -> Map<String, Value> {
    let mut status = Map::new();
    let mut put = |name: &str, value: &Value| status.insert(name.to_owned(), value.clone());
    put("url", &overview["node"]["tier_url"]);
    for name in [
        "local_segments",
        "local_bytes",
        "tier_segments",
        "tier_bytes",
        "tier_waiting",
        "tier_doomed",
        "tier_cache_bytes",
    ] {
        put(name, &overview["gauges"][format!("store_{name}")]);
    }
    for name in [
        "tier_uploads",
        "tier_removals",
        "tier_failures",
        "tier_range_reads",
        "tier_cache_hits",
    ] {
        put(name, &overview["totals"][format!("store_{name}")]);
    }
    let alarms = overview["alarms"].as_array();
    let alarm = alarms.and_then(|all| all.iter().find(|alarm| alarm["name"] == "tier"));
    put("error", alarm.map_or(&Value::Null, |alarm| &alarm["text"]));
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_status_is_what_the_overview_says_of_the_store() {
        let overview = json!({
            "node": {"tier_url": "s3://b/p"},
            "gauges": {"store_local_segments": 2, "store_tier_segments": 5, "ready": 9},
            "totals": {"store_tier_uploads": 5},
            "alarms": [{"name": "disk", "text": "x"}, {"name": "tier", "text": "it is away"}],
        });
        let status = status(&overview);
        assert_eq!(status["url"], "s3://b/p");
        assert_eq!(
            (&status["local_segments"], &status["tier_segments"]),
            (&json!(2), &json!(5))
        );
        assert_eq!(status["error"], "it is away");
        assert!(!status.contains_key("ready"));
    }
}

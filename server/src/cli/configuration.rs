//! `anabranch config`: the configuration that `serve` would use, from the same flags and variables.

use std::fmt::Display;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::Failure;
use super::{Output, ServeFlags, output};
use crate::node;

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Print every key and its value
    Show {
        /// And where each comes from
        #[arg(long)]
        sources: bool,
        #[command(flatten)]
        flags: Box<ConfigFlags>,
    },
    /// Say whether it can be used; nobody is asked, and no command run
    Check {
        #[command(flatten)]
        flags: Box<ConfigFlags>,
    },
}

/// Flags of `serve`, and how to print.
#[derive(Debug, Args)]
pub struct ConfigFlags {
    #[command(flatten)]
    serve: ServeFlags,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

pub(super) fn run(verb: &Verb) -> Result<(), Failure> {
    let (flags, show) = match verb {
        Verb::Show { flags, sources } => (flags, Some(*sources)),
        Verb::Check { flags } => (flags, None),
    };
    let config = node::configuration(&flags.serve).map_err(unusable)?;
    let Some(sources) = show else {
        node::check(&config).map_err(unusable)?;
        node::check_store(&config).map_err(unusable)?;
        output::done(
            flags.output,
            &json!({"usable": true}),
            "the configuration can be used",
        );
        return Ok(());
    };
    let entries = config.entries();
    match flags.output {
        Output::Json => {
            let rows = entries.iter().map(|entry| {
                let value = serde_json::to_value(&entry.value).unwrap_or(Value::Null);
                let mut row = json!({"key": entry.key, "value": value});
                if sources {
                    row["source"] = entry.source.to_string().into();
                }
                row
            });
            output::json(&Value::Array(rows.collect()));
        }
        Output::Table => {
            for entry in entries {
                let mut text = format!("{} = {}", entry.key, entry.value);
                if sources {
                    text.push_str(&format!("  # {}", entry.source));
                }
                output::line(&text);
            }
        }
    }
    Ok(())
}

fn unusable(error: impl Display) -> Failure {
    Failure::Configuration(error.to_string())
}

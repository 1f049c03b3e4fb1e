//! `--argument NAME=VALUE`: what commands hand on under names that are not the command line's own.
//!
//! Owns: what kind of value a text is.

use std::str::FromStr;

use serde_json::{Map, Value};

/// A named value.
#[derive(Debug, Clone, PartialEq)]
pub struct Argument {
    name: String,
    value: Value,
}

impl FromStr for Argument {
    type Err = String;

    fn from_str(text: &str) -> Result<Argument, String> {
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or("it is NAME=VALUE")?;
        let name = name.to_owned();
        let value = match value {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            _ => match value.parse::<i64>() {
                Ok(number) => Value::from(number),
                // In quotes a text stays one that looks like something else.
                Err(_) => match serde_json::from_str(value) {
                    Ok(Value::String(quoted)) => Value::String(quoted),
                    _ => Value::String(value.to_owned()),
                },
            },
        };
        Ok(Argument { name, value })
    }
}

/// All of them as an object; of repeated names the last.
pub(super) fn object(arguments: &[Argument]) -> Map<String, Value> {
    let pairs = arguments
        .iter()
        .map(|argument| (argument.name.clone(), argument.value.clone()));
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_is_what_it_looks_like() {
        let read = |text: &str| text.parse::<Argument>().map(|argument| argument.value);
        assert_eq!(read("x-message-ttl=60000"), Ok(json!(60000)));
        assert_eq!(read("x-single-active-consumer=true"), Ok(json!(true)));
        assert_eq!(
            read("x-overflow=reject-publish"),
            Ok(json!("reject-publish"))
        );
        assert_eq!(read("unit=\"7\""), Ok(json!("7")));
        assert_eq!(read("empty="), Ok(json!("")));
        assert_eq!(read("a=b=c"), Ok(json!("b=c")));
        assert!(read("none").is_err() && read("=1").is_err());
    }
}

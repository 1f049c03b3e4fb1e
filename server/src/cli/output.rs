//! Printing: lines, JSON, and tables whose columns are keys of the API's objects, `a.b` the key `b` within
//! the object `a`.
//!
//! Owns: alignment, and how a JSON value looks in a cell.
//! Never: fails when nobody reads (a closed pipe ends the program quietly).

use std::io::Write;

use serde_json::{Value, json};

use super::Output;

/// Prints a line; the program ends when its output is closed.
pub(super) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Prints what the API answered: as JSON, or as a table of these columns.
pub(super) fn items(output: Output, answer: &Value, columns: &[&str]) {
    let items = answer.get("items").unwrap_or(answer);
    match output {
        Output::Json => json(items),
        Output::Table => {
            let one = std::slice::from_ref(items);
            let rows = items.as_array().map_or(one, Vec::as_slice);
            for text in table(rows, columns) {
                line(&text);
            }
        }
    }
}

/// Prints what was done: as text, or the API's answer as JSON, where it has none the text in an object.
pub(super) fn done(output: Output, answer: &Value, text: &str) {
    match output {
        Output::Json if answer.is_null() => json(&json!({"done": text})),
        Output::Json => json(answer),
        Output::Table => line(text),
    }
}

/// Prints a value as indented JSON.
pub(super) fn json(value: &Value) {
    line(&format!("{value:#}"));
}

fn table(rows: &[Value], columns: &[&str]) -> Vec<String> {
    let title = columns.iter().map(|column| {
        let name = column.rsplit('.').next().unwrap_or(column);
        name.replace('_', " ")
    });
    let mut cells: Vec<Vec<String>> = vec![title.collect()];
    cells.extend(
        rows.iter()
            .map(|row| columns.iter().map(|column| cell(at(row, column))).collect()),
    );
    let width = |column: usize| {
        let lengths = cells.iter().map(|row| row[column].chars().count());
        lengths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let print = |row: &Vec<String>| {
        let padded = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    cells.iter().map(print).collect()
}

fn at<'a>(row: &'a Value, column: &str) -> &'a Value {
    column.split('.').fold(row, |value, key| &value[key])
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) if list.is_empty() => "-".to_owned(),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(","),
        Value::Object(fields) if fields.contains_key("kind") && fields.contains_key("value") => {
            match cell(&fields["value"]).as_str() {
                "-" => cell(&fields["kind"]),
                value => format!("{}:{value}", cell(&fields["kind"])),
            }
        }
        // As `--resource` takes it: an empty pattern is empty.
        Value::Object(fields) if fields.contains_key("match") => {
            let part = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
            format!("{}:{}:{}", part("kind"), part("match"), part("pattern"))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_is_aligned_and_shows_what_is_missing() {
        let rows = [
            json!({"name": "anna", "roles": ["a", "b"], "protected": false}),
            json!({"name": "bo", "roles": [], "protected": true}),
        ];
        assert_eq!(
            table(&rows, &["name", "roles", "protected", "gone_ms"]),
            [
                "name  roles  protected  gone ms",
                "anna  a,b    no         -",
                "bo    -      yes        -",
            ]
        );
    }

    #[test]
    fn subjects_and_resources_are_written_as_they_are_typed() {
        assert_eq!(
            cell(&json!([{"kind": "user", "value": "anna"}, {"kind": "everyone", "value": ""}])),
            "user:anna,everyone"
        );
        let resource = json!({"vhost": "/", "kind": "topic", "match": "filter", "pattern": "a/#"});
        assert_eq!(cell(&resource), "topic:filter:a/#");
        let all = json!({"vhost": "*", "kind": "*", "match": "prefix", "pattern": ""});
        assert_eq!(cell(&all), "*:prefix:");
        assert_eq!(
            table(
                &[json!({"resource": resource})],
                &["resource.vhost", "resource"]
            ),
            ["vhost  resource", "/      topic:filter:a/#"]
        );
    }
}

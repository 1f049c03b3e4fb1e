//! `anabranch user`.

use std::io::Read;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Value, json};

use super::client::{Client, Failure, encode};
use super::{ServerFlags, output};

const COLUMNS: &[&str] = &["name", "roles", "groups", "protected"];

/// What to do with users.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// All users
    List,
    /// One user
    Show {
        /// The user's name
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
    },
    /// Create a user
    #[command(group = ArgGroup::new("source").args(["new_password", "new_password_file"]).required(true))]
    Add {
        /// The user's name
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        password: PasswordFlags,
        /// A role; may be given several times
        #[arg(long = "role")]
        roles: Vec<String>,
        /// A group; may be given several times
        #[arg(long = "group")]
        groups: Vec<String>,
    },
    /// Change a user; what is not given stays
    Set {
        /// The user's name
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        password: PasswordFlags,
        /// All roles from now on; may be given several times
        #[arg(long = "role")]
        roles: Option<Vec<String>>,
        /// All groups from now on; may be given several times
        #[arg(long = "group")]
        groups: Option<Vec<String>>,
    },
    /// Delete a user and close their connections
    Delete {
        /// The user's name
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
    },
}

/// Where a new password comes from.
#[derive(Debug, Args)]
pub struct PasswordFlags {
    /// The new password, 8 to 1024 bytes; visible to others on this machine while the command runs
    #[arg(long, value_name = "PASSWORD", conflicts_with = "new_password_file")]
    new_password: Option<String>,
    /// A file whose first line is the new password; `-` is standard input
    #[arg(long, value_name = "FILE")]
    new_password_file: Option<PathBuf>,
}

impl PasswordFlags {
    fn read(self) -> Result<Option<String>, Failure> {
        let Some(file) = self.new_password_file else {
            return Ok(self.new_password);
        };
        let mut text = String::new();
        let read = if file.as_os_str() == "-" {
            std::io::stdin().read_to_string(&mut text).map(drop)
        } else {
            std::fs::read_to_string(&file).map(|read| text = read)
        };
        read.map_err(|error| Failure::Failed(format!("{}: {error}", file.display())))?;
        Ok(Some(text.lines().next().unwrap_or("").to_owned()))
    }
}

pub(super) fn run(server: &ServerFlags, verb: Verb) -> Result<(), Failure> {
    let client = Client::new(server)?;
    let shape = server.output;
    match verb {
        Verb::List => output::items(shape, &client.get("/users")?, COLUMNS),
        Verb::Show { name } => {
            output::items(
                shape,
                &client.get(&format!("/users/{}", encode(&name)))?,
                COLUMNS,
            );
        }
        Verb::Add {
            name,
            password,
            roles,
            groups,
        } => {
            let Some(password) = password.read()? else {
                let why = "a new user needs --new-password or --new-password-file";
                return Err(Failure::Usage(why.to_owned()));
            };
            let user =
                json!({"name": name, "password": password, "roles": roles, "groups": groups});
            let answer = client.post("/users", &user)?;
            output::done(shape, &answer, &format!("user {name} created"));
        }
        Verb::Set {
            name,
            password,
            roles,
            groups,
        } => {
            let mut change = serde_json::Map::new();
            if let Some(password) = password.read()? {
                change.insert("password".to_owned(), Value::String(password));
            }
            for (key, list) in [("roles", roles), ("groups", groups)] {
                if let Some(list) = list {
                    change.insert(key.to_owned(), list.into());
                }
            }
            if change.is_empty() {
                return Err(Failure::Usage("nothing to change was given".to_owned()));
            }
            let path = format!("/users/{}", encode(&name));
            let answer = client.put(&path, &Value::Object(change))?;
            output::done(shape, &answer, &format!("user {name} changed"));
        }
        Verb::Delete { name } => {
            let answer = client.delete(&format!("/users/{}", encode(&name)))?;
            output::done(shape, &answer, &format!("user {name} deleted"));
        }
    }
    Ok(())
}

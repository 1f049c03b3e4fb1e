//! What a node's first start stores, and what each start renews: placement, the vhost `/`, the
//! administrator, the guest of development mode.
//!
//! Owns: these commands and their order; the file with the administrator's first password.
//! Never: overwrites what an administrator changed.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anabranch_auth::roles::{ADMINISTRATOR, first_rules};
use anabranch_core::error::Refusal;
use anabranch_core::id::{ShardId, UnixMs};
use anabranch_core::meta::placement::Placement;
use anabranch_core::meta::{MetaCommand, MetaReply, PasswordHash, Rule, User};
use anabranch_core::port::MetaPort;
use anabranch_core::router::Fabric;
use tokio::sync::oneshot;

use super::start::StartError;
use crate::cli::PASSWORD_FILE;
use crate::config::Config;
use crate::{gateways, login};

/// The user of development mode, and the mark by which it is known as such.
pub(super) const GUEST: &str = "guest";
const DEV_TAG: &str = "dev";
/// The first user.
pub(super) const ADMIN: &str = "admin";
/// Letters of a first password: none that look alike.
const ALPHABET: &[u8] = b"abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
const PASSWORD_LETTERS: usize = 24;

/// The metadata of a node that starts.
pub(super) struct Founding<'a> {
    pub(super) fabric: &'a Arc<Fabric>,
    pub(super) meta: &'a Arc<dyn MetaPort>,
    pub(super) data: &'a Path,
}

impl Founding<'_> {
    /// Begins this life of the node and makes sure of placement and vhost.
    pub(super) async fn begin(
        &self,
        incarnation: u64,
        shards: &[ShardId],
    ) -> Result<(), StartError> {
        self.propose(MetaCommand::NodeStarted { incarnation })
            .await?;
        let placed = self.fabric.meta().place("/", "").is_some();
        if !placed {
            let slots = Placement::even(shards);
            self.propose(MetaCommand::SetPlacement { slots }).await?;
        }
        self.propose(MetaCommand::CreateVhost {
            name: Arc::from("/"),
            exchanges: gateways::predeclared(),
            topic_exchange: Arc::from(gateways::TOPIC_EXCHANGE),
        })
        .await?;
        Ok(())
    }

    /// Makes sure that there is an administrator; gives the password when it was made just now.
    pub(super) async fn administrator(&self) -> Result<Option<String>, StartError> {
        let first = {
            let meta = self.fabric.meta();
            meta.users().all(is_guest)
        };
        if !first {
            return Ok(None);
        }
        for rule in first_rules() {
            let body = serde_json::to_value(&rule).unwrap_or_default();
            let id = Arc::from(rule.id);
            self.propose(MetaCommand::PutRule(Rule { id, order: 0, body }))
                .await?;
        }
        // The file first: a crash between the two leaves a password that the next start uses.
        let password = first_password(&self.password_file())?;
        self.put_user(ADMIN, &password, &[]).await?;
        Ok(Some(password))
    }

    /// The guest exists in development mode only.
    pub(super) async fn guest(&self, dev: bool) -> Result<(), StartError> {
        if dev {
            return self.put_user(GUEST, GUEST, &[Arc::from(DEV_TAG)]).await;
        }
        let left_over = self.fabric.meta().user(GUEST).is_some_and(is_guest);
        if left_over {
            let name = Arc::from(GUEST);
            self.propose(MetaCommand::DeleteUser { name }).await?;
        }
        Ok(())
    }

    /// Says which gateways let clients into vhosts that do not exist, so that they all are refused.
    pub(super) fn warn_of_missing_vhosts(&self, config: &Config) {
        let meta = self.fabric.meta();
        for section in gateways::sections() {
            let keys = config.section_of(section.name);
            let vhost = keys.get("vhost").and_then(toml::Value::as_str);
            if let Some(vhost) = vhost.filter(|name| meta.vhost(name).is_none()) {
                tracing::warn!(
                    vhost,
                    "gateway.{}.vhost does not exist: every connection will be refused",
                    section.name
                );
            }
        }
    }

    /// Where the administrator's first password stands.
    pub(super) fn password_file(&self) -> PathBuf {
        self.data.join(PASSWORD_FILE)
    }

    async fn put_user(
        &self,
        name: &str,
        password: &str,
        tags: &[Arc<str>],
    ) -> Result<(), StartError> {
        let hash = login::hash(password.as_bytes())?;
        let user = User {
            name: Arc::from(name),
            password: Some(PasswordHash(Arc::from(hash))),
            roles: vec![Arc::from(ADMINISTRATOR)],
            tags: tags.to_vec(),
        };
        self.propose(MetaCommand::PutUser(user)).await?;
        Ok(())
    }

    async fn propose(&self, command: MetaCommand) -> Result<MetaReply, StartError> {
        propose(&**self.meta, command)
            .await
            .map_err(StartError::Metadata)
    }
}

/// Whether a user is the guest of development mode, rather than somebody of that name.
pub(crate) fn is_guest(user: &User) -> bool {
    &*user.name == GUEST && user.tags.iter().any(|tag| &**tag == DEV_TAG)
}

/// Proposes to the metadata shard and waits for the answer.
pub(crate) async fn propose(
    meta: &dyn MetaPort,
    command: MetaCommand,
) -> Result<MetaReply, Refusal> {
    let (tell, told) = oneshot::channel();
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    // Whoever asked may be gone by then.
    let done = Box::new(move |result| drop(tell.send(result)));
    meta.propose(command, now, done);
    told.await.unwrap_or_else(|_| {
        let kind = anabranch_core::error::ErrorKind::ShuttingDown;
        Err(Refusal::new(kind, "the node is shutting down"))
    })
}

/// The password in the file, or a new one put there for its owner's eyes only.
fn first_password(file: &Path) -> Result<String, StartError> {
    let error = |source: io::Error| StartError::Data {
        path: file.to_owned(),
        source,
    };
    match std::fs::read_to_string(file) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => std::fs::remove_file(file).map_err(error)?,
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {}
        Err(other) => return Err(error(other)),
    }
    let password = random_password();
    let mut opened = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .map_err(error)?;
    writeln!(opened, "{password}").map_err(error)?;
    opened.sync_all().map_err(error)?;
    Ok(password)
}

fn random_password() -> String {
    let letter = |_| char::from(ALPHABET[rand::random_range(0..ALPHABET.len())]);
    (0..PASSWORD_LETTERS).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_first_password_is_made_once_and_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(PASSWORD_FILE);
        let password = first_password(&file).unwrap();
        assert_eq!(password.len(), PASSWORD_LETTERS);
        assert_eq!(
            std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(first_password(&file).unwrap(), password);
        // A crash may leave an empty file: nobody knows a password of it.
        std::fs::write(&file, "").unwrap();
        assert_ne!(first_password(&file).unwrap(), password);
    }
}

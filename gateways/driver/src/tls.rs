//! Certificates: read from files, looked at again while the node runs, and kept when new ones are wrong.
//!
//! A connection takes the configuration that is current when it is accepted and keeps it; so a new
//! certificate is what new connections see, and no open one notices.
//!
//! Owns: [`Tls`], what its files must hold, which protocol versions are spoken (1.2 and 1.3).
//! Never: decides when to look (whoever made it calls [`Tls::reload`]); keeps a key's text.
//! Next: `secure.rs`, the encryption of one connection.

use ring::digest::{SHA256, digest};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::Ticketer;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Where certificates are, and whether clients need one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by those between it and the root: PEM.
    pub certificate: PathBuf,
    /// Its private key: PEM (PKCS#8, PKCS#1 or SEC1).
    pub key: PathBuf,
    /// Who may sign clients' certificates, if they are asked for.
    pub clients: Option<ClientCertificates>,
}

/// Clients' certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// Certificates of those who sign them: PEM.
    pub authority: PathBuf,
    /// Whether a client without one is turned away; one with a wrong one always is.
    pub required: bool,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file does not hold what it must.
    #[error("{} holds no {wanted} in PEM: {why}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What it must hold.
        wanted: &'static str,
        /// What was found.
        why: String,
    },
    /// Certificate and key do not fit each other, or are of a kind that is not supported.
    #[error("certificate {} with key {}: {why}", certificate.display(), key.display())]
    Unfit {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// What looking at the files again gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// They hold what they held.
    Unchanged,
    /// New connections see the new ones.
    Renewed,
}

/// The certificates of a node's listeners.
pub struct Tls {
    files: TlsFiles,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// Of what the files held when they were last read, whether it could be used or not.
    seen: [u8; 32],
}

/// What the files hold.
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authority: Option<Vec<u8>>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(files: TlsFiles) -> Result<Tls, TlsError> {
        let contents = Contents::read(&files)?;
        let config = contents.config(&files)?;
        let seen = contents.print();
        Ok(Tls {
            files,
            current: Mutex::new(Current { config, seen }),
        })
    }

    /// Looks at the files again; reads a few kilobytes, so not for a worker's thread.
    ///
    /// # Errors
    /// [`TlsError`], once for each content that cannot be used; what was current stays so.
    pub fn reload(&self) -> Result<Reloaded, TlsError> {
        let contents = Contents::read(&self.files)?;
        let print = contents.print();
        if self.lock().seen == print {
            return Ok(Reloaded::Unchanged);
        }
        let made = contents.config(&self.files);
        let mut current = self.lock();
        current.seen = print;
        current.config = made?;
        Ok(Reloaded::Renewed)
    }

    /// The files.
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// What a new connection uses.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.lock().config.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Current> {
        // Nothing panics while it is held.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Contents, TlsError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| TlsError::Unreadable {
                path: path.to_owned(),
                source,
            })
        };
        let clients = files.clients.as_ref();
        Ok(Contents {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            authority: clients
                .map(|clients| read(&clients.authority))
                .transpose()?,
        })
    }

    /// Says whether two contents are the same without keeping a key.
    fn print(&self) -> [u8; 32] {
        let parts = [
            Some(&self.certificate),
            Some(&self.key),
            self.authority.as_ref(),
        ];
        let mut prints = Vec::new();
        for part in parts.into_iter().flatten() {
            prints.extend_from_slice(digest(&SHA256, part).as_ref());
        }
        let mut print = [0; 32];
        print.copy_from_slice(digest(&SHA256, &prints).as_ref());
        print
    }

    fn config(&self, files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
        let unfit = |why: String| TlsError::Unfit {
            certificate: files.certificate.clone(),
            key: files.key.clone(),
            why,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates(&files.certificate, &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|why| TlsError::Content {
            path: files.key.clone(),
            wanted: "private key",
            why: why.to_string(),
        })?;
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|why| unfit(why.to_string()))?;
        let builder = match (&files.clients, &self.authority) {
            (Some(clients), Some(authority)) => {
                builder.with_client_cert_verifier(verifier(clients, authority, provider)?)
            }
            (None, _) | (_, None) => builder.with_no_client_auth(),
        };
        let made = builder.with_single_cert(chain, key);
        let mut config = made.map_err(|why| unfit(why.to_string()))?;
        // Resumption by tickets that the client keeps: a fleet that comes back costs no memory here.
        match Ticketer::new() {
            Ok(ticketer) => config.ticketer = ticketer,
            Err(error) => tracing::warn!(%error, "TLS sessions cannot be resumed by tickets"),
        }
        config.send_tls13_tickets = 1;
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let refuse = |why: String| TlsError::Content {
        path: path.to_owned(),
        wanted: "certificate",
        why,
    };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|why| refuse(why.to_string()))?;
    if found.is_empty() {
        return Err(refuse("there is none in it".to_owned()));
    }
    Ok(found)
}

fn verifier(
    clients: &ClientCertificates,
    authority: &[u8],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let refuse = |why: String| TlsError::Content {
        path: clients.authority.clone(),
        wanted: "usable certificate",
        why,
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&clients.authority, authority)? {
        let added = roots.add(certificate);
        added.map_err(|why| refuse(why.to_string()))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = if clients.required {
        builder
    } else {
        builder.allow_unauthenticated()
    };
    builder.build().map_err(|why| refuse(why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path, name: &str) -> TlsFiles {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        TlsFiles {
            certificate,
            key,
            clients: None,
        }
    }

    #[test]
    fn files_are_read_again_only_when_they_changed_and_wrong_ones_change_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let tls = Tls::load(files(folder.path(), "one.test")).unwrap();
        assert_eq!(tls.reload().unwrap(), Reloaded::Unchanged);
        let first = tls.config();

        // A new certificate whose key has not arrived yet.
        let other = tempfile::tempdir().unwrap();
        let second = files(other.path(), "two.test");
        std::fs::copy(&second.certificate, &tls.files().certificate).unwrap();
        let error = tls.reload().unwrap_err();
        assert!(matches!(error, TlsError::Unfit { .. }), "{error}");
        assert!(Arc::ptr_eq(&first, &tls.config()), "the old one stays");
        assert_eq!(
            tls.reload().unwrap(),
            Reloaded::Unchanged,
            "what is wrong is said once"
        );

        std::fs::copy(&second.key, &tls.files().key).unwrap();
        assert_eq!(tls.reload().unwrap(), Reloaded::Renewed);
        assert!(!Arc::ptr_eq(&first, &tls.config()));
    }

    #[test]
    fn what_cannot_be_used_is_named_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let good = files(folder.path(), "one.test");
        let said = |files: TlsFiles| Tls::load(files).unwrap_err().to_string();
        let gone = folder.path().join("gone.pem");
        let missing = TlsFiles {
            key: gone.clone(),
            ..good.clone()
        };
        assert!(said(missing).contains("gone.pem"));
        let swapped = TlsFiles {
            certificate: good.key.clone(),
            key: good.certificate.clone(),
            clients: None,
        };
        let text = said(swapped);
        assert!(
            text.contains("key.pem") && text.contains("certificate"),
            "{text}"
        );
        let clients = Some(ClientCertificates {
            authority: good.key.clone(),
            required: true,
        });
        let text = said(TlsFiles { clients, ..good });
        assert!(text.contains("key.pem"), "{text}");
    }
}

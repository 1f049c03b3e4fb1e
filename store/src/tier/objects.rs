//! Objects: names, upload, verification, ranges.
//!
//! Owns: what is asked of the object store, one request at a time. Never tries again by itself beyond what the
//! library does for a request that was cut off. Read next: [`super::mover`], [`super::reader`].

use super::options::{TierError, TierOptions};
use crate::disk::DiskFile;
use anabranch_core::id::Position;
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Name;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes read and sent at a time; an object that is not larger goes in one piece.
pub(super) const PART_BYTES: u64 = 8 << 20;
/// A request that was cut off is sent again so many times at once; after that it counts as failed.
const RETRIES: usize = 2;
const RETRY_FOR: Duration = Duration::from_secs(10);
const CONNECT_FOR: Duration = Duration::from_secs(5);
const REQUEST_FOR: Duration = Duration::from_secs(60);
const SUFFIX: &str = ".seg";

/// What is known of an object: what it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Object {
    /// Bytes of the segment's file that it holds: up to the end of the last frame.
    pub(crate) len: u64,
    /// CRC-32C of them.
    pub(crate) crc: u32,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum ObjectError {
    /// The object store refused, or did not answer.
    #[error("{}", told(.0))]
    Store(#[from] object_store::Error),
    /// The local folder is not there.
    #[error("the folder {} is not there: make it, or is a disk not mounted?", .0.display())]
    NoFolder(PathBuf),
    /// The segment's own file cannot be read.
    #[error("reading the segment: {0}")]
    Disk(#[from] io::Error),
    /// It has less bytes than were sent.
    #[error("the object {name} was cut short: it has {has} of {len} bytes")]
    CutShort {
        /// Its name.
        name: String,
        /// Its length in bytes.
        has: u64,
        /// The length that it should have.
        len: u64,
    },
    /// Nothing of what was sent is there.
    #[error(
        "none of the {objects} objects that were sent to {folder} is there: is another disk mounted, or another bucket named?"
    )]
    Elsewhere {
        /// How many there should be.
        objects: usize,
        /// Where.
        folder: String,
    },
    /// What is read back is not what was sent.
    #[error("the object {name} holds other bytes than were sent")]
    Differs {
        /// Its name.
        name: String,
    },
    /// The segment cannot be opened again from elsewhere.
    #[error("a segment has no sound side file: it moves after the next start, which writes one")]
    NoSideFile,
    /// The journal did not take note of it.
    #[error("the journal did not note that a segment has moved: {0}")]
    Journal(String),
}

/// The library's text and what lies behind it, in one line.
fn told(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The object store.
pub(super) struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Name,
    /// The folder, when it is one.
    root: Option<PathBuf>,
    url: String,
}

impl Objects {
    pub(super) fn open(options: &TierOptions) -> Result<Self, TierError> {
        let url = options.url.clone();
        let bad = || TierError::Url(url.clone());
        if let Some(path) = url.strip_prefix("file://") {
            let root = PathBuf::from(path);
            if !root.is_absolute() {
                return Err(bad());
            }
            let prefix = Name::from_absolute_path(&root).map_err(|_| bad())?;
            // What is there is durable before the segment's own file goes.
            let store = LocalFileSystem::new().with_fsync(true);
            return Ok(Self {
                store: Arc::new(store),
                prefix,
                root: Some(root),
                url,
            });
        }
        let place = url.strip_prefix("s3://").ok_or_else(bad)?;
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        if bucket.is_empty() {
            return Err(bad());
        }
        let endpoint = options.endpoint.as_str();
        let is_http = endpoint.starts_with("http://");
        if !(endpoint.is_empty() || is_http || endpoint.starts_with("https://")) {
            let why = format!("endpoint must be https://host:port, not `{endpoint}`");
            return Err(TierError::Settings(why));
        }
        if is_http && !options.allow_http {
            let why = "endpoint is spoken to without TLS: that needs allow_http = true";
            return Err(TierError::Settings(why.to_owned()));
        }
        // The one library for TLS here; whoever installed one before keeps it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = ClientOptions::new()
            .with_allow_http(options.allow_http)
            .with_connect_timeout(CONNECT_FOR)
            .with_timeout(REQUEST_FOR);
        let retry = RetryConfig {
            max_retries: RETRIES,
            retry_timeout: RETRY_FOR,
            ..RetryConfig::default()
        };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_region(&options.region)
            .with_client_options(client)
            .with_retry(retry)
            // One by one: not every server knows the other way.
            .with_disable_bulk_delete(true);
        if !options.endpoint.is_empty() {
            builder = builder.with_endpoint(&options.endpoint);
        }
        if !options.access_key_id.is_empty() {
            builder = builder
                .with_access_key_id(&options.access_key_id)
                .with_secret_access_key(&options.secret_access_key);
        }
        let store = builder.build();
        let store = store.map_err(|error| TierError::Settings(told(&error)))?;
        let prefix = Name::parse(prefix).map_err(|_| bad())?;
        Ok(Self {
            store: Arc::new(store),
            prefix,
            root: None,
            url,
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    fn folder(&self, folder: &str) -> Name {
        let parts = self.prefix.parts();
        let within = folder.split('/').map(Into::into);
        parts.chain(within).collect()
    }

    fn name(&self, folder: &str, base: Position) -> Name {
        let file = format!("{:020}{SUFFIX}", base.0);
        self.folder(folder).join(file)
    }

    /// A folder that is not there is never made: it may be that of a disk that is not mounted.
    async fn check_root(&self) -> Result<(), ObjectError> {
        let Some(root) = &self.root else {
            return Ok(());
        };
        let path = root.clone();
        let there = off_the_runtime(move || folder_is_there(&path)).await?;
        match there {
            true => Ok(()),
            false => Err(ObjectError::NoFolder(root.clone())),
        }
    }

    /// Sends the first `len` bytes of a file, and reads them back: what is returned is certain.
    pub(super) async fn put(
        &self,
        folder: &str,
        base: Position,
        file: &Arc<dyn DiskFile>,
        len: u64,
    ) -> Result<Object, ObjectError> {
        self.check_root().await?;
        let name = self.name(folder, base);
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        if len <= PART_BYTES {
            let bytes = read_part(file, 0..len).await?;
            digest.update(&bytes);
            self.store.put(&name, bytes.into()).await?;
        } else {
            let mut upload = self.store.put_multipart(&name).await?;
            let sent = async {
                for part in parts(len) {
                    let bytes = read_part(file, part).await?;
                    digest.update(&bytes);
                    upload.put_part(bytes.into()).await?;
                }
                upload.complete().await?;
                Ok(())
            };
            if let Err(error) = sent.await {
                let _ = upload.abort().await;
                return Err(error);
            }
        }
        let object = Object {
            len,
            crc: digest.finalize() as u32,
        };
        self.verify(&name, object).await?;
        Ok(object)
    }

    async fn verify(&self, name: &Name, object: Object) -> Result<(), ObjectError> {
        let differs = || ObjectError::Differs {
            name: name.to_string(),
        };
        if self.store.head(name).await?.size != object.len {
            return Err(differs());
        }
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        for part in parts(object.len) {
            digest.update(&self.store.get_range(name, part).await?);
        }
        match digest.finalize() as u32 == object.crc {
            true => Ok(()),
            false => Err(differs()),
        }
    }

    /// Bytes of an object that should have `len` of them.
    pub(super) async fn get(
        &self,
        folder: &str,
        base: Position,
        range: Range<u64>,
        len: u64,
    ) -> Result<Bytes, ObjectError> {
        let name = self.name(folder, base);
        let wanted = range.end - range.start;
        let asked = self.store.get_range(&name, range.clone()).await;
        let is_all = |bytes: &Bytes| bytes.len() as u64 == wanted;
        if asked.as_ref().is_ok_and(is_all) {
            return Ok(asked?);
        }
        self.check_root().await?;
        // Stores answer in many ways when there are less bytes than were asked for.
        let has = self.store.head(&name).await?.size;
        let name = name.to_string();
        if has < range.end {
            return Err(ObjectError::CutShort { name, has, len });
        }
        asked?;
        Err(ObjectError::Differs { name })
    }

    /// Where the objects of a folder are, for people.
    pub(super) fn folder_address(&self, folder: &str) -> String {
        format!("{}/{folder}", self.url.trim_end_matches('/'))
    }

    /// Where an object is, for people.
    pub(super) fn address(&self, folder: &str, base: Position) -> String {
        format!("{}/{:020}{SUFFIX}", self.folder_address(folder), base.0)
    }

    /// The length of an object in bytes; `None` when it is not there. When its folder is not either, nobody knows.
    pub(super) async fn length(
        &self,
        folder: &str,
        base: Position,
    ) -> Result<Option<u64>, ObjectError> {
        self.check_root().await?;
        match self.store.head(&self.name(folder, base)).await {
            Ok(found) => Ok(Some(found.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes an object; one that is not there is removed. A folder that is not there holds it still.
    pub(super) async fn delete(&self, folder: &str, base: Position) -> Result<(), ObjectError> {
        self.check_root().await?;
        match self.store.delete(&self.name(folder, base)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The segments of which there are objects, and their lengths in bytes.
    pub(super) async fn list(&self, folder: &str) -> Result<BTreeMap<Position, u64>, ObjectError> {
        self.check_root().await?;
        let folder = self.folder(folder);
        let found: Vec<_> = self.store.list(Some(&folder)).try_collect().await?;
        let objects = found.iter().filter_map(|one| {
            let digits = one.location.filename()?.strip_suffix(SUFFIX)?;
            let is_ours = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
            let base = digits.parse().ok().filter(|_| is_ours)?;
            Some((Position(base), one.size))
        });
        Ok(objects.collect())
    }
}

fn folder_is_there(path: &Path) -> io::Result<bool> {
    use crate::disk::Disk;
    match crate::disk::real::RealDisk.list(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn parts(len: u64) -> impl Iterator<Item = Range<u64>> {
    let starts = (0..len).step_by(PART_BYTES as usize);
    starts.map(move |start| start..len.min(start + PART_BYTES))
}

async fn read_part(file: &Arc<dyn DiskFile>, part: Range<u64>) -> io::Result<Bytes> {
    let file = file.clone();
    off_the_runtime(move || {
        let mut bytes = vec![0; (part.end - part.start) as usize];
        file.read_at(&mut bytes, part.start)?;
        Ok(Bytes::from(bytes))
    })
    .await
}

/// The thread of the tier answers requests meanwhile.
async fn off_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(io::Error::other)?
}

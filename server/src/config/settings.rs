//! The server's own sections: their keys, defaults and ranges.
//!
//! Owns: `[node]`, `[http]`, `[tls]`, `[store]`, `[limits]`, `[auth]` and `[log]`.
//! Never: a gateway's section.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use anabranch_core::shard::ShardLimits;
use anabranch_driver::{DriverLimits, WORKERS_MAX};
use anabranch_store::journal::Compression;
use anabranch_store::tier::{Tier, TierError, TierOptions};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::merge::{ConfigError, Merged};

/// What the server itself uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Settings {
    /// The node.
    pub node: NodeSettings,
    /// API and console.
    pub http: HttpSettings,
    /// Certificates.
    pub tls: TlsSettings,
    /// The journal.
    pub store: StoreSettings,
    /// Connections and back-pressure.
    pub limits: LimitSettings,
    /// Logins.
    pub auth: AuthSettings,
    /// The log.
    pub log: LogSettings,
}

/// The node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeSettings {
    /// Data folder.
    pub data: PathBuf,
    /// Worker threads; 0 is one per processor.
    pub workers: usize,
    /// Anonymous access and `guest`/`guest`, on loopback only.
    pub dev: bool,
}

/// API and console.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HttpSettings {
    /// Where they listen.
    pub address: SocketAddr,
    /// Largest body of a request.
    pub body_bytes_max: usize,
    /// How long a session lives without a request.
    pub session_idle_s: u64,
    /// Further names that a Host header may have on loopback.
    pub allowed_hosts: Vec<String>,
}

/// Certificates of the gateways' listeners.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TlsSettings {
    /// The certificate, followed by those that link it to its root.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Who signs clients' certificates; empty is that none is asked for.
    pub client_ca: PathBuf,
    /// Whether a client may do without.
    pub client_auth: ClientAuth,
}

/// What a client without a certificate is, where clients' certificates are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// Let in, to log in otherwise.
    Request,
    /// Turned away.
    Require,
}

/// The journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreSettings {
    /// Data shards; set when the data folder is made, and kept.
    pub data_shards: u16,
    /// Size of a journal's segment files.
    pub segment_bytes: u64,
    /// Publishing is refused while the disk has less room than this, 256 MiB when not said; 0 for no reserve.
    pub low_water_bytes: u64,
    /// What the files of the data folder may take, 0 for no limit; publishing is refused shortly before.
    pub journal_bytes_max: u64,
    /// A checkpoint is written when a journal has grown by so much.
    pub checkpoint_bytes: u64,
    /// Memory for what lies in the index files, of all data shards together.
    pub index_memory_bytes: usize,
    /// Messages that wait in all streams of one shard; publishing is refused beyond.
    pub entries_max: u64,
    /// Messages in memory only, of one worker; publishing is refused beyond.
    pub volatile_bytes_max: u64,
    /// What waits for one session; newer messages are dropped and counted beyond.
    pub session_bytes_max: u64,
    /// Retained messages of one shard; a publish that would add one is refused beyond.
    pub values_max: u64,
    /// What they take in memory, likewise.
    pub values_bytes_max: u64,
    /// Delayed messages of one shard; further ones are refused.
    pub delayed_max: u64,
    /// How long a consumer of a queue may hold a delivery without acknowledging it; 0 is for ever. A queue or policy
    /// may say otherwise.
    pub ack_timeout_ms: u64,
    /// Published and not yet stored, of one shard; publishers are held back beyond.
    pub parked_bytes_max: usize,
    /// How frames of the journal of 16 KiB and more are compressed, where that saves an eighth.
    pub compression: FrameCompression,
    /// Encryption at rest.
    pub encryption: EncryptionSettings,
    /// Where old segments go.
    pub tier: TierSettings,
}

/// How the journal's frames are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameCompression {
    /// Not at all.
    None,
    /// LZ4.
    Lz4,
    /// Zstandard, level 1.
    Zstd,
}

impl From<FrameCompression> for Compression {
    fn from(setting: FrameCompression) -> Self {
        match setting {
            FrameCompression::None => Compression::None,
            FrameCompression::Lz4 => Compression::Lz4,
            FrameCompression::Zstd => Compression::Zstd,
        }
    }
}

/// Encryption at rest: off where neither file nor command is named.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncryptionSettings {
    /// A file of lines `name:key`, the key 32 bytes in base64: the first is used for what is new, all open.
    pub key_file: PathBuf,
    /// A command of the shell that prints such lines.
    pub key_command: String,
    /// Whether what is new is encrypted; else the keys only open what is.
    pub encrypt: bool,
}

/// An object store for sealed segments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierSettings {
    /// `file:///folder` or `s3://bucket/prefix`; empty is that all segments stay on the disk.
    pub url: String,
    /// The S3 server, `https://host:port`; empty is Amazon's of the region.
    pub endpoint: String,
    /// Region of the bucket.
    pub region: String,
    /// Key of the account; empty is what the environment says (`AWS_ACCESS_KEY_ID`), or the machine's own.
    pub access_key_id: String,
    /// File with its secret.
    pub secret_access_key_file: PathBuf,
    /// Whether the S3 server may be spoken to without TLS.
    pub allow_http: bool,
    /// Bytes of sealed segments that each shard keeps on the disk.
    pub local_bytes: u64,
    /// Memory for what is read back, of all shards.
    pub cache_bytes: u64,
}

impl Default for TierSettings {
    fn default() -> Self {
        let usual = TierOptions::default();
        TierSettings {
            url: usual.url,
            endpoint: usual.endpoint,
            region: usual.region,
            access_key_id: usual.access_key_id,
            secret_access_key_file: PathBuf::new(),
            allow_http: usual.allow_http,
            local_bytes: usual.local_bytes,
            cache_bytes: usual.cache_bytes,
        }
    }
}

impl TierSettings {
    /// The object store, if there is one.
    ///
    /// # Errors
    /// A setting does not fit, or the secret cannot be read.
    pub fn start(&self) -> Result<Option<Tier>, TierError> {
        if self.url.is_empty() {
            return Ok(None);
        }
        let file = &self.secret_access_key_file;
        let secret = match file.as_os_str().is_empty() {
            true => String::new(),
            false => std::fs::read_to_string(file).map_err(|error| {
                let file = file.display();
                TierError::Settings(format!("secret_access_key_file {file}: {error}"))
            })?,
        };
        if !self.access_key_id.is_empty() && secret.trim().is_empty() {
            let why = "access_key_id is set: its secret has to stand in what secret_access_key_file names";
            return Err(TierError::Settings(why.to_owned()));
        }
        Tier::start(&TierOptions {
            url: self.url.clone(),
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            access_key_id: self.access_key_id.clone(),
            secret_access_key: secret.trim().to_owned(),
            allow_http: self.allow_http,
            local_bytes: self.local_bytes,
            cache_bytes: self.cache_bytes,
        })
        .map(Some)
    }
}

/// Connections and back-pressure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitSettings {
    /// Open connections.
    pub connections_max: usize,
    /// Connections that a worker gets before the next one gets its first.
    pub worker_company: usize,
    /// Time until a connection has logged in and entered a vhost.
    pub login_ms: u64,
    /// Unsent bytes above which a connection gets no more deliveries.
    pub unsent_hold_bytes: usize,
    /// Bytes a held connection may still add by asking.
    pub unsent_stop_bytes: usize,
    /// How long a peer may read nothing while something is unsent.
    pub stall_ms: u64,
    /// How long clients have to say goodbye at shutdown.
    pub drain_ms: u64,
    /// Longest frame of a WebSocket; its length is no memory, so this is against nonsense only.
    pub ws_frame_bytes_max: u64,
}

/// Logins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuthSettings {
    /// Passwords verified at the same time.
    pub verify_max: usize,
    /// Logins that may wait for that.
    pub waiting_max: usize,
    /// How long a verified login is remembered; 0 is not at all.
    pub remember_s: u64,
    /// Users whose logins are remembered.
    pub remember_users_max: usize,
}

/// The log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogSettings {
    /// Its form.
    pub format: LogFormat,
    /// What is logged: a level, or levels by module.
    pub level: String,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl StoreSettings {
    /// As core takes them, for one of so many data shards.
    pub fn shard_limits(&self, data_shards: usize) -> ShardLimits {
        ShardLimits {
            index_memory_bytes: self.index_memory_bytes / data_shards.max(1),
            volatile_bytes_max: self.volatile_bytes_max,
            entries_max: self.entries_max,
            session_bytes_max: self.session_bytes_max,
            parked_bytes_max: self.parked_bytes_max,
            values_max: self.values_max,
            values_bytes_max: self.values_bytes_max,
            delayed_max: self.delayed_max,
            ack_timeout_ms: self.ack_timeout_ms,
        }
    }
}

impl LimitSettings {
    /// As the driver takes them.
    pub fn driver_limits(&self) -> DriverLimits {
        DriverLimits {
            connections_max: self.connections_max,
            worker_company: self.worker_company,
            login_ms: self.login_ms,
            unsent_hold_bytes: self.unsent_hold_bytes,
            unsent_stop_bytes: self.unsent_stop_bytes,
            stall_ms: self.stall_ms,
            linger_ms: DriverLimits::default().linger_ms,
            drain_ms: self.drain_ms,
        }
    }
}

impl Default for NodeSettings {
    fn default() -> Self {
        NodeSettings {
            data: PathBuf::from("./data"),
            workers: 0,
            dev: false,
        }
    }
}

impl Default for HttpSettings {
    fn default() -> Self {
        HttpSettings {
            address: SocketAddr::from(([127, 0, 0, 1], 15672)),
            body_bytes_max: 1024 * 1024,
            session_idle_s: 12 * 60 * 60,
            allowed_hosts: Vec::new(),
        }
    }
}

impl Default for TlsSettings {
    fn default() -> Self {
        TlsSettings {
            certificate: PathBuf::new(),
            key: PathBuf::new(),
            client_ca: PathBuf::new(),
            client_auth: ClientAuth::Require,
        }
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        let shard = ShardLimits::default();
        StoreSettings {
            data_shards: 1,
            segment_bytes: 64 << 20,
            low_water_bytes: 256 << 20,
            journal_bytes_max: 0,
            checkpoint_bytes: 64 << 20,
            index_memory_bytes: shard.index_memory_bytes,
            entries_max: shard.entries_max,
            volatile_bytes_max: shard.volatile_bytes_max,
            session_bytes_max: shard.session_bytes_max,
            values_max: shard.values_max,
            values_bytes_max: shard.values_bytes_max,
            delayed_max: shard.delayed_max,
            ack_timeout_ms: shard.ack_timeout_ms,
            parked_bytes_max: shard.parked_bytes_max,
            compression: FrameCompression::None,
            encryption: EncryptionSettings {
                key_file: PathBuf::new(),
                key_command: String::new(),
                encrypt: true,
            },
            tier: TierSettings::default(),
        }
    }
}

impl Default for LimitSettings {
    fn default() -> Self {
        let driver = DriverLimits::default();
        LimitSettings {
            connections_max: driver.connections_max,
            worker_company: driver.worker_company,
            login_ms: driver.login_ms,
            unsent_hold_bytes: driver.unsent_hold_bytes,
            unsent_stop_bytes: driver.unsent_stop_bytes,
            stall_ms: driver.stall_ms,
            drain_ms: driver.drain_ms,
            ws_frame_bytes_max: 512 << 20,
        }
    }
}

impl Default for AuthSettings {
    fn default() -> Self {
        AuthSettings {
            verify_max: 2,
            waiting_max: 10_000,
            remember_s: 300,
            remember_users_max: 100_000,
        }
    }
}

impl Default for LogSettings {
    fn default() -> Self {
        LogSettings {
            format: LogFormat::Text,
            // The consensus library tells its inner life at info.
            level: "info,openraft=warn".to_owned(),
        }
    }
}

/// The server's keys with their defaults.
pub(super) fn defaults() -> Table {
    // Numbers, text and lists only: nothing of it can fail to be written.
    Table::try_from(Settings::default()).unwrap_or_default()
}

/// Reads and checks the server's sections.
pub(super) fn read(merged: &Merged) -> Result<Settings, ConfigError> {
    let http = address(merged, "http.address")?;
    let ranges: &[(&str, i64, i64)] = &[
        ("node.workers", 0, WORKERS_MAX as i64),
        ("http.body_bytes_max", 1024, 1 << 30),
        ("http.session_idle_s", 1, 365 * 24 * 3600),
        ("store.data_shards", 1, 64),
        ("store.segment_bytes", 1 << 20, 1 << 32),
        ("store.low_water_bytes", 0, i64::MAX),
        ("store.journal_bytes_max", 0, i64::MAX),
        ("store.checkpoint_bytes", 1 << 20, i64::MAX),
        ("store.index_memory_bytes", 1 << 20, i64::MAX),
        ("store.entries_max", 1, i64::MAX),
        ("store.volatile_bytes_max", 1 << 20, i64::MAX),
        ("store.session_bytes_max", 1 << 10, i64::MAX),
        ("store.values_max", 1, i64::MAX),
        ("store.values_bytes_max", 1 << 10, i64::MAX),
        ("store.delayed_max", 1, i64::MAX),
        ("store.ack_timeout_ms", 0, i64::MAX),
        ("store.parked_bytes_max", 1 << 20, i64::MAX),
        ("store.tier.local_bytes", 0, i64::MAX),
        ("store.tier.cache_bytes", 1 << 20, 1 << 40),
        ("limits.connections_max", 1, 10_000_000),
        ("limits.worker_company", 1, 10_000_000),
        ("limits.login_ms", 100, 3_600_000),
        ("limits.unsent_hold_bytes", 1024, 1 << 32),
        ("limits.unsent_stop_bytes", 1024, 1 << 32),
        ("limits.stall_ms", 100, 3_600_000),
        ("limits.drain_ms", 0, 3_600_000),
        ("limits.ws_frame_bytes_max", 1024, 1 << 40),
        ("auth.verify_max", 1, 256),
        ("auth.waiting_max", 1, 10_000_000),
        ("auth.remember_s", 0, 24 * 3600),
        ("auth.remember_users_max", 1, 10_000_000),
    ];
    for (key, least, most) in ranges {
        let value = merged
            .find(key)
            .and_then(Value::as_integer)
            .unwrap_or(*least);
        if !(*least..=*most).contains(&value) {
            return Err(ConfigError::Range {
                from: merged.source(key),
                key: (*key).to_owned(),
                wanted: format!("{least} to {most}"),
                found: value.to_string(),
            });
        }
    }
    let words: [(&str, &[&str]); 3] = [
        ("log.format", &["text", "json"]),
        ("tls.client_auth", &["request", "require"]),
        ("store.compression", &["none", "lz4", "zstd"]),
    ];
    for (key, words) in words {
        let word = merged.find(key).and_then(Value::as_str).unwrap_or_default();
        if !words.contains(&word) {
            let wanted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            return Err(ConfigError::Range {
                from: merged.source(key),
                key: key.to_owned(),
                wanted: wanted.join(" or "),
                found: format!("`{word}`"),
            });
        }
    }
    let mut server: Table = ["node", "http", "tls", "store", "limits", "auth", "log"]
        .into_iter()
        .map(|section| (section.to_owned(), Value::Table(merged.table(&[section]))))
        .collect();
    if let Some(Value::Table(section)) = server.get_mut("http") {
        section.insert("address".to_owned(), Value::String(http.to_string()));
    }
    // Whatever is left is a kind of error that the checks above do not know; its text names the key.
    server
        .try_into()
        .map_err(|error: toml::de::Error| ConfigError::Section {
            section: "configuration".to_owned(),
            why: error.message().to_owned(),
        })
}

/// A key that is an address with a port. Of a name that stands for several, the first of version 4.
pub(super) fn address(merged: &Merged, key: &str) -> Result<SocketAddr, ConfigError> {
    let text = merged.find(key).and_then(Value::as_str).unwrap_or_default();
    let found: Vec<SocketAddr> = text
        .to_socket_addrs()
        .map_or_else(|_| Vec::new(), Iterator::collect);
    let first = found.iter().find(|address| address.is_ipv4());
    if let Some(address) = first.or(found.first()) {
        return Ok(*address);
    }
    let usual = merged.default_of(key).and_then(Value::as_str);
    let port = usual
        .and_then(|text| text.parse().ok())
        .map_or(0, |usual: SocketAddr| usual.port());
    Err(ConfigError::Range {
        from: merged.source(key),
        key: key.to_owned(),
        wanted: format!(
            "an IP address or a name of this machine, with a port, such as {}:{port}",
            Ipv4Addr::LOCALHOST
        ),
        found: format!("{text:?}"),
    })
}

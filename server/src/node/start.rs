//! Joins the parts of a node: shards, workers, gateways, rules, logins, API.
//!
//! The order: metadata (which knows everything else), this life's beginning, workers' ports, data shards
//! (which replay), then the network. So nobody is let in before everything is there, and at the end
//! nobody is left when the shards close.
//!
//! Owns: this wiring and its errors.
//! Never: what a part does.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anabranch_admin::Settings as AdminSettings;
use anabranch_core::error::Refusal;
use anabranch_core::id::{ShardId, WorkerId};
use anabranch_core::port::{MetaPort, ShardPort, WorkerPort};
use anabranch_core::router::Fabric;
use anabranch_core::shard::ShardSetup;
use anabranch_core::worker::{WorkerLimits, WorkerSetup};
use anabranch_driver::{Crew, Driver, DriverSetup, Listening, TransportKind};
use anabranch_store::clock::SystemClock;
use anabranch_store::disk::Disk;
use anabranch_store::disk::real::RealDisk;
use anabranch_store::group::GroupOptions;
use anabranch_store::journal::Packing;
use anabranch_store::shard::{
    DataShard, DataShardSetup, JournalLimit, MetaShard, MetaShardSetup, ShardStartError,
};
use anabranch_store::tier::{Tier, TierError};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::certificates;
use super::founding::Founding;
use crate::backend::{Asker, NodeBackend, NodeParts};
use crate::config::{Config, ConfigError, Settings};
use crate::gateways;
use crate::login::{Doorman, Logins};
use crate::rules::RuleKeeper;

/// Why a node did not start, or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration does not fit.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Development mode listens on loopback only.
    #[error(
        "--dev lets everyone in and so listens on loopback only; {name} is configured for {address}"
    )]
    DevBeyondLoopback {
        /// Which listener.
        name: &'static str,
        /// Where.
        address: SocketAddr,
    },
    /// The data folder cannot be used.
    #[error("cannot use the data folder: {path}: {source}", path = path.display())]
    Data {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A part of the data folder is gone: starting without it would lose what it holds, silently.
    #[error(
        "the data folder is not whole: {} is missing; put it back (is a disk not mounted?), or move the rest away to start anew",
        .0.display()
    )]
    Incomplete(PathBuf),
    /// The object store for segments cannot be used as configured.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// A shard does not open; its own words name the folder.
    #[error("cannot open the data: {0}")]
    Shard(#[from] ShardStartError),
    /// The metadata shard refuses what a start needs.
    #[error("the metadata cannot be prepared: {0}")]
    Metadata(Refusal),
    /// A password cannot be hashed.
    #[error("a password cannot be hashed: {0}")]
    Password(#[from] anabranch_auth::password::PasswordError),
    /// The network side does not start.
    #[error(transparent)]
    Driver(#[from] anabranch_driver::StartError),
    /// API and console cannot listen.
    #[error("cannot listen on {address} for http: {source}")]
    Http {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The system gave no thread, signal or runtime.
    #[error("the system refuses what the node needs: {0}")]
    System(#[from] io::Error),
    /// A part of the running node ended.
    #[error("the node cannot go on: {0}")]
    Lost(String),
}

/// A node that runs.
pub(super) struct Running {
    pub(super) listening: Vec<Listening>,
    pub(super) http: SocketAddr,
    pub(super) password_file: PathBuf,
    pub(super) first_password: Option<String>,
    pub(super) logins: Arc<Logins>,
    driver: Arc<Driver>,
    shards: Vec<Arc<DataShard>>,
    meta: Arc<MetaShard>,
    stop_http: oneshot::Sender<()>,
    http_task: JoinHandle<io::Result<()>>,
    follow_task: JoinHandle<()>,
    certificates_task: Option<JoinHandle<()>>,
}

/// Starts everything.
pub(super) async fn start(config: &Config) -> Result<Running, StartError> {
    let settings = &config.settings;
    let gateways::Made {
        gateways,
        codecs,
        tls,
    } = super::check(config)?;
    let packing = super::keys::packing(config)?;
    let data = config.data();
    make_data_folder(&data).map_err(|source| StartError::Data {
        path: data.clone(),
        source,
    })?;
    let incarnation = life();
    let fabric = Arc::new(Fabric::default());
    let folders = shard_folders(&data)?;
    if !folders.is_empty() && !data.join("meta").is_dir() {
        return Err(StartError::Incomplete(data.join("meta")));
    }
    let meta = Arc::new(open_meta(settings, &packing, &data, &fabric).await?);
    let meta_port: Arc<dyn MetaPort> = meta.clone();
    let founding = Founding {
        fabric: &fabric,
        meta: &meta_port,
        data: &data,
    };
    let ids = shard_ids(settings, &data, &folders, &fabric)?;
    founding.begin(incarnation, &ids).await?;
    let first_password = founding.administrator().await?;
    founding.guest(settings.node.dev).await?;
    founding.warn_of_missing_vhosts(config);
    let password_file = founding.password_file();
    let keeper = RuleKeeper::new(fabric.clone(), settings.node.dev);
    let logins = Logins::new(fabric.clone(), &settings.auth, settings.node.dev)?;

    let crew = Crew::new(worker_count(settings))?;
    let mut ports = crew.worker_ports();
    let crew_size = u16::try_from(ports.len()).unwrap_or(u16::MAX);
    let asker = Arc::new(Asker::new(WorkerId(crew_size)));
    ports.push((asker.id(), asker.clone() as Arc<dyn WorkerPort>));
    let tier = settings.store.tier.start()?;
    let mut shards = Vec::new();
    let data_limits = settings.store.shard_limits(ids.len());
    for id in ids {
        let setup = ShardSetup {
            id,
            incarnation,
            workers: crew_size,
            limits: data_limits,
            fabric: fabric.clone(),
            authority: keeper.engine().clone(),
            codecs: codecs.clone(),
        };
        shards.push(Arc::new(
            open_shard(
                settings,
                &packing,
                &data,
                setup,
                ports.clone(),
                tier.clone(),
            )
            .await?,
        ));
    }
    let shard_ports: Vec<(ShardId, Arc<dyn ShardPort>)> = shards
        .iter()
        .map(|shard| (shard.id(), shard.clone() as Arc<dyn ShardPort>))
        .collect();
    asker.reach(
        crew.volatile_shards()
            .into_iter()
            .chain(shard_ports.iter().cloned()),
    );
    let ports = crew.worker_ports();
    // A worker's number has 16 bits.
    let count = u16::try_from(ports.len()).unwrap_or(u16::MAX);
    let workers = ports.into_iter().map(|(id, _)| WorkerSetup {
        id,
        incarnation,
        workers: count,
        limits: WorkerLimits {
            shard: data_limits,
            ..WorkerLimits::default()
        },
        fabric: fabric.clone(),
        codecs: codecs.clone(),
        authority: keeper.engine().clone(),
    });
    let workers = workers.collect();
    let http_listener = bind_http(settings.http.address).await?;
    let http = http_listener.local_addr()?;
    let protocols = gateways.iter().map(|of| of.gateway.name()).collect();
    let driver = Arc::new(crew.start(DriverSetup {
        workers,
        gateways,
        shards: shard_ports,
        outside: vec![(asker.id(), asker.clone() as Arc<dyn WorkerPort>)],
        meta: meta_port,
        host: Arc::new(Doorman(logins.clone())),
        clock: Arc::new(anabranch_driver::SystemClock::default()),
        limits: settings.limits.driver_limits(),
        seed: rand::random(),
    })?);
    let follow_task = tokio::spawn(keeper.clone().follow());
    // Where there are no certificates, the signal ends the node as it ends any program.
    let certificates_task = match tls {
        Some(tls) => {
            let hangup = signal(SignalKind::hangup())?;
            Some(tokio::spawn(certificates::keep(tls, hangup)))
        }
        None => None,
    };
    let backend = NodeBackend::new(NodeParts {
        fabric,
        codecs,
        keeper,
        logins: logins.clone(),
        driver: driver.clone(),
        asker,
        meta: meta.clone(),
        shards: shards.clone(),
        tier,
        protocols,
        data,
        http,
    });
    let admin = AdminSettings {
        body_limit_bytes: settings.http.body_bytes_max,
        session_idle: std::time::Duration::from_secs(settings.http.session_idle_s),
        check_host: http.ip().is_loopback(),
        allowed_hosts: settings.http.allowed_hosts.clone(),
    };
    let (stop_http, stopped) = oneshot::channel::<()>();
    let stopped = async move {
        // Told, or the node is gone: both end it.
        stopped.await.ok();
    };
    let http_task = tokio::spawn(anabranch_admin::serve(
        http_listener,
        Arc::new(backend),
        admin,
        stopped,
    ));
    Ok(Running {
        listening: driver.listening().to_vec(),
        http,
        password_file,
        first_password,
        logins,
        driver,
        shards,
        meta,
        stop_http,
        http_task,
        follow_task,
        certificates_task,
    })
}

impl Running {
    /// Where a gateway listens in plain TCP.
    pub(super) fn plain(&self, gateway: &str) -> Option<SocketAddr> {
        let mut listening = self.listening.iter();
        let found =
            listening.find(|one| one.gateway == gateway && one.transport == TransportKind::Tcp)?;
        Some(found.address)
    }

    /// Which gateways listen by another transport, and where; none is none.
    pub(super) fn others(&self, transport: TransportKind) -> Option<String> {
        let listening = self
            .listening
            .iter()
            .filter(|one| one.transport == transport);
        let named: Vec<_> = listening
            .map(|one| format!("{} {}", one.gateway, one.address))
            .collect();
        (!named.is_empty()).then(|| named.join(", "))
    }

    /// Drains: clients are told and leave, what is under way is stored, checkpoints are written.
    pub(super) async fn stop(self) {
        self.stop_http.send(()).ok();
        let driver = self.driver.clone();
        off_the_runtime(move || driver.shutdown()).await;
        self.follow_task.abort();
        if let Some(task) = &self.certificates_task {
            task.abort();
        }
        // Open requests of a browser do not keep the node from ending.
        self.http_task.abort();
        self.http_task.await.ok();
        for shard in self.shards {
            off_the_runtime(move || shard.shutdown()).await;
        }
        off_the_runtime(move || self.meta.shutdown()).await;
    }
}

/// Messages and password hashes are nobody's but the owner's. A folder that is there already stays as it is.
fn make_data_folder(data: &Path) -> io::Result<()> {
    if data.is_dir() {
        return Ok(());
    }
    if let Some(parent) = data.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::DirBuilder::new().mode(0o700).create(data)
}

/// Runs what blocks, beside the runtime.
async fn off_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// A number that no earlier life of the node had: milliseconds since 1970.
fn life() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn worker_count(settings: &Settings) -> usize {
    match settings.node.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        set => set,
    }
}

/// Numbers of the data shards' folders that are there.
fn shard_folders(data: &Path) -> Result<BTreeSet<u16>, StartError> {
    let entries = std::fs::read_dir(data).map_err(|source| StartError::Data {
        path: data.to_owned(),
        source,
    })?;
    let numbers = entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        name.to_str()?.strip_prefix("shard-")?.parse().ok()
    });
    Ok(numbers.collect())
}

/// The data shards: those that metadata place streams on, or as many as configured when the data folder
/// is new.
fn shard_ids(
    settings: &Settings,
    data: &Path,
    folders: &BTreeSet<u16>,
    fabric: &Fabric,
) -> Result<Vec<ShardId>, StartError> {
    let placed = fabric.meta().placed();
    let Some(last) = placed.last().map(|shard| shard.0) else {
        // Their folders are made before metadata name them: a start that is cut short starts again.
        for number in 1..=settings.store.data_shards {
            let path = data.join(format!("shard-{number}"));
            let made = RealDisk.create_dir(&path);
            made.map_err(|source| StartError::Data { path, source })?;
        }
        return Ok((1..=settings.store.data_shards).map(ShardId).collect());
    };
    if let Some(gone) = (1..=last).find(|number| !folders.contains(number)) {
        return Err(StartError::Incomplete(data.join(format!("shard-{gone}"))));
    }
    if last != settings.store.data_shards {
        tracing::info!(
            shards = last,
            "the data folder keeps the number of shards it was made with"
        );
    }
    Ok((1..=last).map(ShardId).collect())
}

fn options(settings: &Settings, packing: &Packing, name: &str) -> GroupOptions {
    GroupOptions {
        segment_bytes: settings.store.segment_bytes,
        seed: rand::random(),
        packing: packing.clone(),
        ..GroupOptions::new(name)
    }
}

async fn open_meta(
    settings: &Settings,
    packing: &Packing,
    data: &Path,
    fabric: &Arc<Fabric>,
) -> Result<MetaShard, StartError> {
    let usual = options(settings, packing, "meta");
    let usual = match limit(settings, data) {
        Some(limit) => limit.fit(usual),
        None => usual,
    };
    let setup = MetaShardSetup {
        dir: data.join("meta"),
        disk: Arc::new(RealDisk),
        clock: Arc::new(SystemClock),
        options: GroupOptions {
            // Metadata are small: a segment of a few MiB is plenty.
            segment_bytes: usual.segment_bytes.min(META_SEGMENT_BYTES),
            ..usual
        },
        fabric: fabric.clone(),
    };
    let opened = off_the_runtime(move || MetaShard::start(setup)).await;
    Ok(opened.unwrap_or(Err(ShardStartError::Ended))?)
}

/// What the files of the data folder may take.
fn limit(settings: &Settings, data: &Path) -> Option<JournalLimit> {
    let bytes_max = settings.store.journal_bytes_max;
    (bytes_max > 0).then(|| JournalLimit {
        root: data.to_owned(),
        bytes_max,
        shards: settings.store.data_shards,
    })
}

/// Largest segment of the metadata journal.
const META_SEGMENT_BYTES: u64 = 8 << 20;

async fn open_shard(
    settings: &Settings,
    packing: &Packing,
    data: &Path,
    shard: ShardSetup,
    workers: Vec<(WorkerId, Arc<dyn WorkerPort>)>,
    tier: Option<Tier>,
) -> Result<DataShard, StartError> {
    let name = format!("shard-{}", shard.id);
    let setup = DataShardSetup {
        dir: data.join(&name),
        disk: Arc::new(RealDisk),
        clock: Arc::new(SystemClock),
        options: GroupOptions {
            tier,
            ..options(settings, packing, &name)
        },
        shard,
        workers,
        low_water_bytes: settings.store.low_water_bytes,
        limit: limit(settings, data),
        checkpoint_bytes: settings.store.checkpoint_bytes,
    };
    let opened = off_the_runtime(move || DataShard::start(setup)).await;
    Ok(opened.unwrap_or(Err(ShardStartError::Ended))?)
}

async fn bind_http(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| StartError::Http { address, source })
}

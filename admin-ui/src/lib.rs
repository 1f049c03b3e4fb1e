//! HTTP API, metrics and the web console.
//!
//! [`serve`] answers on a listener with what a [`backend::Backend`] knows: the API that `API.md`
//! describes, OpenMetrics, health, and the console's files. Never reaches around the backend: who may
//! do what, and all data, come from there. Read next: `backend.rs`, `routes.rs`, `access.rs`.
#![forbid(unsafe_code)]

mod access;
mod assets;
pub mod backend;
mod delayed;
mod error;
mod extract;
mod history;
mod listener;
mod metrics;
pub mod model;
mod people;
mod policies;
mod retained;
mod routes;
mod seek;
mod session;

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;

use backend::Backend;
use history::History;
pub use listener::{CONNECTIONS_LIMIT, IDLE_LIMIT};
use session::{Attempts, Sessions};

/// Sessions and tokens that can be open at once.
pub const SESSIONS_LIMIT: usize = 1024;
/// Failed logins of one address within [`ATTEMPTS_WINDOW`].
pub const ATTEMPTS_LIMIT: u32 = 10;
/// How long failed logins are held against an address.
pub const ATTEMPTS_WINDOW: Duration = Duration::from_secs(60);
/// Addresses whose failed logins are remembered.
pub const ATTEMPTS_ADDRESSES_LIMIT: usize = 4096;

/// What can be set about the API.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Largest body of a request.
    pub body_limit_bytes: usize,
    /// How long a session lives without a request.
    pub session_idle: Duration,
    /// Whether the Host header must name an address, `localhost` or one of `allowed_hosts`. Set it
    /// when listening on loopback, where other sites' pages could otherwise reach the console under a
    /// name of their own.
    pub check_host: bool,
    /// Further host names to accept then.
    pub allowed_hosts: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            body_limit_bytes: 1024 * 1024,
            session_idle: Duration::from_secs(12 * 60 * 60),
            check_host: true,
            allowed_hosts: Vec::new(),
        }
    }
}

/// Answers on `listener` until `stop` is done, then lets running requests finish.
///
/// # Errors
/// Only when the listener's own address cannot be read; accept errors are retried.
pub async fn serve(
    listener: TcpListener,
    backend: Arc<dyn Backend>,
    settings: Settings,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let app = App::new(backend, settings);
    let sampler = tokio::spawn(sample(app.clone()));
    let service =
        routes::router(app).into_make_service_with_connect_info::<listener::PeerAddress>();
    let result = axum::serve(listener::BoundedListener::new(listener), service)
        .with_graceful_shutdown(stop)
        .await;
    sampler.abort();
    result
}

async fn sample(app: App) {
    let mut tick = tokio::time::interval(Duration::from_millis(history::STEP_MS));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if let Ok(overview) = app.backend.overview().await {
            let at_ms = app.wall_ms();
            app.history().sample(at_ms, overview);
        }
    }
}

/// What every request can reach.
#[derive(Clone)]
struct App {
    backend: Arc<dyn Backend>,
    settings: Arc<Settings>,
    shared: Arc<Shared>,
}

struct Shared {
    started: Instant,
    sessions: Mutex<Sessions>,
    attempts: Mutex<Attempts>,
    history: Mutex<History>,
}

impl App {
    fn new(backend: Arc<dyn Backend>, settings: Settings) -> Self {
        let idle_ms = whole_ms(settings.session_idle);
        App {
            backend,
            settings: Arc::new(settings),
            shared: Arc::new(Shared {
                started: Instant::now(),
                sessions: Mutex::new(Sessions::new(SESSIONS_LIMIT, idle_ms)),
                attempts: Mutex::new(Attempts::new(
                    ATTEMPTS_LIMIT,
                    whole_ms(ATTEMPTS_WINDOW),
                    ATTEMPTS_ADDRESSES_LIMIT,
                )),
                history: Mutex::new(History::default()),
            }),
        }
    }

    /// Milliseconds since the API started, for what must not jump.
    fn steady_ms(&self) -> u64 {
        whole_ms(self.shared.started.elapsed())
    }

    /// Milliseconds since 1970, for people.
    fn wall_ms(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, whole_ms)
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        lock(&self.shared.sessions)
    }

    fn attempts(&self) -> MutexGuard<'_, Attempts> {
        lock(&self.shared.attempts)
    }

    fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.shared.history)
    }

    /// Logs what somebody changed.
    fn note(&self, caller: &access::Caller, did: &str, what: &str) {
        tracing::info!(user = caller.identity.user, peer = %caller.peer, what, "console: {did}");
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// These maps stay whole when a holder panics: no update spans a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

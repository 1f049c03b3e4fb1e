//! Credentials to users: checked off the data path, bounded, remembered for minutes.
//!
//! An argon2 run costs tens of milliseconds and tens of MiB, so few run at once; the rest waits, up to a
//! limit. Who proved a password lately is let in at once. An unknown user costs as much time as a known
//! one.
//!
//! Owns: the queue of logins and their memory.
//! Never: what a user may do.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anabranch_auth::password::{self, Cost, LoginCache, PasswordError, SALT_BYTES};
use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::meta::User;
use anabranch_core::router::Fabric;
use anabranch_core::worker::{LoginRequest, Verified};
use anabranch_driver::{Host, LoginDone};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use crate::config::AuthSettings;

/// Checks logins.
pub struct Logins {
    fabric: Arc<Fabric>,
    cache: Mutex<LoginCache>,
    /// Verifications that may run at once.
    running: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
    remember: bool,
    /// What an unknown user's password is compared with; made when it is needed first.
    nobody: Arc<OnceLock<String>>,
    runtime: Handle,
    anonymous: bool,
    failed: AtomicU64,
    lost: Mutex<Option<String>>,
    lost_bell: Notify,
}

impl Logins {
    /// A service without any memory yet. `anonymous` lets in who brings no credentials.
    pub fn new(
        fabric: Arc<Fabric>,
        settings: &AuthSettings,
        anonymous: bool,
        runtime: Handle,
    ) -> Arc<Logins> {
        let keep_ms = settings.remember_s.saturating_mul(1000);
        let cache = LoginCache::new(rand::random(), settings.remember_users_max, keep_ms);
        Arc::new(Logins {
            fabric,
            cache: Mutex::new(cache),
            running: Arc::new(Semaphore::new(settings.verify_max)),
            waiting: AtomicUsize::new(0),
            waiting_max: settings.waiting_max,
            remember: settings.remember_s > 0,
            nobody: Arc::default(),
            runtime,
            anonymous,
            failed: AtomicU64::new(0),
            lost: Mutex::new(None),
            lost_bell: Notify::new(),
        })
    }

    /// Logins that failed since the start.
    pub fn failed_count(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// The user with this name, when the password is right.
    ///
    /// # Errors
    /// `BadCredentials`; `Busy` when too many wait.
    pub async fn check(&self, name: &str, secret: &[u8]) -> Result<User, Refusal> {
        if let Some(user) = self.remembered(name, secret) {
            return Ok(user);
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.waiting_max {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::new(
                ErrorKind::Busy,
                "too many logins wait to be checked",
            ));
        }
        let result = self.verify(name, secret).await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if result.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    async fn verify(&self, name: &str, secret: &[u8]) -> Result<User, Refusal> {
        // Closed only with the process.
        let permit = self.running.clone().acquire_owned().await;
        let user = self.user(name);
        let stored = user.as_ref().and_then(|user| user.password.clone());
        let known = stored.as_ref().map(|hash| hash.0.to_string());
        let nobody = self.nobody.clone();
        let secret_copy = secret.to_vec();
        let compared = self.runtime.spawn_blocking(move || {
            let _permit = permit;
            let phc = known.unwrap_or_else(|| nobody.get_or_init(nobodys_hash).clone());
            (password::verify(&secret_copy, &phc), phc)
        });
        let wrong = || Refusal::new(ErrorKind::BadCredentials, "unknown user or wrong password");
        let (verdict, phc) = compared.await.map_err(|_| wrong())?;
        match (verdict, user) {
            (Ok(true), Some(user)) if stored.is_some() => {
                if self.remember {
                    let key = cache_key(name, &phc);
                    self.cache().remember(&key, secret, now_ms());
                }
                Ok(user)
            }
            (Err(error), Some(user)) => {
                tracing::warn!(user = &*user.name, %error, "a stored password cannot be used");
                Err(wrong())
            }
            _ => Err(wrong()),
        }
    }

    /// The user, when this login was verified lately and the password has not changed since.
    fn remembered(&self, name: &str, secret: &[u8]) -> Option<User> {
        let user = self.user(name)?;
        let stored = user.password.as_ref()?;
        let known = self
            .cache()
            .knows(&cache_key(name, &stored.0), secret, now_ms());
        known.then_some(user)
    }

    fn user(&self, name: &str) -> Option<User> {
        self.fabric.meta().user(name).cloned()
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, LoginCache> {
        // A cache that a panic left half changed can only forget.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hashes a new password, in turn with the logins.
    ///
    /// # Errors
    /// One sentence: the password is too long, or the node stops.
    pub async fn hash(&self, secret: String) -> Result<String, String> {
        let permit = self.running.clone().acquire_owned().await;
        let hashed = self.runtime.spawn_blocking(move || {
            let _permit = permit;
            hash(secret.as_bytes())
        });
        match hashed.await {
            Ok(Ok(phc)) => Ok(phc),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the node is stopping".to_owned()),
        }
    }

    /// Waits until a thread of the driver is lost, and says which.
    pub async fn thread_lost(&self) -> String {
        loop {
            let bell = self.lost_bell.notified();
            if let Some(what) = self
                .lost
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take()
            {
                return what;
            }
            bell.await;
        }
    }
}

/// Name and hash together: a changed password is another entry.
fn cache_key(name: &str, phc: &str) -> String {
    format!("{name}\0{phc}")
}

/// A hash that costs as much as any, of a password that nobody knows.
fn nobodys_hash() -> String {
    hash(&rand::random::<[u8; 16]>()).unwrap_or_default()
}

/// Hashes a password with a fresh salt.
///
/// # Errors
/// When it is too long.
pub fn hash(secret: &[u8]) -> Result<String, PasswordError> {
    let salt: [u8; SALT_BYTES] = rand::random();
    password::hash(secret, &salt, Cost::default())
}

fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The service as the driver's workers ask it.
pub struct Doorman(pub Arc<Logins>);

impl Host for Doorman {
    fn verify(&self, login: LoginRequest, done: LoginDone) {
        let logins = self.0.clone();
        let Some(name) = login.user else {
            return done(if logins.anonymous && login.secret.is_none() {
                Ok(Verified {
                    user: Arc::from(""),
                    anonymous: true,
                    roles: Vec::new(),
                })
            } else {
                logins.failed.fetch_add(1, Ordering::Relaxed);
                Err(Refusal::new(
                    ErrorKind::AccessRefused,
                    "there is no anonymous access",
                ))
            });
        };
        let secret = login.secret.unwrap_or_default();
        if let Some(user) = logins.remembered(&name, &secret) {
            return done(Ok(verified(user)));
        }
        let runtime = logins.runtime.clone();
        runtime.spawn(async move {
            done(logins.check(&name, &secret).await.map(verified));
        });
    }

    fn failed(&self, what: String) {
        tracing::error!("{what}");
        *self.0.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
        self.0.lost_bell.notify_one();
    }
}

fn verified(user: User) -> Verified {
    Verified {
        user: user.name,
        anonymous: false,
        roles: user.roles,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_core::id::UnixMs;
    use anabranch_core::meta::{MetaCommand, PasswordHash};

    fn put(fabric: &Fabric, name: &str, phc: &str) {
        let user = User {
            name: name.into(),
            password: Some(PasswordHash(phc.into())),
            roles: vec!["sensor".into()],
            tags: Vec::new(),
        };
        fabric
            .apply(UnixMs(1), &MetaCommand::PutUser(user))
            .unwrap();
    }

    fn cheap(secret: &str) -> String {
        let cost = Cost {
            memory_kib: 8,
            passes: 1,
            lanes: 1,
        };
        password::hash(secret.as_bytes(), &[1; SALT_BYTES], cost).unwrap()
    }

    fn logins(fabric: &Arc<Fabric>, anonymous: bool) -> Arc<Logins> {
        let settings = AuthSettings::default();
        Logins::new(fabric.clone(), &settings, anonymous, Handle::current())
    }

    #[tokio::test]
    async fn a_login_is_remembered_until_the_password_changes() {
        let fabric = Arc::new(Fabric::default());
        put(&fabric, "anna", &cheap("old"));
        let logins = logins(&fabric, false);
        assert!(logins.remembered("anna", b"old").is_none());
        assert_eq!(&*logins.check("anna", b"old").await.unwrap().name, "anna");
        assert!(logins.remembered("anna", b"old").is_some());
        put(&fabric, "anna", &cheap("new"));
        assert!(logins.remembered("anna", b"old").is_none());
        assert!(logins.check("anna", b"old").await.is_err());
        assert!(logins.check("anna", b"new").await.is_ok());
        assert_eq!(logins.failed_count(), 1);
    }

    #[tokio::test]
    async fn unknown_users_and_wrong_passwords_are_told_alike() {
        let fabric = Arc::new(Fabric::default());
        put(&fabric, "anna", &cheap("right"));
        let logins = logins(&fabric, false);
        let wrong = logins.check("anna", b"wrong").await.unwrap_err();
        let unknown = logins.check("nobody", b"wrong").await.unwrap_err();
        assert_eq!(wrong, unknown);
        assert_eq!(wrong.kind, ErrorKind::BadCredentials);
    }

    #[tokio::test]
    async fn anonymous_clients_come_in_only_where_that_is_allowed() {
        let fabric = Arc::new(Fabric::default());
        for anonymous in [false, true] {
            let (tell, told) = std::sync::mpsc::channel();
            Doorman(logins(&fabric, anonymous)).verify(
                LoginRequest {
                    connection: anabranch_core::id::ConnectionId(1),
                    protocol: "words",
                    peer: ([127, 0, 0, 1], 1).into(),
                    user: None,
                    secret: None,
                    client_id: "".into(),
                },
                Box::new(move |result| tell.send(result).unwrap()),
            );
            assert_eq!(told.recv().unwrap().is_ok(), anonymous);
        }
    }
}

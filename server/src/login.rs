//! Credentials to users: checked off the data path, bounded, remembered for minutes.
//!
//! An argon2 run costs tens of milliseconds and tens of MiB, so few run at once; the rest waits, up to a
//! limit. Who proved a password lately is let in at once. An unknown user costs as much time as a known
//! one.
//!
//! Owns: the queue of logins and their memory.
//! Never: what a user may do.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anabranch_auth::password::{self, Cost, LoginCache, PasswordError, SALT_BYTES};
use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::meta::User;
use anabranch_core::router::Fabric;
use anabranch_core::worker::{LoginRequest, Verified};
use anabranch_driver::{Host, LoginDone};
use tokio::sync::{Notify, oneshot};

use crate::config::AuthSettings;

/// Work for a thread that hashes.
type Job = Box<dyn FnOnce(&Checker) + Send>;

/// Checks logins.
pub struct Logins {
    checker: Arc<Checker>,
    /// Closed with the service, which ends the threads.
    jobs: Sender<Job>,
    waiting: Arc<AtomicUsize>,
    waiting_max: usize,
    anonymous: bool,
    lost: Mutex<Option<String>>,
    lost_bell: Notify,
}

/// What the hashing threads share with the service.
struct Checker {
    fabric: Arc<Fabric>,
    cache: Mutex<LoginCache>,
    remember: bool,
    /// What an unknown user's password is compared with; made when it is needed first.
    nobody: OnceLock<String>,
    failed: AtomicU64,
}

impl Logins {
    /// A service without any memory yet. `anonymous` lets in who brings no credentials.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new(
        fabric: Arc<Fabric>,
        settings: &AuthSettings,
        anonymous: bool,
    ) -> std::io::Result<Arc<Logins>> {
        let keep_ms = settings.remember_s.saturating_mul(1000);
        let cache = LoginCache::new(rand::random(), settings.remember_users_max, keep_ms);
        let checker = Arc::new(Checker {
            fabric,
            cache: Mutex::new(cache),
            remember: settings.remember_s > 0,
            nobody: OnceLock::new(),
            failed: AtomicU64::new(0),
        });
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        // Threads of its own, not a pool that grows: each keeps the memory of its last hash.
        for number in 0..settings.verify_max {
            let (checker, queue) = (checker.clone(), queue.clone());
            let thread = std::thread::Builder::new().name(format!("login-{number}"));
            thread.spawn(move || work(&checker, &queue))?;
        }
        Ok(Arc::new(Logins {
            checker,
            jobs,
            waiting: Arc::default(),
            waiting_max: settings.waiting_max,
            anonymous,
            lost: Mutex::new(None),
            lost_bell: Notify::new(),
        }))
    }

    /// Logins that failed since the start.
    pub fn failed_count(&self) -> u64 {
        self.checker.failed.load(Ordering::Relaxed)
    }

    /// Finds out whether this is the user's password and calls `done` with the user, here when it was
    /// proved lately, else on a hashing thread.
    fn check_then(
        &self,
        name: Arc<str>,
        secret: Vec<u8>,
        done: impl FnOnce(Result<User, Refusal>) + Send + 'static,
    ) {
        if let Some(user) = self.checker.remembered(&name, &secret) {
            return done(Ok(user));
        }
        let waiting = self.waiting.clone();
        if waiting.fetch_add(1, Ordering::Relaxed) >= self.waiting_max {
            waiting.fetch_sub(1, Ordering::Relaxed);
            let why = "too many logins wait to be checked";
            return done(Err(Refusal::new(ErrorKind::Busy, why)));
        }
        let job: Job = Box::new(move |checker| {
            let result = checker.check(&name, &secret);
            waiting.fetch_sub(1, Ordering::Relaxed);
            done(result);
        });
        // The threads live as long as the service.
        self.jobs.send(job).ok();
    }

    /// The user with this name, when the password is right.
    ///
    /// # Errors
    /// `BadCredentials`; `Busy` when too many wait.
    pub async fn check(&self, name: &str, secret: &[u8]) -> Result<User, Refusal> {
        let (tell, told) = oneshot::channel();
        let done = move |result| drop(tell.send(result));
        self.check_then(Arc::from(name), secret.to_vec(), done);
        let ended = |_| Refusal::new(ErrorKind::ShuttingDown, "the node is stopping");
        told.await.map_err(ended)?
    }

    /// Hashes a new password, in turn with the logins.
    ///
    /// # Errors
    /// One sentence: the password is too long, or the node stops.
    pub async fn hash(&self, secret: String) -> Result<String, String> {
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move |_| drop(tell.send(hash(secret.as_bytes()))));
        self.jobs.send(job).ok();
        match told.await {
            Ok(hashed) => hashed.map_err(|error| error.to_string()),
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

/// A hashing thread: until the service is gone.
fn work(checker: &Checker, queue: &Mutex<Receiver<Job>>) {
    loop {
        // Held while it waits: the others wait for the lock instead, which is all the same.
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(job) => job(checker),
            Err(_) => return,
        }
    }
}

impl Checker {
    fn check(&self, name: &str, secret: &[u8]) -> Result<User, Refusal> {
        // Thousands of clients that come back as one user wait together: the first one's proof is
        // everyone's.
        if let Some(user) = self.remembered(name, secret) {
            return Ok(user);
        }
        let user = self.user(name);
        let stored = user.as_ref().and_then(|user| user.password.clone());
        let phc = match &stored {
            Some(hash) => &*hash.0,
            None => self.nobody.get_or_init(nobodys_hash).as_str(),
        };
        let right = match password::verify(secret, phc) {
            Ok(right) => right && stored.is_some(),
            Err(error) => {
                tracing::warn!(user = name, %error, "a stored password cannot be used");
                false
            }
        };
        match user {
            Some(user) if right => {
                if self.remember {
                    self.cache()
                        .remember(&cache_key(name, phc), secret, now_ms());
                }
                Ok(user)
            }
            _ => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                let why = "unknown user or wrong password";
                Err(Refusal::new(ErrorKind::BadCredentials, why))
            }
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

    fn cache(&self) -> MutexGuard<'_, LoginCache> {
        // A cache that a panic left half changed can only forget.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
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
        let logins = &self.0;
        let Some(name) = login.user else {
            return done(if logins.anonymous && login.secret.is_none() {
                Ok(Verified {
                    user: Arc::from(""),
                    anonymous: true,
                    roles: Vec::new(),
                })
            } else {
                logins.checker.failed.fetch_add(1, Ordering::Relaxed);
                Err(Refusal::new(
                    ErrorKind::AccessRefused,
                    "there is no anonymous access",
                ))
            });
        };
        let secret = login.secret.unwrap_or_default().to_vec();
        logins.check_then(name, secret, move |result| done(result.map(verified)));
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
        Logins::new(fabric.clone(), &settings, anonymous).unwrap()
    }

    #[tokio::test]
    async fn a_login_is_remembered_until_the_password_changes() {
        let fabric = Arc::new(Fabric::default());
        put(&fabric, "anna", &cheap("old"));
        let logins = logins(&fabric, false);
        assert!(logins.checker.remembered("anna", b"old").is_none());
        assert_eq!(&*logins.check("anna", b"old").await.unwrap().name, "anna");
        assert!(logins.checker.remembered("anna", b"old").is_some());
        put(&fabric, "anna", &cheap("new"));
        assert!(logins.checker.remembered("anna", b"old").is_none());
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

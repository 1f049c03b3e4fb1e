//! Sessions of the console and the limit on failed logins, both in memory and bounded.
//!
//! Owns who is signed in under which secret. Never checks a password and never reads a clock: times
//! come in as milliseconds of any steady clock. Read next: `access.rs`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// Characters of a session's secret: 32 random bytes in hexadecimal.
pub(crate) const SECRET_CHARS: usize = 64;

/// Sessions and tokens that are open.
#[derive(Debug)]
pub(crate) struct Sessions {
    open: HashMap<String, Session>,
    limit: usize,
    idle_ms: u64,
}

#[derive(Debug)]
struct Session {
    user: String,
    credential_version: u64,
    used_at_ms: u64,
}

impl Sessions {
    /// At most `limit` at once, each ending after `idle_ms` without a request.
    pub(crate) fn new(limit: usize, idle_ms: u64) -> Self {
        Sessions {
            open: HashMap::new(),
            limit: limit.max(1),
            idle_ms,
        }
    }

    /// Opens one under `secret`; when there are too many, the one unused longest ends.
    pub(crate) fn open(
        &mut self,
        secret: String,
        user: String,
        credential_version: u64,
        now_ms: u64,
    ) {
        if self.open.len() >= self.limit {
            let idle_ms = self.idle_ms;
            self.open
                .retain(|_, session| now_ms < session.used_at_ms.saturating_add(idle_ms));
        }
        while self.open.len() >= self.limit {
            let oldest = self
                .open
                .iter()
                .min_by_key(|(_, session)| session.used_at_ms)
                .map(|(secret, _)| secret.clone());
            match oldest {
                Some(secret) => self.open.remove(&secret),
                None => break,
            };
        }
        self.open.insert(
            secret,
            Session {
                user,
                credential_version,
                used_at_ms: now_ms,
            },
        );
    }

    /// User and credential version of an open session, which counts as used now.
    pub(crate) fn user(&mut self, secret: &str, now_ms: u64) -> Option<(String, u64)> {
        let session = self.open.get_mut(secret)?;
        if now_ms >= session.used_at_ms.saturating_add(self.idle_ms) {
            self.open.remove(secret);
            return None;
        }
        session.used_at_ms = now_ms;
        Some((session.user.clone(), session.credential_version))
    }

    /// Ends one.
    pub(crate) fn close(&mut self, secret: &str) {
        self.open.remove(secret);
    }
}

/// Logins of one address whose password is being checked at the same time.
pub(crate) const CHECKS_AT_ONCE_LIMIT: u32 = 32;

/// Counts failed logins by address, so that passwords cannot be tried at speed.
#[derive(Debug)]
pub(crate) struct Attempts {
    by_address: HashMap<IpAddr, Window>,
    limit: u32,
    window_ms: u64,
    addresses_limit: usize,
}

#[derive(Debug)]
struct Window {
    started_at_ms: u64,
    failed: u32,
    /// Begun and not ended yet.
    open: u32,
}

impl Attempts {
    /// `limit` failed attempts within `window_ms`; at most `addresses_limit` addresses are remembered.
    pub(crate) fn new(limit: u32, window_ms: u64, addresses_limit: usize) -> Self {
        Attempts {
            by_address: HashMap::new(),
            limit,
            window_ms,
            addresses_limit: addresses_limit.max(1),
        }
    }

    /// Begins an attempt, to be ended by [`Attempts::end`]. Err is the milliseconds to wait.
    pub(crate) fn begin(&mut self, address: IpAddr, now_ms: u64) -> Result<(), u64> {
        let address = network_of(address);
        let window_ms = self.window_ms;
        if !self.by_address.contains_key(&address) {
            self.make_room(now_ms);
        }
        let window = self.by_address.entry(address).or_insert(Window {
            started_at_ms: now_ms,
            failed: 0,
            open: 0,
        });
        let ends_ms = window.started_at_ms.saturating_add(window_ms);
        if now_ms >= ends_ms {
            window.started_at_ms = now_ms;
            window.failed = 0;
        } else if window.failed >= self.limit {
            return Err(ends_ms - now_ms);
        }
        if window.open >= CHECKS_AT_ONCE_LIMIT {
            return Err(1);
        }
        window.open += 1;
        Ok(())
    }

    /// Ends an attempt that was begun. One given up counts as failed.
    pub(crate) fn end(&mut self, address: IpAddr, failed: bool) {
        if let Some(window) = self.by_address.get_mut(&network_of(address)) {
            window.open = window.open.saturating_sub(1);
            window.failed = window.failed.saturating_add(u32::from(failed));
        }
    }

    /// Forgets addresses whose window is over, or else the one whose window is oldest.
    fn make_room(&mut self, now_ms: u64) {
        if self.by_address.len() < self.addresses_limit {
            return;
        }
        let window_ms = self.window_ms;
        self.by_address
            .retain(|_, window| now_ms < window.started_at_ms.saturating_add(window_ms));
        if self.by_address.len() < self.addresses_limit {
            return;
        }
        let oldest = self
            .by_address
            .iter()
            .min_by_key(|(_, window)| window.started_at_ms)
            .map(|(address, _)| *address);
        if let Some(oldest) = oldest {
            self.by_address.remove(&oldest);
        }
    }
}

/// One customer usually has a whole /64 of IPv6, so that is what is counted.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lives_while_it_is_used_and_ends_when_idle_or_closed() {
        let mut sessions = Sessions::new(10, 100);
        sessions.open("s".into(), "anna".into(), 3, 0);
        assert_eq!(sessions.user("s", 99), Some(("anna".into(), 3)));
        assert_eq!(sessions.user("s", 198), Some(("anna".into(), 3)));
        assert_eq!(sessions.user("s", 298), None);
        sessions.open("t".into(), "anna".into(), 3, 300);
        sessions.close("t");
        assert_eq!(sessions.user("t", 301), None);
    }

    #[test]
    fn sessions_are_bounded_and_the_one_unused_longest_ends() {
        let mut sessions = Sessions::new(2, 1000);
        sessions.open("a".into(), "u".into(), 0, 0);
        sessions.open("b".into(), "u".into(), 0, 1);
        assert!(sessions.user("a", 2).is_some());
        sessions.open("c".into(), "u".into(), 0, 3);
        assert!(sessions.user("b", 4).is_none());
        assert!(sessions.user("a", 4).is_some() && sessions.user("c", 4).is_some());
    }

    fn fail(attempts: &mut Attempts, address: IpAddr, now_ms: u64) -> Result<(), u64> {
        attempts.begin(address, now_ms)?;
        attempts.end(address, true);
        Ok(())
    }

    #[test]
    fn failed_logins_are_counted_by_address_and_a_good_one_is_not() {
        let mut attempts = Attempts::new(2, 100, 10);
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        let other: IpAddr = "192.0.2.2".parse().unwrap();
        assert_eq!(attempts.begin(one, 0), Ok(()));
        attempts.end(one, false);
        assert_eq!(fail(&mut attempts, one, 1), Ok(()));
        assert_eq!(fail(&mut attempts, mapped, 2), Ok(()));
        assert_eq!(attempts.begin(one, 10), Err(90));
        assert_eq!(attempts.begin(other, 10), Ok(()));
        assert_eq!(attempts.begin(one, 100), Ok(()));
    }

    #[test]
    fn only_so_many_passwords_of_an_address_are_checked_at_once() {
        let mut attempts = Attempts::new(2, 100, 10);
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        for _ in 0..CHECKS_AT_ONCE_LIMIT {
            assert_eq!(attempts.begin(one, 0), Ok(()));
        }
        assert_eq!(attempts.begin(one, 0), Err(1));
        attempts.end(one, false);
        assert_eq!(attempts.begin(one, 0), Ok(()));
    }

    #[test]
    fn addresses_are_bounded_and_a_whole_ipv6_network_counts_as_one() {
        let mut attempts = Attempts::new(1, 100, 2);
        let a: IpAddr = "2001:db8::1".parse().unwrap();
        let b: IpAddr = "2001:db8::2".parse().unwrap();
        assert_eq!(fail(&mut attempts, a, 0), Ok(()));
        assert_eq!(attempts.begin(b, 0), Err(100));
        for last in 0..100u8 {
            assert!(fail(&mut attempts, IpAddr::from([10, 0, 0, last]), 1).is_ok());
        }
        assert!(attempts.by_address.len() <= 2);
    }
}

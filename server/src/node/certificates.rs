//! Certificates while the node runs: looked at again every few seconds, and when told to (SIGHUP).
//!
//! Owns: when, and what is said about it.
//! Never: what a file must hold.

use std::sync::Arc;
use std::time::Duration;

use anabranch_driver::{Reloaded, Tls, TlsError};
use tokio::signal::unix::Signal;
use tokio::time::MissedTickBehavior;

/// How often the files are looked at.
const EVERY: Duration = Duration::from_secs(5);

/// Keeps the certificates as their files are, until aborted.
pub(super) async fn keep(tls: Arc<Tls>, mut hangup: Signal) {
    let mut clock = tokio::time::interval(EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut trouble = String::new();
    loop {
        let asked = tokio::select! {
            _ = clock.tick() => false,
            told = hangup.recv() => match told {
                Some(()) => true,
                // No signal will come any more; the clock goes on.
                None => std::future::pending().await,
            },
        };
        let looking = tls.clone();
        let looked = tokio::task::spawn_blocking(move || looking.reload()).await;
        // Who looks panics never; at the node's end it may not come to it.
        let Ok(result) = looked else { return };
        tell(&tls, result, asked, &mut trouble);
    }
}

fn tell(tls: &Tls, result: Result<Reloaded, TlsError>, asked: bool, trouble: &mut String) {
    let file = tls.files().certificate.display();
    match result {
        Ok(Reloaded::Renewed) => {
            trouble.clear();
            tracing::info!(%file, "new connections see the new certificate");
        }
        Ok(Reloaded::Unchanged) => {
            if asked {
                tracing::info!(%file, "the certificate's files hold nothing new");
            }
        }
        Err(error) => {
            let error = error.to_string();
            if asked || *trouble != error {
                tracing::error!(
                    error,
                    "the new certificate cannot be used; the old one stays"
                );
            }
            *trouble = error;
        }
    }
}

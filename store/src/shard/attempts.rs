//! What is said of checkpoints that cannot be written: once for each reason, however often they are tried.
//!
//! Owns: which reason was said last. Never: tries. Read next: [`super::data`].

use crate::group::CheckpointError;
use anabranch_core::id::LogIndex;
use std::io;

/// Why there is no checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Stopped,
    Io(io::ErrorKind),
}

/// What there is to say.
#[derive(Debug, PartialEq, Eq)]
enum News {
    /// None is written, for another reason than before.
    Failed,
    /// They are written again.
    Recovered,
}

/// Attempts to write a checkpoint.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    failed: Option<Reason>,
}

impl Attempts {
    /// Takes note of an attempt, and says so if it is news.
    pub(super) fn tell(&mut self, attempt: &Result<Option<LogIndex>, CheckpointError>) {
        match (self.note(attempt), attempt) {
            (Some(News::Failed), Err(error)) => {
                tracing::warn!(%error, "no checkpoint was written; it is tried again, and said again when there is one");
            }
            (Some(News::Recovered), _) => tracing::info!("checkpoints are written again"),
            _ => {}
        }
    }

    fn note(&mut self, attempt: &Result<Option<LogIndex>, CheckpointError>) -> Option<News> {
        let reason = match attempt {
            // There was nothing to write.
            Ok(None) => return None,
            Ok(Some(_)) => return self.failed.take().map(|_| News::Recovered),
            Err(CheckpointError::Stopped) => Reason::Stopped,
            Err(CheckpointError::Io(error)) => Reason::Io(error.kind()),
        };
        let before = self.failed.replace(reason);
        (before != Some(reason)).then_some(News::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a full disk each attempt was a line of the log, several a second.
    #[test]
    fn each_reason_is_said_once_and_the_end_of_it_once() {
        let mut attempts = Attempts::default();
        let failed = |kind: io::ErrorKind| Err(CheckpointError::Io(kind.into()));
        let full = failed(io::ErrorKind::StorageFull);
        let written = Ok(Some(LogIndex(7)));
        assert_eq!(attempts.note(&written), None);
        assert_eq!(attempts.note(&full), Some(News::Failed));
        assert_eq!(attempts.note(&full), None);
        assert_eq!(attempts.note(&Ok(None)), None, "nothing to write");
        assert_eq!(attempts.note(&full), None);
        let other = failed(io::ErrorKind::PermissionDenied);
        assert_eq!(attempts.note(&other), Some(News::Failed));
        assert_eq!(attempts.note(&written), Some(News::Recovered));
        assert_eq!(attempts.note(&written), None);
        assert_eq!(attempts.note(&full), Some(News::Failed));
    }
}

//! Publishes that are to wait: they go to the shard that keeps them until they are due, and nowhere else yet.
//!
//! Which shard that is follows from the address, so that the order of one address is kept. Exchange, rights and the
//! right to keep a last value were asked as for any publish; the bindings are those of the day it is due.
//!
//! Owns: whether a publish waits, and its way to that shard.
//! Never: when it is due (`shard/delay.rs`), its routing then (`worker/forward.rs`).

use super::Worker;
use crate::error::ErrorKind;
use crate::id::{ShardId, UnixMs, VhostId};
use crate::message::Message;
use crate::port::Later;
use crate::router::Route;
use smallvec::smallvec;
use std::rc::Rc;

impl Worker {
    /// The route of a message that is to wait, from `since` on where it says how long; `None` when it is to go now.
    ///
    /// # Errors
    /// `Unavailable` when there is no shard to keep it.
    #[cold]
    pub(super) fn delaying(
        &self,
        vhost: VhostId,
        route: &Rc<Route>,
        (later, since): (Option<UnixMs>, UnixMs),
        message: &Message,
    ) -> Result<Option<Rc<Route>>, ErrorKind> {
        let due = later.or_else(|| Some(self.codecs.later(message)?.end(since)));
        let Some(due) = due.filter(|due| *due > since && !route.exchange_missing) else {
            return Ok(None);
        };
        let (shard, later) = self
            .keeper(vhost, due, message)
            .ok_or(ErrorKind::Unavailable)?;
        Ok(Some(Rc::new(Route {
            later: Some(later),
            targets: smallvec![(shard, Default::default())],
            ..Route::default()
        })))
    }

    fn keeper(&self, vhost: VhostId, due: UnixMs, message: &Message) -> Option<(ShardId, Later)> {
        let meta = self.fabric.meta();
        let exchange = std::str::from_utf8(&message.exchange).ok()?;
        let exchange = meta.exchange(vhost, exchange)?.id;
        let name = &meta.vhost_by_id(vhost)?.name;
        let shard = meta.place(name, message.address.as_str())?;
        let later = Later {
            due,
            vhost,
            exchange,
        };
        Some((shard, later))
    }
}

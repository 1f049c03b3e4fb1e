//! Accepts the console's connections: a bounded number of them, each ended when it stays silent.
//!
//! Owns [`CONNECTIONS_LIMIT`] and [`IDLE_LIMIT`]. Never looks at what is sent.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, Sleep};

/// Connections at once; for one more, the one that was silent longest is closed.
pub const CONNECTIONS_LIMIT: usize = 256;
/// How long a connection may send nothing, be it between requests or within one.
pub const IDLE_LIMIT: Duration = Duration::from_secs(75);

/// How long one that was told to leave may take before the next is told as well.
const LEAVE_LIMIT: Duration = Duration::from_millis(100);

/// A listener with a limit. When it is reached, who was silent longest makes room: so those who send
/// nothing, or half a request, keep nobody out.
pub(crate) struct BoundedListener {
    inner: TcpListener,
    permits: Arc<Semaphore>,
    guests: Arc<Guests>,
}

impl BoundedListener {
    pub(crate) fn new(inner: TcpListener) -> Self {
        BoundedListener {
            inner,
            permits: Arc::new(Semaphore::new(CONNECTIONS_LIMIT)),
            guests: Arc::default(),
        }
    }

    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = self.permits.clone().try_acquire_owned() {
                return Some(permit);
            }
            self.guests.ask_one_to_leave();
            let freed = self.permits.clone().acquire_owned();
            if let Ok(permit) = tokio::time::timeout(LEAVE_LIMIT, freed).await {
                return permit.ok();
            }
        }
    }
}

impl Listener for BoundedListener {
    type Io = BoundedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, peer) = Listener::accept(&mut self.inner).await;
        let permit = self.permit().await;
        let (number, leave) = self.guests.enter();
        let stream = BoundedStream {
            inner: stream,
            silent: Box::pin(tokio::time::sleep(IDLE_LIMIT)),
            leave: Some(leave),
            number,
            guests: self.guests.clone(),
            _permit: permit,
        };
        (stream, peer)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.inner.local_addr()
    }
}

/// Who is here, and since when silent.
#[derive(Default)]
struct Guests(Mutex<Book>);

#[derive(Default)]
struct Book {
    next: u64,
    rows: HashMap<u64, Guest>,
}

struct Guest {
    active: Instant,
    leave: oneshot::Sender<()>,
}

impl Guests {
    fn enter(&self) -> (u64, oneshot::Receiver<()>) {
        let (leave, told) = oneshot::channel();
        let mut book = crate::lock(&self.0);
        book.next += 1;
        let number = book.next;
        let active = Instant::now();
        book.rows.insert(number, Guest { active, leave });
        (number, told)
    }

    fn is_active(&self, number: u64) {
        if let Some(guest) = crate::lock(&self.0).rows.get_mut(&number) {
            guest.active = Instant::now();
        }
    }

    /// Each is asked once: who was asked is no longer in the book.
    fn ask_one_to_leave(&self) {
        let mut book = crate::lock(&self.0);
        let longest = book.rows.iter().min_by_key(|(_, guest)| guest.active);
        let number = longest.map(|(number, _)| *number);
        if let Some(guest) = number.and_then(|number| book.rows.remove(&number)) {
            // It may have gone by itself.
            guest.leave.send(()).ok();
        }
    }

    fn gone(&self, number: u64) {
        crate::lock(&self.0).rows.remove(&number);
    }
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAddress(pub(crate) SocketAddr);

impl Connected<IncomingStream<'_, BoundedListener>> for PeerAddress {
    fn connect_info(stream: IncomingStream<'_, BoundedListener>) -> Self {
        PeerAddress(*stream.remote_addr())
    }
}

/// A connection that holds its place in the limit.
pub(crate) struct BoundedStream {
    inner: TcpStream,
    silent: Pin<Box<Sleep>>,
    /// None once it was told.
    leave: Option<oneshot::Receiver<()>>,
    number: u64,
    guests: Arc<Guests>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl BoundedStream {
    /// Ready when it has to go.
    fn poll_told(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if let Some(leave) = &mut self.leave {
            // An error would mean that nobody can tell it any more: it goes as well.
            ready!(Pin::new(leave).poll(context)).ok();
            self.leave = None;
        }
        Poll::Ready(io::ErrorKind::ConnectionAborted.into())
    }
}

impl Drop for BoundedStream {
    fn drop(&mut self) {
        self.guests.gone(self.number);
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(error) = self.poll_told(context) {
            return Poll::Ready(Err(error));
        }
        match Pin::new(&mut self.inner).poll_read(context, buffer) {
            Poll::Ready(result) => {
                let until = Instant::now() + IDLE_LIMIT;
                self.silent.as_mut().reset(until);
                self.guests.is_active(self.number);
                Poll::Ready(result)
            }
            Poll::Pending => {
                ready!(self.silent.as_mut().poll(context));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        if written.is_pending() {
            return self.poll_told(context).map(Err);
        }
        self.guests.is_active(self.number);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_silent_longest_is_asked_to_leave_once() {
        let guests = Guests::default();
        let (first, mut first_told) = guests.enter();
        let (_, mut second_told) = guests.enter();
        guests.is_active(first);
        guests.ask_one_to_leave();
        assert!(second_told.try_recv().is_ok());
        assert!(first_told.try_recv().is_err());
        guests.ask_one_to_leave();
        assert!(first_told.try_recv().is_ok());
        guests.ask_one_to_leave();
    }
}

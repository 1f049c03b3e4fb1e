//! Calls: one command of somebody without a socket, such as the HTTP API.
//!
//! A call is a connection that lives for one command on a worker: it logs in as who the caller says it
//! is, enters a vhost, asks, and ends with the answer. So the API obeys the same rules, in the same code,
//! as any protocol.
//!
//! Owns: the steps of a call.
//! Never: checks credentials (whoever calls has done that).

use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::{Answer, Command};
use anabranch_core::id::{ConnectionId, Token};
use anabranch_core::worker::{HostAnswer, Verified};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::desk::Desk;

const LOGIN: Token = Token(1);
const ENTER: Token = Token(2);

/// What happens with the answers to a call: `Returned` before `Published`, else one. Called on a worker's
/// thread; dropped uncalled when the driver ends before.
pub type CallDone = Box<dyn FnOnce(Result<Vec<Answer>, Refusal>) + Send>;

/// One command of somebody without a socket.
pub struct Call {
    /// As whom.
    pub who: Verified,
    /// By which way, as rules may name it.
    pub protocol: &'static str,
    /// From where.
    pub peer: SocketAddr,
    /// In which vhost.
    pub vhost: Arc<str>,
    /// What; its token is [`Call::TOKEN`].
    pub command: Command,
    /// What happens with the answers.
    pub done: CallDone,
}

impl Call {
    /// The token of a call's command.
    pub const TOKEN: Token = Token(3);
}

/// A call under way.
pub(crate) struct Calling {
    who: Verified,
    vhost: Arc<str>,
    command: Option<Command>,
    answers: Vec<Answer>,
    done: CallDone,
}

impl Calling {
    /// The answer to its login.
    pub(crate) fn logged_in(&self, ask: u64) -> HostAnswer {
        let result = Ok(self.who.clone());
        HostAnswer::Verified { ask, result }
    }
}

impl Desk {
    /// Begins a call.
    pub(crate) fn call(&mut self, call: Call) {
        let id = ConnectionId::new(self.id, self.slots.seatless());
        self.worker.connected(id, call.protocol, call.peer);
        let login = Command::Login {
            token: LOGIN,
            user: Some(call.who.user.clone()),
            secret: None,
            client_id: Arc::from(""),
        };
        self.calls.insert(
            id,
            Calling {
                who: call.who,
                vhost: call.vhost,
                command: Some(call.command),
                answers: Vec::new(),
                done: call.done,
            },
        );
        self.worker.submit(self.now, id, &mut vec![login]);
    }

    /// Takes a call's mail and goes on to its next step.
    pub(crate) fn serve_call(&mut self, id: ConnectionId) {
        if !self.calls.contains_key(&id) {
            return;
        }
        let mut mail = std::mem::take(&mut self.mail);
        self.worker.take_mail(self.now, id, &mut mail);
        let mut end = mail.stop.take().map(|_| {
            let why = "the call was ended by the broker";
            Err(Refusal::new(ErrorKind::Unavailable, why))
        });
        mail.deliveries.clear();
        for answer in mail.answers.drain(..) {
            let Some(calling) = self.calls.get_mut(&id) else {
                break;
            };
            let next = match answer {
                Answer::Done {
                    token: LOGIN | ENTER,
                    result: Err(why),
                } => {
                    end = Some(Err(why));
                    continue;
                }
                Answer::Done { token: LOGIN, .. } => Some(Command::Enter {
                    token: ENTER,
                    vhost: calling.vhost.clone(),
                }),
                Answer::Done { token: ENTER, .. } => calling.command.take(),
                Answer::Done { .. } | Answer::Published { .. } => {
                    calling.answers.push(answer);
                    end = Some(Ok(()));
                    None
                }
                Answer::Returned { .. } => {
                    calling.answers.push(answer);
                    None
                }
                Answer::Ended { .. } | Answer::Overdue { .. } | Answer::Blocked(_) => None,
            };
            if let Some(command) = next {
                self.worker.submit(self.now, id, &mut vec![command]);
            }
        }
        self.mail = mail;
        if let Some(end) = end
            && let Some(calling) = self.calls.remove(&id)
        {
            self.worker.disconnected(self.now, id);
            (calling.done)(end.map(|()| calling.answers));
        }
    }
}

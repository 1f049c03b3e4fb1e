//! Questions of the API to shards, beside what connections ask.
//!
//! Owns: the asker's number among the workers, its tickets, its waiting answers.
//! Never: asks on a connection's behalf (see `anabranch_driver::Call`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::id::{ShardId, WorkerId};
use anabranch_core::port::{
    Question, ShardEvent, ShardPort, ShardReply, ShardRequest, Ticket, WorkerPort,
};
use std::sync::Arc;
use tokio::sync::oneshot;

/// How long a shard may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

type Waiting = oneshot::Sender<Result<ShardReply, Refusal>>;

/// Asks shards and waits for their answers.
pub struct Asker {
    id: WorkerId,
    ports: OnceLock<HashMap<ShardId, Arc<dyn ShardPort>>>,
    lanes: Mutex<HashMap<ShardId, Lane>>,
}

#[derive(Default)]
struct Lane {
    last: Ticket,
    waiting: HashMap<Ticket, Waiting>,
}

impl Asker {
    /// An asker that shards know as worker `id`; it reaches none of them yet.
    pub fn new(id: WorkerId) -> Asker {
        Asker {
            id,
            ports: OnceLock::new(),
            lanes: Mutex::new(HashMap::new()),
        }
    }

    /// Its number among the workers.
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// Tells it the way to all shards; once.
    pub fn reach(&self, ports: impl Iterator<Item = (ShardId, Arc<dyn ShardPort>)>) {
        self.ports.set(ports.collect()).ok();
    }

    /// All shards, in order.
    pub fn shards(&self) -> Vec<ShardId> {
        let known = self.ports.get().map(|ports| ports.keys().copied());
        let mut shards: Vec<ShardId> = known.into_iter().flatten().collect();
        shards.sort_unstable();
        shards
    }

    /// Asks one shard.
    ///
    /// # Errors
    /// What the shard refuses; `Unavailable` when it does not answer in time.
    pub async fn ask(&self, shard: ShardId, question: Question) -> Result<ShardReply, Refusal> {
        let silent = || {
            Refusal::new(
                ErrorKind::Unavailable,
                format!("shard {shard} does not answer"),
            )
        };
        let port = self
            .ports
            .get()
            .and_then(|ports| ports.get(&shard))
            .ok_or_else(silent)?;
        let (tell, told) = oneshot::channel();
        let ticket = {
            let mut lanes = self.lanes();
            let lane = lanes.entry(shard).or_default();
            lane.last += 1;
            let ticket = lane.last;
            lane.waiting.insert(ticket, tell);
            // Under the lock, so that tickets reach the shard in their order.
            port.send(
                self.id,
                vec![ShardRequest::Ask {
                    ticket,
                    question: Box::new(question),
                }],
            );
            ticket
        };
        match tokio::time::timeout(PATIENCE, told).await {
            Ok(Ok(result)) => result,
            _ => {
                if let Some(lane) = self.lanes().get_mut(&shard) {
                    lane.waiting.remove(&ticket);
                }
                Err(silent())
            }
        }
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<ShardId, Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerPort for Asker {
    fn send(&self, from: ShardId, events: Vec<ShardEvent>) {
        let mut lanes = self.lanes();
        let Some(lane) = lanes.get_mut(&from) else {
            return;
        };
        for event in events {
            if let ShardEvent::Reply { ticket, result } = event
                && let Some(waiting) = lane.waiting.remove(&ticket)
            {
                // Whoever asked may have given up.
                waiting.send(result).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers every question with its ticket.
    struct Echo(Arc<Asker>);

    impl ShardPort for Echo {
        fn send(&self, _: WorkerId, requests: Vec<ShardRequest>) {
            let asker = self.0.clone();
            std::thread::spawn(move || {
                let events = requests.into_iter().filter_map(|request| match request {
                    ShardRequest::Ask { ticket, .. } => Some(ShardEvent::Reply {
                        ticket,
                        result: Ok(ShardReply::Count(ticket)),
                    }),
                    _ => None,
                });
                WorkerPort::send(&*asker, ShardId(3), events.collect());
            });
        }
    }

    #[tokio::test]
    async fn answers_find_their_questions() {
        let asker = Arc::new(Asker::new(WorkerId(9)));
        let port: Arc<dyn ShardPort> = Arc::new(Echo(asker.clone()));
        asker.reach([(ShardId(3), port)].into_iter());
        for expected in 1..4 {
            match asker.ask(ShardId(3), Question::StatAll).await {
                Ok(ShardReply::Count(count)) => assert_eq!(count, expected),
                other => panic!("{other:?}"),
            }
        }
        let unknown = asker.ask(ShardId(4), Question::StatAll).await.unwrap_err();
        assert_eq!(unknown.kind, ErrorKind::Unavailable);
    }
}

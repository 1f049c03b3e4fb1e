//! Commands about sessions and their filters: checks and the first step.
//!
//! Owns: where a session is opened, the right to each filter.
//! Never: what happens when the answer comes (`steps.rs`).

use super::commands::{Checked, Here};
use super::groups::WithGroups;
use super::steps::Step;
use super::values::Reading;
use super::{Connected, Worker};
use crate::authority::{Action, Circumstances, Question as AuthorityQuestion, Resource};
use crate::error::{ErrorKind, Refusal};
use crate::gateway::{FilterName, SendRetained, SessionFilter, SessionOpen, Will};
use crate::id::{ConnectionId, Now, Token};
use crate::message::Quality;
use crate::port::{ConsumerKey, OpenSession, Question};
use crate::will::SavedWill;

impl Worker {
    pub(super) fn open_session(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        session: SessionOpen,
    ) -> Checked<()> {
        let here = Self::here(state)?;
        self.may_open(&here, &session.client_id)?;
        let will = session.will;
        if let Some(will) = &will {
            self.may_leave(state, will)?;
        }
        let will = will.map(|will| SavedWill::new(&will, &here.principal));
        let open = OpenSession {
            consumer: ConsumerKey {
                connection,
                tag: session.consumer,
            },
            principal: here.principal,
            vhost: here.vhost,
            vhost_name: here.name.clone(),
            client_id: session.client_id,
            clean_start: session.clean_start,
            expiry_s: session.expiry_s,
            credit: session.credit,
            will,
            group_consumers: session.group_consumers,
            here: false,
        };
        let home = self.fabric.meta().place(&here.name, &open.client_id);
        let home = home.ok_or_else(|| {
            Refusal::new(
                ErrorKind::Unavailable,
                "the node is not ready yet: no shard is placed",
            )
        })?;
        state.touch(home);
        let step = Step::Opened {
            token,
            open: Box::new(open.clone()),
        };
        self.ask_shard(now, home, connection, step, Question::OpenSession(open));
        Ok(())
    }

    /// A client identifier is no secret, so a rule can keep a session from others: one that denies to connect to it.
    /// Where no rule speaks of it, whoever may connect may open it.
    fn may_open(&self, here: &Here, client_id: &str) -> Checked<()> {
        let verdict = self.authority.decide(&AuthorityQuestion {
            principal: &here.principal,
            action: Action::Connect,
            vhost: &here.name,
            resource: Resource::Session(client_id),
            circumstances: Circumstances::default(),
        });
        match verdict.rule {
            Some(rule) if !verdict.allowed => Err(Refusal::new(
                ErrorKind::AccessRefused,
                format!("rule {rule} denies session '{client_id}'"),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether a connection may leave this will: as if it published the message now.
    fn may_leave(&mut self, state: &Connected, will: &Will) -> Checked<()> {
        let here = Self::here(state)?;
        let route = self.router.route(here.vhost, &will.message);
        if route.exchange_missing {
            return Err(Refusal::new(
                ErrorKind::NotFound,
                "the will's exchange does not exist",
            ));
        }
        let message = &will.message;
        let keeps = message.retain && route.by_topic.is_some();
        let refused = route.internal
            || !self.may_publish(state, &route, message)
            || (keeps && !self.may_keep(state, &route, message));
        if refused {
            let (user, address) = (&here.principal.user, &message.address);
            return Err(Refusal::new(
                ErrorKind::AccessRefused,
                format!("a will for '{address}' refused for user '{user}'"),
            ));
        }
        Ok(())
    }

    pub(super) fn subscribe(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        filters: Vec<SessionFilter>,
    ) -> Checked<()> {
        let here = Self::here(state)?;
        let mut refused = Vec::with_capacity(filters.len());
        let mut allowed = Vec::with_capacity(filters.len());
        let mut wanted = Vec::new();
        let mut groups = Vec::new();
        for SessionFilter {
            mut spec,
            group,
            retained,
        } in filters
        {
            let circumstances = Circumstances {
                quality: spec.quality as u8,
                ..Circumstances::default()
            };
            let verdict = self.allow_with(
                &here,
                Action::Subscribe,
                Resource::Filter(&spec.filter),
                circumstances,
            );
            let verdict = verdict.and_then(|()| match group {
                Some(_) => self.allow(&here, Action::Share, Resource::Filter(&spec.filter)),
                None => Ok(()),
            });
            refused.push(verdict.err());
            if let Some(name) = group
                && refused.last().is_some_and(Option::is_none)
            {
                spec.quality = spec.quality.min(Quality::AtLeastOnce);
                groups.push((refused.len() - 1, name, spec));
            } else if refused.last().is_some_and(Option::is_none) {
                if retained != SendRetained::Never {
                    wanted.push((spec.clone(), retained));
                }
                allowed.push(spec);
            } else {
                self.counts.denied += 1;
            }
        }
        let Some(session) = &mut state.session else {
            return Err(no_session());
        };
        let added = allowed
            .iter()
            .filter(|spec| !session.filters.contains(&spec.filter))
            .count();
        let known = session.filters.len() + session.groups.len();
        if known + added + groups.len() > self.limits.filters_max {
            return Err(Refusal::new(
                ErrorKind::QuotaExceeded,
                "the session has as many filters as it may have",
            ));
        }
        wanted.retain(|(spec, retained)| {
            *retained == SendRetained::Always || !session.filters.contains(&spec.filter)
        });
        let asked = allowed.iter().map(|spec| spec.filter.clone());
        session.filters.extend(asked);
        let shard = session.shard;
        let readings: Vec<Reading> = wanted
            .iter()
            .map(|(spec, _)| {
                let (vhost, of) = ((here.vhost, &*here.name), (&spec.filter, Some(spec)));
                self.reading(connection, vhost, (shard, None), of)
            })
            .collect();
        let watched = readings.iter();
        let watched = watched.map(|reading| (reading.key.number, reading.filter.clone()));
        let watched = watched.collect();
        let step = match groups.is_empty() {
            true => Some(Step::Subscribed {
                token,
                refused,
                readings,
            }),
            false => {
                let asked = WithGroups::new(refused, groups, readings);
                self.subscribe_with_groups(now, connection, state, (token, &here), asked)
            }
        };
        let Some(step) = step else {
            return Ok(());
        };
        self.ask_shard(
            now,
            shard,
            connection,
            step,
            Question::Subscribe {
                connection,
                filters: allowed,
                readings: watched,
            },
        );
        Ok(())
    }
}

impl Worker {
    pub(super) fn unsubscribe(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        names: Vec<FilterName>,
    ) {
        if state.session.is_none() {
            return Self::tell(state, token, Err(no_session()));
        }
        let (filters, step) = match names.iter().any(|name| name.group.is_some()) {
            true => self.unsubscribe_with_groups(now, connection, state, token, names),
            false => {
                let filters = names.into_iter().map(|name| name.filter).collect();
                (filters, Step::Unsubscribed { token })
            }
        };
        let Some(session) = &mut state.session else {
            return;
        };
        for filter in &filters {
            session.filters.remove(filter);
        }
        let shard = session.shard;
        self.cancel_readings(now, connection, &filters);
        let question = Question::Unsubscribe {
            connection,
            filters,
        };
        self.ask_shard(now, shard, connection, step, question);
    }
}

pub(super) fn no_session() -> Refusal {
    Refusal::new(ErrorKind::NotFound, "the connection has no session")
}

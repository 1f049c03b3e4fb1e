//! What the made-up node answers to each call of the API.

use std::net::IpAddr;

use anabranch_admin::backend::{Answer, Backend, BackendError, Identity, Right, WhichBindings};
use anabranch_admin::model::{
    About, Binding, Connection, DeclareStream, DelayedMessage, DelayedQuery, Effect, Exchange,
    ExplainStep, Explanation, NewUser, Overview, PeekedMessage, Policy, Publish, Question,
    RetainedPage, RetainedQuery, RetainedValue, Rule, SeekTo, Stream, Subject, User, UserChange,
};

use super::{Fake, missing, wall_ms};

impl Backend for Fake {
    fn login<'a>(
        &'a self,
        user: &'a str,
        password: &'a str,
        _: IpAddr,
    ) -> Answer<'a, Option<Identity>> {
        let right = self
            .state()
            .users
            .iter()
            .any(|(row, known, _)| row.name == user && known == password);
        let identity = self.identity_of(user).filter(|_| right);
        Box::pin(async move { Ok(identity) })
    }

    fn identity<'a>(&'a self, user: &'a str) -> Answer<'a, Option<Identity>> {
        let identity = self.identity_of(user);
        Box::pin(async move { Ok(identity) })
    }

    fn may(&self, who: &Identity, right: Right) -> bool {
        who.roles.iter().any(|role| match role.as_str() {
            "administrator" => true,
            "management" => right == Right::Management,
            "monitoring" => matches!(right, Right::Management | Right::Monitoring),
            _ => false,
        })
    }

    fn about(&self) -> Answer<'_, About> {
        Box::pin(async {
            Ok(About {
                node: "anabranch@example".into(),
                version: "0.1.0".into(),
                vhosts: vec!["/".into()],
            })
        })
    }

    fn overview(&self) -> Answer<'_, Overview> {
        Box::pin(async { Ok(self.overview_now()) })
    }

    fn ready(&self) -> Result<(), BackendError> {
        Ok(())
    }

    fn connections<'a>(
        &'a self,
        vhost: Option<&'a str>,
        user: Option<&'a str>,
    ) -> Answer<'a, Vec<Connection>> {
        let mut rows = self.connection_rows();
        rows.retain(|row| {
            vhost.is_none_or(|vhost| row.vhost == vhost) && user.is_none_or(|user| row.user == user)
        });
        Box::pin(async move { Ok(rows) })
    }

    fn close_connection<'a>(&'a self, _: &'a Identity, id: &'a str, _: &'a str) -> Answer<'a, ()> {
        let known = self.connection_rows().iter().any(|row| row.id == id);
        Box::pin(async move {
            if !known {
                return missing("connection", id);
            }
            self.state().closed.push(id.to_owned());
            Ok(())
        })
    }

    fn exchanges<'a>(&'a self, _: Option<&'a str>) -> Answer<'a, Vec<Exchange>> {
        Box::pin(async { Ok(self.state().exchanges.clone()) })
    }

    fn declare_exchange<'a>(&'a self, _: &'a Identity, exchange: Exchange) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            match state.exchanges.iter().find(|row| row.name == exchange.name) {
                Some(row) if row.kind != exchange.kind => Err(BackendError::Conflict(format!(
                    "exchange {} exists as {}",
                    row.name, row.kind
                ))),
                Some(_) => Ok(()),
                None => {
                    state.exchanges.push(exchange);
                    Ok(())
                }
            }
        })
    }

    fn delete_exchange<'a>(
        &'a self,
        _: &'a Identity,
        _: &'a str,
        name: &'a str,
        _: bool,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            match state.exchanges.iter().find(|row| row.name == name) {
                Some(row) if row.predeclared => Err(BackendError::Forbidden(format!(
                    "exchange {name} cannot be deleted"
                ))),
                Some(_) => {
                    state.exchanges.retain(|row| row.name != name);
                    state.bindings.retain(|row| row.exchange != name);
                    Ok(())
                }
                None => missing("exchange", name),
            }
        })
    }

    fn delayed<'a>(
        &'a self,
        _: &'a Identity,
        _: &'a str,
        _: &'a str,
        _: DelayedQuery,
    ) -> Answer<'a, Vec<DelayedMessage>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn drop_delayed<'a>(&'a self, _: &'a Identity, _: &'a str, name: &'a str) -> Answer<'a, u64> {
        Box::pin(async move {
            let mut state = self.state();
            match state.exchanges.iter_mut().find(|row| row.name == name) {
                Some(row) => Ok(std::mem::take(&mut row.delayed)),
                None => missing("exchange", name),
            }
        })
    }

    fn bindings<'a>(&'a self, which: WhichBindings<'a>) -> Answer<'a, Vec<Binding>> {
        let mut rows = self.state().bindings.clone();
        rows.retain(|row| which.fits(&row.vhost, &row.exchange, &row.destination));
        Box::pin(async move { Ok(rows) })
    }

    fn bind<'a>(&'a self, _: &'a Identity, binding: Binding) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            let to = &binding.destination;
            let known = match binding.destination_kind.as_str() {
                "exchange" => state.exchanges.iter().any(|row| row.name == *to),
                _ => state.streams.iter().any(|(stream, _)| stream.name == *to),
            };
            if !known {
                return missing(&binding.destination_kind, to);
            }
            if !state.bindings.contains(&binding) {
                state.bindings.push(binding);
            }
            Ok(())
        })
    }

    fn unbind<'a>(&'a self, _: &'a Identity, binding: Binding) -> Answer<'a, ()> {
        Box::pin(async move {
            self.state().bindings.retain(|row| *row != binding);
            Ok(())
        })
    }

    fn streams<'a>(&'a self, _: Option<&'a str>) -> Answer<'a, Vec<Stream>> {
        Box::pin(async { Ok(self.rows()) })
    }

    fn stream<'a>(&'a self, _: &'a str, name: &'a str) -> Answer<'a, Stream> {
        Box::pin(async move {
            self.rows()
                .into_iter()
                .find(|row| row.name == name)
                .map_or_else(|| missing("stream", name), Ok)
        })
    }

    fn declare_stream<'a>(
        &'a self,
        _: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        declare: DeclareStream,
    ) -> Answer<'a, bool> {
        Box::pin(async move {
            let mut state = self.state();
            if let Some((row, _)) = state.streams.iter().find(|(row, _)| row.name == name) {
                return if row.kind == declare.kind {
                    Ok(false)
                } else {
                    Err(BackendError::Conflict(format!(
                        "{name} exists as a {}",
                        row.kind
                    )))
                };
            }
            let stream = Stream {
                vhost: vhost.into(),
                name: name.into(),
                kind: declare.kind,
                durable: declare.durable,
                state: "running".into(),
                published: 1,
                arguments: declare.arguments,
                ..Stream::default()
            };
            state.streams.push((stream, Vec::new()));
            Ok(true)
        })
    }

    fn delete_stream<'a>(
        &'a self,
        _: &'a Identity,
        _: &'a str,
        name: &'a str,
        if_empty: bool,
        _: bool,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let ready = self
                .rows()
                .iter()
                .find(|row| row.name == name)
                .map(|row| row.ready);
            match ready {
                None => missing("stream", name),
                Some(ready) if if_empty && ready > 0 => Err(BackendError::Conflict(format!(
                    "{name} holds {ready} messages"
                ))),
                Some(_) => {
                    self.state().streams.retain(|(row, _)| row.name != name);
                    Ok(())
                }
            }
        })
    }

    fn purge<'a>(&'a self, _: &'a Identity, _: &'a str, name: &'a str) -> Answer<'a, u64> {
        Box::pin(async move {
            match self
                .state()
                .streams
                .iter_mut()
                .find(|(row, _)| row.name == name)
            {
                Some((_, messages)) => Ok(std::mem::take(messages).len() as u64),
                None => missing("stream", name),
            }
        })
    }

    fn seek<'a>(
        &'a self,
        _: &'a Identity,
        _: &'a str,
        name: &'a str,
        to: SeekTo,
    ) -> Answer<'a, u64> {
        Box::pin(async move {
            let mut state = self.state();
            let found = state.streams.iter_mut().find(|(row, _)| row.name == name);
            let Some((_, messages)) = found else {
                return missing("stream", name);
            };
            let before = messages.len();
            messages.retain(|message| match to {
                SeekTo::Start => true,
                SeekTo::End => false,
                SeekTo::Offset(offset) => message.offset >= offset,
                SeekTo::TimeMs(time) => message.published_at_ms >= time,
            });
            Ok((before - messages.len()) as u64)
        })
    }

    fn peek<'a>(
        &'a self,
        _: &'a Identity,
        _: &'a str,
        name: &'a str,
        from: SeekTo,
        count: usize,
        _: usize,
    ) -> Answer<'a, Vec<PeekedMessage>> {
        Box::pin(async move {
            match self
                .state()
                .streams
                .iter()
                .find(|(row, _)| row.name == name)
            {
                Some((_, messages)) => Ok(messages
                    .iter()
                    .filter(|message| match from {
                        SeekTo::Start => true,
                        SeekTo::End => false,
                        SeekTo::Offset(offset) => message.offset >= offset,
                        SeekTo::TimeMs(time) => message.published_at_ms >= time,
                    })
                    .take(count)
                    .cloned()
                    .collect()),
                None => missing("stream", name),
            }
        })
    }

    fn publish<'a>(&'a self, _: &'a Identity, publish: Publish) -> Answer<'a, u64> {
        Box::pin(async move {
            let mut state = self.state();
            if publish.retain {
                let address = publish.address.replace('.', "/");
                state.retained.retain(|value| value.address != address);
                state.retained.push(RetainedValue {
                    vhost: publish.vhost.clone(),
                    address,
                    published_at_ms: wall_ms(),
                    content_type: publish.content_type.clone(),
                    headers: publish.headers.clone(),
                    body_bytes: publish.body.len() as u64,
                    body: publish.body.clone(),
                    body_encoding: publish.body_encoding,
                    cut: false,
                });
                state.retained.sort_by(|a, b| a.address.cmp(&b.address));
            }
            let mut routed = 0;
            for (stream, messages) in &mut state.streams {
                if publish.exchange.is_empty() && stream.name == publish.address {
                    routed += 1;
                    let offset = messages.last().map_or(0, |message| message.offset + 1);
                    messages.push(PeekedMessage {
                        offset,
                        address: publish.address.clone(),
                        published_at_ms: wall_ms(),
                        body_bytes: publish.body.len() as u64,
                        body: publish.body.clone(),
                        body_encoding: publish.body_encoding,
                        content_type: publish.content_type.clone(),
                        durable: publish.durable,
                        ..PeekedMessage::default()
                    });
                }
            }
            Ok(routed)
        })
    }

    fn retained<'a>(&'a self, _: &'a Identity, which: RetainedQuery) -> Answer<'a, RetainedPage> {
        Box::pin(async move {
            // Filters of this made-up node end in `#` or have no wildcard.
            let start = which.filter.strip_suffix('#').map(str::to_owned);
            let mut items = self.state().retained.clone();
            items.retain(|value| {
                which
                    .after
                    .as_ref()
                    .is_none_or(|after| value.address > *after)
                    && match &start {
                        Some(start) => value.address.starts_with(start),
                        None => value.address == which.filter,
                    }
            });
            let more = items.len() > which.count;
            items.truncate(which.count);
            let next = items.last().map(|value| value.address.clone());
            let next = next.filter(|_| more);
            Ok(RetainedPage { items, next })
        })
    }

    fn clear_retained<'a>(
        &'a self,
        _: &'a Identity,
        vhost: &'a str,
        address: &'a str,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            let before = state.retained.len();
            state
                .retained
                .retain(|value| (&*value.vhost, &*value.address) != (vhost, address));
            if state.retained.len() == before {
                return missing("last value of", address);
            }
            Ok(())
        })
    }

    fn users(&self) -> Answer<'_, Vec<User>> {
        Box::pin(async {
            Ok(self
                .state()
                .users
                .iter()
                .map(|(user, _, _)| user.clone())
                .collect())
        })
    }

    fn create_user<'a>(&'a self, _: &'a Identity, user: NewUser) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            if state.users.iter().any(|(row, _, _)| row.name == user.name) {
                return Err(BackendError::Conflict(format!("user {} exists", user.name)));
            }
            let row = User {
                name: user.name,
                roles: user.roles,
                groups: user.groups,
                protected: false,
            };
            state.users.push((row, user.password, 1));
            Ok(())
        })
    }

    fn change_user<'a>(
        &'a self,
        _: &'a Identity,
        name: &'a str,
        change: UserChange,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            let Some((user, password, version)) =
                state.users.iter_mut().find(|(row, _, _)| row.name == name)
            else {
                return missing("user", name);
            };
            if let Some(new) = change.password {
                *password = new;
                *version += 1;
            }
            if let Some(roles) = change.roles {
                user.roles = roles;
            }
            if let Some(groups) = change.groups {
                user.groups = groups;
            }
            Ok(())
        })
    }

    fn delete_user<'a>(&'a self, _: &'a Identity, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            let before = state.users.len();
            state.users.retain(|(row, _, _)| row.name != name);
            if state.users.len() == before {
                missing("user", name)
            } else {
                Ok(())
            }
        })
    }

    fn policies<'a>(&'a self, vhost: Option<&'a str>) -> Answer<'a, Vec<Policy>> {
        let mut all = self.state().policies.clone();
        all.retain(|policy| vhost.is_none_or(|vhost| policy.vhost == vhost));
        Box::pin(async move { Ok(all) })
    }

    fn put_policy<'a>(&'a self, _: &'a Identity, policy: Policy) -> Answer<'a, ()> {
        let mut state = self.state();
        state
            .policies
            .retain(|known| (&known.vhost, &known.name) != (&policy.vhost, &policy.name));
        state.policies.push(policy);
        Box::pin(async move { Ok(()) })
    }

    fn delete_policy<'a>(
        &'a self,
        _: &'a Identity,
        vhost: &'a str,
        name: &'a str,
    ) -> Answer<'a, ()> {
        let mut state = self.state();
        let before = state.policies.len();
        state
            .policies
            .retain(|known| (&*known.vhost, &*known.name) != (vhost, name));
        let gone = state.policies.len() < before;
        let missing = BackendError::NotFound(format!("there is no policy {name:?}"));
        Box::pin(async move { if gone { Ok(()) } else { Err(missing) } })
    }

    fn rules(&self) -> Answer<'_, Vec<Rule>> {
        Box::pin(async {
            let mut rules = self.state().rules.clone();
            rules.sort_by_key(|rule| {
                (
                    std::cmp::Reverse(rule.priority),
                    rule.effect == Effect::Allow,
                )
            });
            Ok(rules)
        })
    }

    fn create_rule<'a>(&'a self, _: &'a Identity, mut rule: Rule) -> Answer<'a, Rule> {
        Box::pin(async move {
            if rule.subjects.is_empty() {
                return Err(BackendError::Invalid("a rule needs a subject".into()));
            }
            let mut state = self.state();
            rule.id = state.next_rule.to_string();
            state.next_rule += 1;
            state.rules.push(rule.clone());
            Ok(rule)
        })
    }

    fn replace_rule<'a>(
        &'a self,
        _: &'a Identity,
        id: &'a str,
        mut rule: Rule,
    ) -> Answer<'a, Rule> {
        Box::pin(async move {
            match self.state().rules.iter_mut().find(|row| row.id == id) {
                Some(row) => {
                    rule.id = id.to_owned();
                    *row = rule.clone();
                    Ok(rule)
                }
                None => missing("rule", id),
            }
        })
    }

    fn delete_rule<'a>(&'a self, _: &'a Identity, id: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            let before = state.rules.len();
            state.rules.retain(|row| row.id != id);
            if state.rules.len() == before {
                missing("rule", id)
            } else {
                Ok(())
            }
        })
    }

    fn explain(&self, question: Question) -> Answer<'_, Explanation> {
        Box::pin(async move {
            let rules = self.rules().await?;
            let mut steps = Vec::new();
            for rule in rules {
                let about = |subject: &Subject| {
                    subject.kind == "everyone"
                        || subject.kind == "user" && subject.value == question.user
                        || subject.kind == "role"
                            && self
                                .identity_of(&question.user)
                                .is_some_and(|user| user.roles.contains(&subject.value))
                };
                let start = rule
                    .resource
                    .pattern
                    .trim_end_matches('#')
                    .replace("${user}", &question.user);
                let outcome = if !rule
                    .actions
                    .iter()
                    .any(|action| *action == question.action || action == "*")
                {
                    "other_action"
                } else if !rule.subjects.iter().any(about) {
                    "other_subject"
                } else if !(question.name.starts_with(&start) || start.contains('+')) {
                    "other_resource"
                } else {
                    "decides"
                };
                steps.push(ExplainStep {
                    rule: rule.id.clone(),
                    outcome: outcome.into(),
                    text: outcome.replace('_', " "),
                });
                if outcome == "decides" {
                    let allowed = rule.effect == Effect::Allow;
                    let verb = if allowed { "allows" } else { "denies" };
                    return Ok(Explanation {
                        allowed,
                        reason: format!(
                            "rule {} {verb} {} on {} {} in vhost {}",
                            rule.id, question.action, question.kind, question.name, question.vhost
                        ),
                        rule: Some(rule.id),
                        steps,
                    });
                }
            }
            Ok(Explanation {
                allowed: false,
                rule: None,
                reason: format!(
                    "no rule allows {} on {} {} in vhost {}",
                    question.action, question.kind, question.name, question.vhost
                ),
                steps,
            })
        })
    }
}

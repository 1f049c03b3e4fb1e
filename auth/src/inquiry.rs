//! A question written by a person: may this one do that on this thing?
//!
//! Owns how actions, kinds and names in text become a question to the engine. Never answers by itself:
//! [`Engine::explain`] does.

use anabranch_core::address::{Address, AddressError, TopicFilter};
use anabranch_core::authority::{Action, Circumstances, Principal, Question, Resource};

use crate::engine::{Engine, Explanation};
use crate::rule::action_of;

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Inquiry<'a> {
    /// Who.
    pub principal: &'a Principal,
    /// Does what, as rules write it.
    pub action: &'a str,
    /// In which vhost.
    pub vhost: &'a str,
    /// On what kind of thing, as rules write it; not looked at for `connect` and the console's actions,
    /// which are asked on the vhost and on the node.
    pub kind: &'a str,
    /// The thing's name; for a topic its address with `/` between levels, or a filter.
    pub name: &'a str,
    /// How.
    pub circumstances: Circumstances,
}

/// Why an inquiry makes no question.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InquiryError {
    /// No such action.
    #[error("{0:?} is not an action")]
    Action(String),
    /// No such kind.
    #[error(
        "{0:?} is not a kind of thing; there are topic, exchange, queue, stream, session and admin"
    )]
    Kind(String),
    /// Not an address.
    #[error("{name:?} is not a topic: {error}")]
    Topic {
        /// As written.
        name: String,
        /// What is wrong.
        error: AddressError,
    },
}

impl Engine {
    /// Answers a question written in text.
    ///
    /// # Errors
    /// When the text makes no question.
    pub fn inquire(&self, inquiry: &Inquiry<'_>) -> Result<Explanation, InquiryError> {
        let action =
            action_of(inquiry.action).ok_or_else(|| InquiryError::Action(inquiry.action.into()))?;
        let explain = |resource: Resource<'_>| {
            self.explain(&Question {
                principal: inquiry.principal,
                action,
                vhost: inquiry.vhost,
                resource,
                circumstances: inquiry.circumstances,
            })
        };
        match action {
            Action::Connect => return Ok(explain(Resource::Vhost)),
            Action::AdminManagement
            | Action::AdminPolicy
            | Action::AdminMonitoring
            | Action::AdminAll => return Ok(explain(Resource::Admin)),
            _ => {}
        }
        let name = inquiry.name;
        Ok(match inquiry.kind {
            "topic" => {
                let wrong = |error| InquiryError::Topic {
                    name: name.to_owned(),
                    error,
                };
                let filter = TopicFilter::new(name.to_owned().into()).map_err(wrong)?;
                // Subscribing is asked on filters, also on those without a wildcard.
                if filter.is_wild() || matches!(action, Action::Subscribe | Action::Share) {
                    explain(Resource::Filter(&filter))
                } else {
                    let address = Address::new(name.to_owned().into()).map_err(wrong)?;
                    explain(Resource::Topic(&address))
                }
            }
            "exchange" => explain(Resource::Exchange(name)),
            "queue" | "stream" => explain(Resource::Queue(name)),
            "session" => explain(Resource::Session(name)),
            "admin" => explain(Resource::Admin),
            other => return Err(InquiryError::Kind(other.to_owned())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::{ADMINISTRATOR, first_rules};
    use crate::rule::Rule;

    fn reader() -> Rule {
        serde_json::from_value(serde_json::json!({
            "id": "reader", "effect": "allow",
            "subjects": [{"kind": "user", "value": "anna"}],
            "actions": ["connect", "subscribe", "receive"],
            "resource": {"vhost": "/", "kind": "topic", "match": "filter", "pattern": "plant/+/temp"},
        }))
        .unwrap()
    }

    fn inquire(user: &str, action: &str, kind: &str, name: &str) -> Result<String, InquiryError> {
        let mut rules = first_rules();
        rules.push(reader());
        let roles = if user == "admin" {
            vec![ADMINISTRATOR.into()]
        } else {
            Vec::new()
        };
        let principal = Principal {
            user: user.into(),
            roles,
            ..Principal::default()
        };
        Engine::new(&rules)
            .unwrap()
            .inquire(&Inquiry {
                principal: &principal,
                action,
                vhost: "/",
                kind,
                name,
                circumstances: Circumstances::default(),
            })
            .map(|explanation| explanation.reason)
    }

    #[test]
    fn text_is_asked_as_the_broker_asks() {
        for (user, action, kind, name, expected) in [
            (
                "anna",
                "receive",
                "topic",
                "plant/7/temp",
                "rule reader allows receive on topic plant/7/temp in vhost /",
            ),
            (
                "anna",
                "subscribe",
                "topic",
                "plant/7/temp",
                "rule reader allows subscribe on topic filter plant/7/temp in vhost /",
            ),
            (
                "anna",
                "subscribe",
                "topic",
                "#",
                "no rule allows subscribe on topic filter # in vhost /",
            ),
            (
                "anna",
                "connect",
                "topic",
                "",
                "rule reader allows connect in vhost /",
            ),
            ("anna", "admin.all", "topic", "", "no rule allows admin.all"),
            (
                "admin",
                "admin.all",
                "admin",
                "",
                "rule role:administrator allows admin.all",
            ),
            (
                "admin",
                "purge",
                "queue",
                "q",
                "rule administrators allows purge on queue q in vhost /",
            ),
            (
                "admin",
                "publish",
                "exchange",
                "",
                "rule administrators allows publish on exchange (default) in vhost /",
            ),
        ] {
            assert_eq!(inquire(user, action, kind, name).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn text_that_makes_no_question_is_refused() {
        assert!(matches!(
            inquire("anna", "dance", "topic", "a"),
            Err(InquiryError::Action(_))
        ));
        assert!(matches!(
            inquire("anna", "publish", "planet", "a"),
            Err(InquiryError::Kind(_))
        ));
        assert!(matches!(
            inquire("anna", "publish", "topic", "a+"),
            Err(InquiryError::Topic { .. })
        ));
    }
}

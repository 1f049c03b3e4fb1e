//! Tests of `engine.rs`: order of decision, subjects, resources, conditions, explanations.

use super::*;
use crate::ready::ADMIN;
use crate::roles::{ADMINISTRATOR, MANAGEMENT, MONITORING, dev_rules, first_rules, held_names};
use crate::rule::Conditions;
use anabranch_core::address::{Address, TopicFilter};
use anabranch_core::authority::Circumstances;
use anabranch_core::authority::Principal;
use proptest::prelude::*;

fn rule(text: &str) -> Rule {
    serde_json::from_str(text).unwrap()
}

/// `allow 0 user:anna publish topic filter plant/#` and the like, in vhost `/`.
fn short(id: &str, text: &str) -> Rule {
    let words: Vec<&str> = text.split(' ').collect();
    let [effect, priority, subject, actions, kind, matching, pattern] = words[..] else {
        panic!("{text}");
    };
    let (subject, value) = subject.split_once(':').unwrap_or((subject, ""));
    let actions: Vec<&str> = actions.split(',').collect();
    let rule = serde_json::json!({
        "id": id, "effect": effect, "priority": priority.parse::<i32>().unwrap(),
        "subjects": [{"kind": subject, "value": value}], "actions": actions,
        "resource": {"vhost": "/", "kind": kind, "match": matching, "pattern": pattern},
    });
    serde_json::from_value(rule).unwrap()
}

fn engine(rules: &[&str]) -> Engine {
    let rules: Vec<Rule> = rules
        .iter()
        .enumerate()
        .map(|(place, text)| short(&place.to_string(), text))
        .collect();
    Engine::new(&rules).unwrap()
}

fn principal(user: &str, roles: &[&str]) -> Principal {
    let roles: Vec<String> = roles.iter().map(|role| (*role).to_owned()).collect();
    Principal {
        id: 1,
        user: user.into(),
        anonymous: user.is_empty(),
        client_id: "c1".into(),
        protocol: "one",
        address: Some("10.0.0.7".parse().unwrap()),
        roles: held_names(&roles, &["night".to_owned()]),
    }
}

struct Asker<'a>(&'a Engine, Principal);

impl Asker<'_> {
    fn ask(&self, action: Action, resource: Resource<'_>) -> Verdict {
        let question = Question {
            principal: &self.1,
            action,
            vhost: "/",
            resource,
            circumstances: Circumstances::default(),
        };
        let verdict = self.0.decide(&question);
        assert_eq!(self.0.explain(&question).verdict, verdict);
        verdict
    }

    fn topic(&self, action: Action, address: &str) -> bool {
        let address = Address::new(address.to_owned().into()).unwrap();
        self.ask(action, Resource::Topic(&address)).allowed
    }

    fn filter(&self, filter: &str) -> bool {
        let filter = TopicFilter::new(filter.to_owned().into()).unwrap();
        self.ask(Action::Subscribe, Resource::Filter(&filter))
            .allowed
    }
}

#[test]
fn nothing_is_allowed_without_a_rule_and_the_verdict_names_none() {
    let engine = engine(&[]);
    let anna = Asker(&engine, principal("anna", &[]));
    assert_eq!(anna.ask(Action::Connect, Resource::Vhost), nobody());
}

#[test]
fn higher_priority_is_asked_first_and_deny_before_allow_at_equal_priority() {
    let engine = engine(&[
        "allow 0 user:anna publish topic filter a/#",
        "deny 0 user:anna publish topic filter a/b",
        "deny 5 user:anna publish topic filter a/c",
        "allow 9 user:anna publish topic literal a/c",
    ]);
    let anna = Asker(&engine, principal("anna", &[]));
    assert!(anna.topic(Action::Publish, "a/x"));
    assert!(!anna.topic(Action::Publish, "a/b"));
    assert!(anna.topic(Action::Publish, "a/c"));
    let address = Address::new("a/b".into()).unwrap();
    let verdict = anna.ask(Action::Publish, Resource::Topic(&address));
    assert_eq!(verdict.rule.as_deref(), Some("1"));
}

#[test]
fn a_reader_of_one_filter_gets_nothing_else() {
    let engine =
        engine(&["allow 0 user:reader connect,subscribe,receive topic filter plant/+/temp"]);
    let reader = Asker(&engine, principal("reader", &[]));
    assert!(reader.ask(Action::Connect, Resource::Vhost).allowed);
    assert!(reader.filter("plant/+/temp") && reader.filter("plant/7/temp"));
    assert!(!reader.filter("plant/#") && !reader.filter("#"));
    assert!(reader.topic(Action::Receive, "plant/7/temp"));
    assert!(!reader.topic(Action::Receive, "plant/7/speed"));
    assert!(!reader.topic(Action::Publish, "plant/7/temp"));
    for (action, resource) in [
        (Action::Consume, Resource::Queue("q")),
        (Action::Configure, Resource::Queue("q")),
        (Action::Configure, Resource::Exchange("e")),
        (Action::Purge, Resource::Queue("q")),
        (Action::AdminManagement, Resource::Admin),
    ] {
        assert!(!reader.ask(action, resource).allowed, "{action:?}");
    }
}

#[test]
fn a_deny_inside_an_allowed_wildcard_lets_subscribe_and_stops_delivery() {
    let engine = engine(&[
        "allow 0 everyone subscribe,receive topic filter plant/#",
        "deny 1 everyone receive topic filter plant/secret/#",
    ]);
    let anna = Asker(&engine, principal("anna", &[]));
    assert!(anna.filter("plant/#"));
    assert!(anna.topic(Action::Receive, "plant/open"));
    assert!(!anna.topic(Action::Receive, "plant/secret/x"));
}

#[test]
fn receive_on_a_whole_filter_is_denied_when_a_deny_is_about_any_part_of_it() {
    let engine = engine(&[
        "allow 0 everyone receive topic filter #",
        "deny 1 user:anna receive topic filter plant/secret/#",
    ]);
    let every = TopicFilter::new("#".into()).unwrap();
    let open = TopicFilter::new("plant/open/#".into()).unwrap();
    let anna = Asker(&engine, principal("anna", &[]));
    assert!(!anna.ask(Action::Receive, Resource::Filter(&every)).allowed);
    assert!(anna.ask(Action::Receive, Resource::Filter(&open)).allowed);
    let bert = Asker(&engine, principal("bert", &[]));
    assert!(bert.ask(Action::Receive, Resource::Filter(&every)).allowed);
}

#[test]
fn each_kind_of_subject_means_those_it_names() {
    for (subject, user, roles, expected) in [
        ("user:anna", "anna", &[][..], true),
        ("user:anna", "bert", &[], false),
        ("role:ops", "anna", &["ops"], true),
        ("role:ops", "anna", &[], false),
        ("role:night", "anna", &[], false),
        ("group:night", "anna", &[], true),
        ("client_id:c1", "anna", &[], true),
        ("cidr:10.0.0.0/8", "anna", &[], true),
        ("cidr:192.168.0.0/16", "anna", &[], false),
        ("protocol:one", "anna", &[], true),
        ("protocol:two", "anna", &[], false),
        ("anonymous", "anna", &[], false),
        ("anonymous", "", &[], true),
        ("everyone", "", &[], true),
        ("certificate:anna", "anna", &[], false),
    ] {
        let engine = engine(&[&format!("allow 0 {subject} publish topic prefix t")]);
        let asker = Asker(&engine, principal(user, roles));
        assert_eq!(
            asker.topic(Action::Publish, "t"),
            expected,
            "{subject} {user}"
        );
    }
}

#[test]
fn all_actions_on_a_topic_say_nothing_about_connecting_or_the_console() {
    let engine = engine(&[
        "deny 0 everyone * topic filter secret/#",
        "allow 0 everyone connect topic literal x",
    ]);
    let anna = Asker(&engine, principal("anna", &[]));
    assert!(anna.ask(Action::Connect, Resource::Vhost).allowed);
}

#[test]
fn rules_of_another_vhost_do_not_count() {
    let mut other = short("o", "allow 0 everyone * * prefix x");
    other.resource.pattern.clear();
    other.resource.vhost = "other".to_owned();
    let engine = Engine::new(&[other]).unwrap();
    assert!(!Asker(&engine, principal("anna", &[])).topic(Action::Publish, "t"));
}

#[test]
fn conditions_narrow_a_rule_and_make_its_actions_circumstantial() {
    let mut small = short("s", "allow 0 everyone publish topic prefix t");
    small.conditions = Conditions {
        max_qos: Some(1),
        retain: Some(false),
        max_body_bytes: Some(10),
    };
    let engine = Engine::new(&[small]).unwrap();
    assert!(engine.circumstantial(Action::Publish));
    assert!(!engine.circumstantial(Action::Receive));
    let principal = principal("anna", &[]);
    let address = Address::new("t".into()).unwrap();
    for (quality, retain, body_bytes, expected) in [
        (1, false, 10, true),
        (2, false, 10, false),
        (0, true, 10, false),
        (0, false, 11, false),
    ] {
        let verdict = engine.decide(&Question {
            principal: &principal,
            action: Action::Publish,
            vhost: "/",
            resource: Resource::Topic(&address),
            circumstances: Circumstances {
                quality,
                retain,
                body_bytes,
            },
        });
        assert_eq!(verdict.allowed, expected, "{quality} {retain} {body_bytes}");
    }
}

#[test]
fn console_roles_are_sets_of_admin_rights_and_data_is_a_matter_of_rules() {
    let engine = Engine::new(&first_rules()).unwrap();
    let may = |role, action| {
        Asker(&engine, principal("anna", &[role]))
            .ask(action, Resource::Admin)
            .allowed
    };
    assert!(may(MANAGEMENT, Action::AdminManagement));
    assert!(!may(MANAGEMENT, Action::AdminMonitoring));
    assert!(may(MONITORING, Action::AdminMonitoring));
    assert!(!may(MONITORING, Action::AdminAll));
    for action in ADMIN {
        assert!(may(ADMINISTRATOR, action), "{action:?}");
        assert!(!may("sensor", action), "{action:?}");
    }
    let admin = Asker(&engine, principal("admin", &[ADMINISTRATOR]));
    assert!(admin.topic(Action::Publish, "any/where"));
    assert!(admin.filter("#"));
    assert!(admin.ask(Action::Connect, Resource::Vhost).allowed);
    assert!(admin.ask(Action::Configure, Resource::Exchange("")).allowed);
    let dev = Engine::new(&dev_rules()).unwrap();
    let nobody = Asker(&dev, principal("", &[]));
    assert!(nobody.topic(Action::Publish, "any/where"));
    assert!(!nobody.ask(Action::AdminManagement, Resource::Admin).allowed);
}

#[test]
fn a_change_is_in_force_at_the_next_question_and_voids_cached_verdicts() {
    let engine = engine(&["allow 0 everyone publish topic prefix t"]);
    let before = engine.generation();
    let anna = Asker(&engine, principal("anna", &[]));
    assert!(anna.topic(Action::Publish, "t"));
    engine.replace(&[]).unwrap();
    assert!(!anna.topic(Action::Publish, "t"));
    assert_ne!(engine.generation(), before);
}

#[test]
fn a_wrong_list_is_refused_whole_and_the_one_before_stays() {
    let engine = engine(&["allow 0 everyone publish topic prefix t"]);
    let one = short("x", "allow 0 everyone publish topic prefix t");
    let twice = engine.replace(&[one.clone(), one.clone()]);
    assert_eq!(twice, Err(RulesError::Twice("x".into())));
    let mut broken = one;
    broken.resource.pattern = "${nobody}".into();
    let error = engine.replace(&[broken]).unwrap_err();
    assert!(
        error.to_string().contains("no placeholder ${nobody}"),
        "{error}"
    );
    assert!(Asker(&engine, principal("anna", &[])).topic(Action::Publish, "t"));
}

#[test]
fn a_rule_is_checked_before_it_is_stored() {
    let good = short("x", "allow 0 everyone publish topic prefix t");
    assert_eq!(check_rule(&good), Ok(()));
    let posing = short("role:x", "allow 0 everyone publish topic prefix t");
    assert_eq!(check_rule(&posing), Err(RuleError::Name));
    let broken = short("x", "allow 0 everyone publish topic regex (");
    assert!(matches!(check_rule(&broken), Err(RuleError::Regex(_))));
    let levels = short("x", "allow 0 everyone consume queue filter a/#");
    assert_eq!(check_rule(&levels), Err(RuleError::FilterKind("queue")));
}

#[test]
fn an_explanation_lists_the_rules_asked_and_ends_with_the_one_that_decides() {
    let engine = engine(&[
        "allow 9 user:bert publish topic prefix p",
        "allow 8 everyone consume queue prefix p",
        "allow 7 everyone publish topic prefix q",
        "deny 6 everyone publish topic filter plant/#",
        "allow 5 everyone publish topic prefix p",
    ]);
    let principal = principal("anna", &[]);
    let address = Address::new("plant/8".into()).unwrap();
    let explanation = engine.explain(&Question {
        principal: &principal,
        action: Action::Publish,
        vhost: "/",
        resource: Resource::Topic(&address),
        circumstances: Circumstances::default(),
    });
    let outcomes: Vec<(&str, &str)> = explanation
        .steps
        .iter()
        .map(|step| (&*step.rule, step.outcome.name()))
        .collect();
    assert_eq!(
        outcomes,
        [
            ("0", "other_subject"),
            ("1", "other_action"),
            ("2", "other_resource"),
            ("3", "decides")
        ]
    );
    assert_eq!(
        explanation.reason,
        "rule 3 denies publish on topic plant/8 in vhost /"
    );
}

#[test]
fn a_rule_for_each_of_many_users_is_found_without_asking_the_others() {
    let rules: Vec<Rule> = (0..5000)
        .map(|number| {
            short(
                &number.to_string(),
                &format!("allow 0 user:u{number} publish topic filter own/u{number}/#"),
            )
        })
        .collect();
    let engine = Engine::new(&rules).unwrap();
    let one = Asker(&engine, principal("u4321", &[]));
    assert!(one.topic(Action::Publish, "own/u4321/x"));
    assert!(!one.topic(Action::Publish, "own/u1/x"));
    let compiled = engine.now();
    assert_eq!(compiled.by_user.get("u4321").map(Vec::len), Some(1));
    assert!(compiled.by_other.is_empty());
}

#[test]
fn the_stored_form_of_a_rule_is_what_the_engine_gives_back() {
    let text = r#"{"id":"r","comment":"c","effect":"deny","priority":-1,
        "subjects":[{"kind":"everyone"}],"actions":["publish"],
        "resource":{"vhost":"*","kind":"*","match":"prefix","pattern":""},"conditions":{}}"#;
    let engine = Engine::new(&[rule(text)]).unwrap();
    assert!(engine.rules().contains(&rule(text)));
}

fn any_rule() -> impl Strategy<Value = String> {
    (
        prop_oneof!["allow", "deny"],
        -1i32..2,
        prop_oneof![
            "user:anna",
            "user:bert",
            "role:ops",
            "everyone",
            "client_id:c1"
        ],
        prop_oneof!["publish", "receive", "publish,receive", "\\*"],
        prop_oneof!["a", "a/b", "a/\\+", "a/#", "#", "\\+/b"],
    )
        .prop_map(|(effect, priority, subject, actions, filter)| {
            format!("{effect} {priority} {subject} {actions} topic filter {filter}")
        })
}

proptest! {
    #[test]
    fn explain_agrees_with_decide_and_deny_wins_at_equal_priority(
        texts in proptest::collection::vec(any_rule(), 0..12),
        user in "anna|bert|carl",
        ops in any::<bool>(),
        address in "a|b|a/b|b/b|a/b/c",
        publish in any::<bool>(),
    ) {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let engine = engine(&texts);
        let principal = principal(&user, if ops { &["ops"] } else { &[] });
        let address = Address::new(address.into()).unwrap();
        let question = Question {
            principal: &principal,
            action: if publish { Action::Publish } else { Action::Receive },
            vhost: "/",
            resource: Resource::Topic(&address),
            circumstances: Circumstances::default(),
        };
        let verdict = engine.decide(&question);
        let explanation = engine.explain(&question);
        prop_assert_eq!(&explanation.verdict, &verdict);
        prop_assert_eq!(
            explanation.steps.iter().filter(|step| step.outcome == Outcome::Decides).count(),
            usize::from(verdict.rule.is_some())
        );

        // The verdict by the words of the model: of the matching rules those of the highest priority,
        // and among them a deny if there is one.
        let compiled = engine.now();
        let matching: Vec<&Rule> = compiled.rules.iter()
            .filter(|ready| ready.ask(&question) == Outcome::Decides)
            .map(|ready| &ready.rule)
            .collect();
        let highest = matching.iter().map(|rule| rule.priority).max();
        let expected = highest.is_some_and(|highest| {
            matching.iter().filter(|rule| rule.priority == highest).all(|rule| rule.effect == Effect::Allow)
        });
        prop_assert_eq!(verdict.allowed, expected);
    }
}

//! Tests of `pattern.rs`, `filter.rs` and `template.rs`.

use super::*;
use crate::template::as_level;
use proptest::prelude::*;

fn values() -> Values<'static> {
    Values {
        user: "anna",
        client_id: "c/1",
        vhost: "v",
    }
}

fn address(kind: MatchKind, pattern: &str, text: &str) -> bool {
    Pattern::new(kind, pattern)
        .unwrap()
        .matches(Named::Address(text), values())
}

fn filter(pattern: &str, text: &str) -> bool {
    Pattern::new(MatchKind::Filter, pattern)
        .unwrap()
        .matches(Named::Filter(text), values())
}

#[test]
fn each_kind_of_match_reads_its_pattern_its_own_way() {
    use MatchKind::{Filter, Literal, Prefix, Regex, RegexSearch};
    for (kind, pattern, text, expected) in [
        (Literal, "a/b", "a/b", true),
        (Literal, "a/b", "a/b/c", false),
        (Prefix, "a/", "a/b/c", true),
        (Prefix, "", "anything", true),
        (Prefix, "a/", "a", false),
        (Filter, "plant/+/temp", "plant/7/temp", true),
        (Filter, "plant/+/temp", "plant/7/8/temp", false),
        (Filter, "plant/#", "plant", true),
        (Filter, "#/temp", "plant/7/temp", true),
        (Filter, "#", "", true),
        (Filter, "+", "", false),
        (Regex, "a.c", "abc", true),
        (Regex, "a|b", "ab", false),
        (RegexSearch, "b", "abc", true),
        (Regex, "b", "abc", false),
    ] {
        assert_eq!(
            address(kind, pattern, text),
            expected,
            "{kind:?} {pattern} {text}"
        );
    }
}

#[test]
fn a_filter_is_covered_only_when_all_it_can_match_is() {
    for (pattern, asked, expected) in [
        ("plant/+/temp", "plant/+/temp", true),
        ("plant/+/temp", "plant/7/temp", true),
        ("plant/+/temp", "plant/#", false),
        ("plant/+/temp", "#", false),
        ("plant/#", "plant/+/temp", true),
        ("plant/#", "plant/#", true),
        ("plant/#", "+/x", false),
        ("#", "#", true),
        ("+/#", "#", false),
        ("plant/7", "plant/+", false),
    ] {
        assert_eq!(filter(pattern, asked), expected, "{pattern} covers {asked}");
    }
    let prefix = Pattern::new(MatchKind::Prefix, "plant/").unwrap();
    assert!(prefix.matches(Named::Filter("plant/+/x"), values()));
    assert!(!prefix.matches(Named::Filter("+/x"), values()));
    let literal = Pattern::new(MatchKind::Literal, "plant/+").unwrap();
    assert!(!literal.matches(Named::Filter("plant/+"), values()));
}

#[test]
fn filters_without_a_common_address_do_not_overlap() {
    for (rule, asked, expected) in [
        ("plant/secret/#", "#", true),
        ("plant/secret/#", "plant/+/x", true),
        ("plant/secret/#", "plant/open/#", false),
        ("a/+", "a/+/b", false),
        ("#/a", "b/#", true),
        ("+/b", "a/c", false),
        ("a", "a/#", true),
        ("own/${user}", "own/+", true),
        ("own/${user}", "own/bert", false),
    ] {
        let pattern = Pattern::new(MatchKind::Filter, rule).unwrap();
        assert_eq!(
            pattern.overlaps(asked, values()),
            expected,
            "{rule} and {asked}"
        );
    }
}

#[test]
fn a_placeholder_is_one_level_and_never_a_wildcard() {
    let own = Pattern::new(MatchKind::Filter, "own/${user}/#").unwrap();
    let asks = |user: &'static str, text: &str| {
        let values = Values {
            user,
            ..Values::default()
        };
        own.matches(Named::Address(text), values)
    };
    assert!(asks("anna", "own/anna/x"));
    assert!(!asks("anna", "own/bert/x"));
    assert!(!asks("+", "own/bert/x"));
    assert!(asks("+", "own/%2B/x"));
    assert!(!asks("a/b", "own/a/b"));
    assert!(asks("a/b", "own/a%2Fb"));
    assert!(asks("50%", "own/50%/x"));
    assert!(asks("a%2Fb", "own/a%252Fb"));
    assert!(!asks("", "own//x"), "nobody is nobody");
}

#[test]
fn placeholders_in_names_and_expressions_stand_for_themselves() {
    let name = |kind, pattern, text| {
        Pattern::new(kind, pattern)
            .unwrap()
            .matches(Named::Name(text), values())
    };
    assert!(name(MatchKind::Literal, "q.${client_id}", "q.c/1"));
    assert!(name(MatchKind::Prefix, "${user}.", "anna.x"));
    assert!(name(MatchKind::Regex, "${user}-[0-9]+", "anna-12"));
    let dots = Values {
        user: ".*",
        ..values()
    };
    let pattern = Pattern::new(MatchKind::Regex, "${user}-1").unwrap();
    assert!(!pattern.matches(Named::Name("bert-1"), dots));
    assert!(pattern.matches(Named::Name(".*-1"), dots));
}

#[test]
fn patterns_that_make_no_sense_are_refused() {
    use MatchKind::{Filter, Literal, Prefix, Regex};
    assert_eq!(
        Pattern::new(Literal, "${claim.x}").unwrap_err(),
        RuleError::Placeholder("claim.x".into())
    );
    assert_eq!(
        Pattern::new(Prefix, "a${user}").unwrap_err(),
        RuleError::OpenPrefix
    );
    assert_eq!(Pattern::new(Filter, "a+/b").unwrap_err(), RuleError::Filter);
    assert!(matches!(
        Pattern::new(Regex, "(").unwrap_err(),
        RuleError::Regex(_)
    ));
    assert!(matches!(
        Pattern::new(Regex, "(${user}").unwrap_err(),
        RuleError::Regex(_)
    ));
    let bomb = "a{1000}{1000}";
    assert!(matches!(
        Pattern::new(Regex, bomb).unwrap_err(),
        RuleError::Regex(_)
    ));
}

fn flat_address() -> impl Strategy<Value = String> {
    proptest::collection::vec("[ab]{0,1}", 1..6).prop_map(|levels| levels.join("/"))
}

fn flat_filter() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![2 => "[ab]", 1 => Just("+".to_owned()), 1 => Just("#".to_owned())],
        1..6,
    )
    .prop_map(|levels| levels.join("/"))
}

proptest! {
    #[test]
    fn a_filter_rule_matches_an_address_as_core_matches_it(filter in flat_filter(), text in flat_address()) {
        let core = TopicFilter::new(filter.clone().into()).unwrap()
            .matches(&Address::new(text.clone().into()).unwrap());
        prop_assert_eq!(address(MatchKind::Filter, &filter, &text), core);
    }

    #[test]
    fn what_a_rule_covers_it_matches_address_by_address(rule in flat_filter(), asked in flat_filter(), text in flat_address()) {
        let inside = TopicFilter::new(asked.clone().into()).unwrap()
            .matches(&Address::new(text.clone().into()).unwrap());
        if inside && filter(&rule, &asked) {
            prop_assert!(address(MatchKind::Filter, &rule, &text), "{} covers {} but not {}", rule, asked, text);
        }
    }

    #[test]
    fn filters_overlap_when_they_have_an_address_in_common(rule in flat_filter(), asked in flat_filter(), text in flat_address()) {
        let inside = TopicFilter::new(asked.clone().into()).unwrap()
            .matches(&Address::new(text.clone().into()).unwrap());
        let overlaps = Pattern::new(MatchKind::Filter, &rule).unwrap().overlaps(&asked, values());
        if inside && address(MatchKind::Filter, &rule, &text) {
            prop_assert!(overlaps, "{} and {} share {}", rule, asked, text);
        }
        if filter(&rule, &asked) {
            prop_assert!(overlaps, "{} covers {}", rule, asked);
        }
    }

    #[test]
    fn a_value_is_exactly_one_level(value in "[a/+#%250FB]{1,8}") {
        let level = as_level(&value).into_owned();
        prop_assert_eq!(levels(level.as_bytes()).count(), 1);
        prop_assert!(Address::new(level.into()).is_ok());
    }

    #[test]
    fn different_values_are_different_levels(one in "[a/%25F]{1,8}", other in "[a/%25F]{1,8}") {
        prop_assert_eq!(one == other, as_level(&one) == as_level(&other));
    }
}

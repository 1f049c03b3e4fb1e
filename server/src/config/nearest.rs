//! The known name that somebody who typed an unknown one may have meant.
//!
//! Owns: how near is near. A name is compared as a whole, with the end of each known one (`mqtt` is meant
//! as `gateway.mqtt`), and by its last part alone (`server.receive_max`).
//! Never: guesses when nothing is near.

/// What it costs that only the last parts are compared: as many letters.
const LAST_PART_COST: usize = 3;

/// The nearest of `known` to `name`, both with `.` between their parts.
pub(super) fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let scored = known.iter().filter_map(|candidate| {
        let cost = cost(name, candidate)?;
        // Of equally near ones that with the least before it, then the first.
        Some((cost, candidate.matches('.').count(), candidate.as_str()))
    });
    scored
        .min_by_key(|(cost, depth, _)| (*cost, *depth))
        .map(|(_, _, candidate)| candidate)
}

/// How far a candidate is, if it is near at all.
fn cost(name: &str, candidate: &str) -> Option<usize> {
    let parts: Vec<&str> = candidate.split('.').collect();
    let count = name.split('.').count();
    let end = parts[parts.len().saturating_sub(count)..].join(".");
    let whole = distance(&end, name);
    let by_end = (whole <= near(name)).then_some(whole);
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let (own, theirs) = (last(name), last(candidate));
    let by_last = distance(&own, &theirs);
    let by_last = (count > 1 && parts.len() > 1 && by_last <= near(&own) / 2)
        .then_some(by_last + LAST_PART_COST);
    by_end.into_iter().chain(by_last).min()
}

/// How many letters of a name may be wrong.
fn near(name: &str) -> usize {
    match name.chars().count() {
        0..=3 => 1,
        letters => (letters / 3).max(2),
    }
}

/// How many letters must be inserted, deleted or replaced to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, candidate) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *candidate);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_changed_letters() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("address", "adress"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn a_name_is_known_by_its_end_and_by_its_last_part() {
        let known = [
            "auth",
            "auth.verify_max",
            "log",
            "log.level",
            "node",
            "node.dev",
            "gateway.mqtt",
            "gateway.mqtt.receive_max",
        ]
        .map(str::to_owned);
        for (typed, meant) in [
            ("mqtt", Some("gateway.mqtt")),
            ("dev", Some("node.dev")),
            ("log.levle", Some("log.level")),
            ("mqtt.recieve_maximum", Some("gateway.mqtt.receive_max")),
            ("server.receive_max", Some("gateway.mqtt.receive_max")),
            ("tls", None),
            ("no_such_section.key", None),
        ] {
            assert_eq!(nearest(typed, &known), meant, "{typed}");
        }
    }
}

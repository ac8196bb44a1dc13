//! What `ostler job plan` says of devices: every candidate of every request.
//!
//! ```text
//!   group web[0], task train: gpu, 2 instances
//!     + nvidia/gpu/H100: assigns 0, 1, NUMA node 0 (score 50 of 100)
//!     = nvidia/gpu/A100: fits; nvidia/gpu/H100 has the higher score (score 0 of 100)
//!     - nvidia/gpu/T4: 2 healthy, 0 free; …
//!       not asked for: ostler/file/files
//! ```

use std::fmt::Write as _;

use crate::terminal::one_line;
use ostler_agent::{DeviceCandidate, DeviceExplanation, DeviceOutcome};
use ostler_model::words::count_noun;

/// Most groups of other names that are listed; the rest of them is counted.
const OTHERS_SHOWN: usize = 8;

/// Every request for devices with its candidates, indented to stand below a headline.
pub(super) fn text(devices: &[DeviceExplanation]) -> String {
    let mut text = String::new();
    for DeviceExplanation { group, index, task, explained } in devices {
        let name = one_line(&explained.request);
        let count = count_noun(explained.count, "instance");
        let _ = writeln!(text, "  group {group}[{index}], task {task}: {name}, {count}");
        if explained.candidates.is_empty() {
            text.push_str("    - the node has no devices\n");
        }
        let (others, named): (Vec<_>, Vec<_>) = explained
            .candidates
            .iter()
            .partition(|candidate| candidate.outcome == DeviceOutcome::OtherName);
        for candidate in named {
            write_candidate(&mut text, candidate, explained.score_max);
        }
        if !others.is_empty() {
            let shown: Vec<String> = others
                .iter()
                .take(OTHERS_SHOWN)
                .map(|other| one_line(&other.group.to_string()))
                .collect();
            let more = match others.len().saturating_sub(shown.len()) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let _ = writeln!(text, "      not asked for: {}{more}", shown.join(", "));
        }
    }
    text
}

fn write_candidate(text: &mut String, candidate: &DeviceCandidate, score_max: i64) {
    let DeviceCandidate { group, outcome, why, score, free: _, affinities } = candidate;
    let mark = match outcome {
        DeviceOutcome::Chosen => '+',
        DeviceOutcome::Fits => '=',
        DeviceOutcome::Unfit | DeviceOutcome::OtherName => '-',
    };
    let _ = write!(text, "    {mark} {}: {}", one_line(&group.to_string()), one_line(why));
    if let Some(score) = score.filter(|_| score_max > 0) {
        let _ = write!(text, " (score {score} of {score_max})");
    }
    text.push('\n');
    for affinity in affinities {
        let (rule, weight) = (one_line(&affinity.rule), affinity.weight);
        let _ = if affinity.holds {
            writeln!(text, "        affinity {weight:+} holds: {rule}")
        } else {
            writeln!(text, "        affinity {weight:+} does not: {}", one_line(&affinity.why))
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn every_candidate_is_told_with_its_reason_and_others_are_only_named() {
        let candidate = |name: &str, outcome: &str, why: &str, score: Option<i64>| {
            json!({
                "group": { "vendor": "acme", "type": "gpu", "name": name },
                "outcome": outcome,
                "why": why,
                "score": score,
                "free": null,
                "affinities": [],
            })
        };
        let mut large = candidate("large", "chosen", "assigns 0, 1, NUMA node 0", Some(50));
        large["affinities"] = json!([
            { "rule": "${device.model} = large", "weight": 50, "holds": true, "why": "" },
            { "rule": "x", "weight": -10, "holds": false, "why": "x is false: \u{1b}" },
        ]);
        let explained: DeviceExplanation = serde_json::from_value(json!({
            "group": "web",
            "index": 3,
            "task": "train",
            "request": "gpu",
            "count": 2,
            "chosen": null,
            "numa_node": 0,
            "score_max": 60,
            "candidates": [
                large,
                candidate("small", "unfit", "1 healthy, 1 free", None),
                candidate("else", "other-name", "not what was asked for", None),
            ],
        }))
        .unwrap();
        assert_eq!(
            text(&[explained]),
            "  group web[3], task train: gpu, 2 instances\n\
             \u{20}   + acme/gpu/large: assigns 0, 1, NUMA node 0 (score 50 of 60)\n\
             \u{20}       affinity +50 holds: ${device.model} = large\n\
             \u{20}       affinity -10 does not: x is false: \\u{1b}\n\
             \u{20}   - acme/gpu/small: 1 healthy, 1 free\n\
             \u{20}     not asked for: acme/gpu/else\n"
        );
    }
}

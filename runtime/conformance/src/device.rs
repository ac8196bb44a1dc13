//! Rules for device plugins.

use std::collections::BTreeSet;

use super::bench::{Bench, Said, Surroundings, said};
use super::report::Findings;
use super::{Subject, rules};
use ostler_device::source::DeviceFingerprint;
use ostler_model::device::{GroupKey, HealthState};
use ostler_model::grants::answers::Answers;
use ostler_model::plugin::Manifest;
use ostler_model::ports::PluginCallError;
use ostler_model::resources::AllocatedDevice;
use ostler_plugin::Plugin;
use ostler_plugin::device::DevicePlugin;

/// Groups whose reservation is looked at.
const GROUPS_TRIED: usize = 16;
/// Ids in a claim of more than any node has.
const MANY_IDS: usize = 5_000;

pub(super) async fn check(
    bench: &Bench,
    subject: &Subject,
    manifest: &Manifest,
    plugin: &DevicePlugin,
    findings: &mut Findings,
) {
    findings.outcome(rules::ORDER, out_of_order(plugin).await);
    let found = match said("", plugin.found().await) {
        Ok(Said::Yes(found)) => found,
        Ok(Said::No(error)) => {
            findings.warn(rules::FINGERPRINT, format!("cannot: {error}"));
            return findings.skip_rest(manifest.kind, "there is no fingerprint to go by");
        }
        Err(text) => {
            findings.fail(rules::FINGERPRINT, text);
            return findings.skip_rest(manifest.kind, "there is no fingerprint to go by");
        }
    };
    let instances: usize = found.groups.iter().map(|group| group.instances.len()).sum();
    let detail = format!("{} groups with {instances} instances", found.groups.len());
    match found.health.state {
        HealthState::Healthy if found.groups.is_empty() => {
            findings.warn(rules::FINGERPRINT, "it says that it is healthy, and finds nothing");
        }
        HealthState::Healthy => findings.pass(rules::FINGERPRINT, detail),
        state => {
            let why = &found.health.reason;
            findings.pass(rules::FINGERPRINT, format!("{detail}; {state:?}: {why}"));
        }
    }
    findings.outcome(rules::STABLE, stable(bench, subject, manifest, plugin, &found).await);
    answers(subject, plugin, &found, findings).await;
    reserve(plugin, &found, findings).await;
    findings.outcome(rules::UNKNOWN_DEVICE, unknown(plugin, &found).await);
    findings.outcome(rules::ODD_CLAIMS, odd_claims(plugin, &found).await);
    findings.outcome(rules::RELEASE, release(plugin, &found).await);
    stats(plugin, &found, findings).await;
}

fn strange_key() -> GroupKey {
    let strange = || "ostler-check-none".to_owned();
    GroupKey { vendor: strange(), kind: strange(), name: strange() }
}

fn claims(found: &DeviceFingerprint) -> impl Iterator<Item = AllocatedDevice> {
    found.groups.iter().take(GROUPS_TRIED).filter_map(|group| {
        let id = group.instances.first()?.id.clone();
        Some(AllocatedDevice { group: group.key.clone(), ids: vec![id] })
    })
}

/// Every other function before any fingerprint.
async fn out_of_order(plugin: &DevicePlugin) -> Result<String, String> {
    let nothing = AllocatedDevice { group: strange_key(), ids: vec!["none".to_owned()] };
    said("before a fingerprint", plugin.stats().await)?;
    said("before a fingerprint", plugin.release(&nothing).await)?;
    said("before a fingerprint", plugin.reserved(&nothing).await)?;
    Ok("stats, release and reserve answer before any fingerprint".to_owned())
}

type Ids = BTreeSet<(String, String)>;

fn ids(found: &DeviceFingerprint) -> Ids {
    let of = |group: &ostler_model::device::DeviceGroup| {
        let key = group.key.to_string();
        group.instances.iter().map(move |one| (key.clone(), one.id.clone())).collect::<Vec<_>>()
    };
    found.groups.iter().flat_map(of).collect()
}

async fn stable(
    bench: &Bench,
    subject: &Subject,
    manifest: &Manifest,
    plugin: &DevicePlugin,
    found: &DeviceFingerprint,
) -> Result<String, String> {
    let first = ids(found);
    let again = plugin.found().await.map_err(|error| format!("the second time: {error}"))?;
    differ("the second time", &first, &ids(&again))?;
    let elsewhere = bench.load(subject, manifest, Surroundings::Elsewhere).await;
    if let Ok(Plugin::Device(plugin)) = elsewhere {
        let what = "at another time, with other random numbers";
        let found = plugin.found().await.map_err(|error| format!("{what}: {error}"))?;
        differ(what, &first, &ids(&found))?;
    }
    Ok(format!("{} ids are the same three times, also at another time", first.len()))
}

fn differ(what: &str, first: &Ids, again: &Ids) -> Result<(), String> {
    match first.symmetric_difference(again).next() {
        None => Ok(()),
        Some((group, id)) => Err(format!("{what} other instances are found, for one {group} {id}")),
    }
}

/// Would an agent act upon its answers? Also what it would not is tried here.
async fn answers(
    subject: &Subject,
    plugin: &DevicePlugin,
    found: &DeviceFingerprint,
    findings: &mut Findings,
) {
    let answers = Answers { name: &subject.name, grants: &subject.grants };
    let groups = answers.groups(found.groups.iter().map(|group| &group.key));
    let mut refused: Vec<String> = groups.err().iter().map(ToString::to_string).collect();
    for claim in claims(found) {
        let Ok(given) = plugin.reserved(&claim).await else { continue };
        if let Err(error) = plugin.granted(given).await {
            refused.push(error.to_string());
            break;
        }
    }
    match refused.is_empty() {
        true => findings.pass(rules::ANSWERS, "its answers cause only what it may"),
        false => findings.warn(rules::ANSWERS, refused.join("\n")),
    }
}

async fn reserve(plugin: &DevicePlugin, found: &DeviceFingerprint, findings: &mut Findings) {
    let mut tried = 0;
    for claim in claims(found) {
        let what = format!("{} {}", claim.group, claim.ids.join(","));
        let first = match said(&what, plugin.reserved(&claim).await) {
            Ok(Said::Yes(first)) => first,
            Ok(Said::No(error)) => {
                return findings
                    .warn(rules::RESERVE, format!("{what} is found and refused: {error}"));
            }
            Err(text) => return findings.fail(rules::RESERVE, text),
        };
        match plugin.reserved(&claim).await {
            Ok(again) if again == first => tried += 1,
            Ok(_) => {
                return findings
                    .fail(rules::RESERVE, format!("{what}: the second answer is another"));
            }
            Err(error) => {
                return findings.fail(rules::RESERVE, format!("{what}, the second time: {error}"));
            }
        }
    }
    match tried {
        0 => findings.skip(rules::RESERVE, "no device was found"),
        _ => findings.pass(rules::RESERVE, format!("{tried} devices, each the same twice")),
    }
}

async fn unknown(plugin: &DevicePlugin, found: &DeviceFingerprint) -> Result<String, String> {
    let strange = AllocatedDevice { group: strange_key(), ids: vec!["none".to_owned()] };
    let gone = claims(found)
        .map(|claim| AllocatedDevice { ids: vec!["ostler-check-none".to_owned()], ..claim });
    let (mut refusals, mut not_found) = (0, true);
    for claim in gone.chain([strange]) {
        let what = format!("{} {}", claim.group, claim.ids.join(","));
        match said(&what, plugin.reserved(&claim).await)? {
            Said::Yes(_) => return Err(format!("{what} was never found and is reserved")),
            Said::No(error) => {
                not_found &= matches!(error, PluginCallError::NotFound(_));
                refusals += 1;
            }
        }
    }
    let how = if not_found { "as not-found" } else { "with other errors than not-found" };
    Ok(format!("{refusals} devices that were never found are refused {how}"))
}

async fn odd_claims(plugin: &DevicePlugin, found: &DeviceFingerprint) -> Result<String, String> {
    let group = found.groups.first().map_or_else(strange_key, |group| group.key.clone());
    let claim = |ids: Vec<String>| AllocatedDevice { group: group.clone(), ids };
    let same = found.groups.first().and_then(|group| group.instances.first());
    let same = same.map_or_else(|| "x".to_owned(), |one| one.id.clone());
    let odd = [
        ("no id", claim(vec![])),
        ("an empty id", claim(vec![String::new()])),
        ("one id twice", claim(vec![same.clone(), same])),
        ("a path", claim(vec!["../../etc/passwd".to_owned(), "/dev/null\0x".to_owned()])),
        ("a long id", claim(vec!["x".repeat(64 << 10)])),
        ("many ids", claim((0..MANY_IDS).map(|number| number.to_string()).collect())),
    ];
    for (what, claim) in &odd {
        said(&format!("a claim with {what}"), plugin.reserved(claim).await)?;
        said(&format!("a claim with {what}"), plugin.release(claim).await)?;
    }
    Ok(format!("{} odd claims are answered", odd.len()))
}

async fn release(plugin: &DevicePlugin, found: &DeviceFingerprint) -> Result<String, String> {
    let mut tried = 0;
    for claim in claims(found) {
        for time in ["once", "twice"] {
            let what = format!("{} {}, {time}", claim.group, claim.ids.join(","));
            if let Said::No(error) = said(&what, plugin.release(&claim).await)?
                && !matches!(error, PluginCallError::NotFound(_))
            {
                return Err(format!("{what}: {error}"));
            }
        }
        tried += 1;
    }
    Ok(format!("{tried} devices can be released twice"))
}

async fn stats(plugin: &DevicePlugin, found: &DeviceFingerprint, findings: &mut Findings) {
    let groups = match said("", plugin.stats().await) {
        Ok(Said::Yes(groups)) => groups,
        Ok(Said::No(error)) => {
            return findings.skip(rules::STATS, format!("it measures nothing now: {error}"));
        }
        Err(text) => return findings.fail(rules::STATS, text),
    };
    let own = ids(found);
    for group in &groups {
        for id in group.instances.keys() {
            let key = (group.key.to_string(), id.clone());
            if !own.contains(&key) {
                let text = format!("measures {} {}, which fingerprint does not find", key.0, key.1);
                return findings.fail(rules::STATS, text);
            }
        }
    }
    findings.pass(rules::STATS, format!("{} groups, all of them its own", groups.len()));
}

//! Rules for device plugins.

use std::collections::BTreeSet;

use super::bench::{Bench, BenchSurroundings, CallReply, call_reply};
use super::report::Findings;
use super::{Subject, rules};
use ostler_device::source::DeviceFingerprint;
use ostler_model::device::{GroupKey, HealthState};
use ostler_model::grants::answers::AnswerCheck;
use ostler_model::plugin::PluginManifest;
use ostler_model::ports::PluginCallError;
use ostler_model::resources::AllocatedDevice;
use ostler_plugin::Plugin;
use ostler_plugin::device::LoadedDevice;

/// The number of groups whose reservation is tried.
const GROUPS_TRIED: usize = 16;
/// The number of ids in a claim that is larger than on any node.
const MANY_IDS: usize = 5_000;

pub(super) async fn check(
    bench: &Bench,
    subject: &Subject,
    manifest: &PluginManifest,
    plugin: &LoadedDevice,
    findings: &mut Findings,
) {
    findings.outcome(rules::ORDER, call_out_of_order(plugin).await);
    let found = match call_reply("", plugin.raw_fingerprint().await) {
        Ok(CallReply::Yes(found)) => found,
        Ok(CallReply::No(error)) => {
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
    findings.outcome(rules::STABLE, check_stable(bench, subject, manifest, plugin, &found).await);
    check_answers(subject, plugin, &found, findings).await;
    reserve(plugin, &found, findings).await;
    findings.outcome(rules::UNKNOWN_DEVICE, reserve_unknown(plugin, &found).await);
    findings.outcome(rules::ODD_CLAIMS, reserve_odd_claims(plugin, &found).await);
    findings.outcome(rules::RELEASE, release(plugin, &found).await);
    stats(plugin, &found, findings).await;
}

fn strange_key() -> GroupKey {
    let strange = || "ostler-check-none".to_owned();
    GroupKey { vendor: strange(), kind: strange(), name: strange() }
}

fn sample_claims(found: &DeviceFingerprint) -> impl Iterator<Item = AllocatedDevice> {
    found.groups.iter().take(GROUPS_TRIED).filter_map(|group| {
        let id = group.instances.first()?.id.clone();
        Some(AllocatedDevice { group: group.key.clone(), ids: vec![id] })
    })
}

/// Call every other function before any fingerprint.
async fn call_out_of_order(plugin: &LoadedDevice) -> Result<String, String> {
    let nothing = AllocatedDevice { group: strange_key(), ids: vec!["none".to_owned()] };
    call_reply("before a fingerprint", plugin.stats().await)?;
    call_reply("before a fingerprint", plugin.release(&nothing).await)?;
    call_reply("before a fingerprint", plugin.raw_reservation(&nothing).await)?;
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

async fn check_stable(
    bench: &Bench,
    subject: &Subject,
    manifest: &PluginManifest,
    plugin: &LoadedDevice,
    found: &DeviceFingerprint,
) -> Result<String, String> {
    let first = ids(found);
    let again =
        plugin.raw_fingerprint().await.map_err(|error| format!("the second time: {error}"))?;
    check_same("the second time", &first, &ids(&again))?;
    let elsewhere = bench.load(subject, manifest, BenchSurroundings::Elsewhere).await;
    if let Ok(Plugin::Device(plugin)) = elsewhere {
        let what = "at another time, with other random numbers";
        let found = plugin.raw_fingerprint().await.map_err(|error| format!("{what}: {error}"))?;
        check_same(what, &first, &ids(&found))?;
    }
    Ok(format!("{} ids are the same three times, also at another time", first.len()))
}

fn check_same(what: &str, first: &Ids, again: &Ids) -> Result<(), String> {
    match first.symmetric_difference(again).next() {
        None => Ok(()),
        Some((group, id)) => Err(format!("{what} other instances are found, for one {group} {id}")),
    }
}

/// Check whether an agent would act upon the answers. Answers that it would not act upon are
/// tried too.
async fn check_answers(
    subject: &Subject,
    plugin: &LoadedDevice,
    found: &DeviceFingerprint,
    findings: &mut Findings,
) {
    let answers = AnswerCheck { name: &subject.name, grants: &subject.grants };
    let groups = answers.check_groups(found.groups.iter().map(|group| &group.key));
    let mut refused: Vec<String> = groups.err().iter().map(ToString::to_string).collect();
    for claim in sample_claims(found) {
        let Ok(given) = plugin.raw_reservation(&claim).await else { continue };
        if let Err(error) = plugin.check_reservation(given).await {
            refused.push(error.to_string());
            break;
        }
    }
    if refused.is_empty() {
        findings.pass(rules::ANSWERS, "its answers cause only what it may");
    } else {
        findings.warn(rules::ANSWERS, refused.join("\n"));
    }
}

async fn reserve(plugin: &LoadedDevice, found: &DeviceFingerprint, findings: &mut Findings) {
    let mut tried = 0;
    for claim in sample_claims(found) {
        let what = format!("{} {}", claim.group, claim.ids.join(","));
        let first = match call_reply(&what, plugin.raw_reservation(&claim).await) {
            Ok(CallReply::Yes(first)) => first,
            Ok(CallReply::No(error)) => {
                return findings
                    .warn(rules::RESERVE, format!("{what} is found and refused: {error}"));
            }
            Err(text) => return findings.fail(rules::RESERVE, text),
        };
        match plugin.raw_reservation(&claim).await {
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

async fn reserve_unknown(
    plugin: &LoadedDevice,
    found: &DeviceFingerprint,
) -> Result<String, String> {
    let strange = AllocatedDevice { group: strange_key(), ids: vec!["none".to_owned()] };
    let gone = sample_claims(found)
        .map(|claim| AllocatedDevice { ids: vec!["ostler-check-none".to_owned()], ..claim });
    let (mut refusals, mut not_found) = (0, true);
    for claim in gone.chain([strange]) {
        let what = format!("{} {}", claim.group, claim.ids.join(","));
        match call_reply(&what, plugin.raw_reservation(&claim).await)? {
            CallReply::Yes(_) => return Err(format!("{what} was never found and is reserved")),
            CallReply::No(error) => {
                not_found &= matches!(error, PluginCallError::NotFound(_));
                refusals += 1;
            }
        }
    }
    let how = if not_found { "as not-found" } else { "with other errors than not-found" };
    Ok(format!("{refusals} devices that were never found are refused {how}"))
}

async fn reserve_odd_claims(
    plugin: &LoadedDevice,
    found: &DeviceFingerprint,
) -> Result<String, String> {
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
        call_reply(&format!("a claim with {what}"), plugin.raw_reservation(claim).await)?;
        call_reply(&format!("a claim with {what}"), plugin.release(claim).await)?;
    }
    Ok(format!("{} odd claims are answered", odd.len()))
}

async fn release(plugin: &LoadedDevice, found: &DeviceFingerprint) -> Result<String, String> {
    let mut tried = 0;
    for claim in sample_claims(found) {
        for time in ["once", "twice"] {
            let what = format!("{} {}, {time}", claim.group, claim.ids.join(","));
            if let CallReply::No(error) = call_reply(&what, plugin.release(&claim).await)?
                && !matches!(error, PluginCallError::NotFound(_))
            {
                return Err(format!("{what}: {error}"));
            }
        }
        tried += 1;
    }
    Ok(format!("{tried} devices can be released twice"))
}

async fn stats(plugin: &LoadedDevice, found: &DeviceFingerprint, findings: &mut Findings) {
    let groups = match call_reply("", plugin.stats().await) {
        Ok(CallReply::Yes(groups)) => groups,
        Ok(CallReply::No(error)) => {
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

//! Every key of a job has somebody who reads it: changed alone, it changes the job, or it is told or refused
//! by its name. What neither does is listed here, with the reason.
//!
//! A key has one description for HCL and JSON, so changing it in JSON tells of both.

use serde_json::{Value as Json, json};

use super::super::{BlockSchema, Field, FieldBounds, FieldShape, Keys as _};
use super::JobKeys;
use super::samples::job_of_all_keys;
use crate::json::{ENVELOPE, EnvelopeRule};
use crate::{JobBody, nomad_json, read_request};

/// Keys that change nothing, and why.
const WITHOUT_EFFECT: &[(&str, &str, &str)] = &[
    ("a job", "Update", "each group has its own, which goes before it"),
    ("a job", "Migrate", "each group has its own, which goes before it"),
    ("a job", "Reschedule", "each group has its own, which goes before it"),
    ("a group", "RestartPolicy", "each task has its own, which goes before it"),
    ("a service", "OnUpdate", "each check has its own, which goes before it"),
    ("ephemeral_disk", "SizeStated", "a size that is not the default was written anyway"),
    (
        "a network",
        "MBits",
        "told of a file alone: clients fill it in, and nobody reserves bandwidth",
    ),
    (
        "a network of a task",
        "MBits",
        "told of a file alone: clients fill it in, and nobody reserves bandwidth",
    ),
];

/// Keys that only the keeper of jobs says, and what they are: given back, they decide nothing.
const OF_THE_KEEPER: &[(&str, &str, &str)] = &[
    ("a job", "NomadTokenID", "who registered it"),
    ("a job", "Status", "what became of it"),
    ("a job", "StatusDescription", "what became of it"),
    ("a job", "Stable", "what became of it; /v1/job/ID/stable changes it"),
    ("a job", "Version", "counted by the agent"),
    ("a job", "SubmitTime", "when it came"),
    ("a job", "CreateIndex", "counted by the agent"),
    ("a job", "ModifyIndex", "counted by the agent"),
    (
        "a job",
        "JobModifyIndex",
        "counted by the agent; beside the job, it is what EnforceIndex asks for",
    ),
    ("a job", "Origin", "who gave it"),
    ("a job", "Places", "what became of it"),
    ("scaling", "ID", "given by the agent"),
    ("scaling", "Namespace", "that of the job"),
    ("scaling", "CreateIndex", "counted by the agent"),
    ("scaling", "ModifyIndex", "counted by the agent"),
];

/// What is there of a job: all that is read of it, and all that is said.
fn outcome(job: &Json) -> Result<(Json, bool, String), String> {
    let text = json!({ "Job": job }).to_string();
    match read_request(text.as_bytes(), &[]) {
        Ok(JobBody { parsed, stop }) => {
            Ok((nomad_json(&parsed.job), stop, parsed.warnings.to_string()))
        }
        Err(found) => Err(found.to_string()),
    }
}

/// Another value of the same form.
fn other(schema: &BlockSchema, field: &Field, value: &Json) -> Json {
    let pick = |words: [&str; 2]| json!(if *value == words[0] { words[1] } else { words[0] });
    match (schema.what, field.json) {
        ("a job", "Type") => pick(["service", "batch"]),
        ("a task", "KillSignal") | (_, "ChangeSignal") => pick(["SIGUSR1", "SIGUSR2"]),
        ("a network", "Mode") => pick(["bridge", "cni/other"]),
        ("a network of a task", "Mode") => pick(["host", "bridge"]),
        ("a check", "Protocol") => pick(["https", "http"]),
        ("a check", "Method") => pick(["PUT", "GET"]),
        ("a check", "Path") | ("a volume mount", "Destination") => pick(["/x", "/y"]),
        ("dns", "Servers") => json!(["192.0.2.54"]),
        ("an artifact", "GetterSource") => json!("https://host/y"),
        (_, "Perms") => pick(["0600", "0640"]),
        (_, "VaultGrace") => json!(7),
        (_, "SourceDir") => json!("/elsewhere"),
        _ => other_of_shape(field, value),
    }
}

fn other_of_shape(field: &Field, value: &Json) -> Json {
    match (field.shape, field.bounds) {
        (FieldShape::Word(words), _) => {
            json!(words.iter().find(|word| value != **word).expect("another word"))
        }
        (FieldShape::Bool, _) => json!(!value.as_bool().unwrap_or_default()),
        (FieldShape::Integer, FieldBounds::Whole(_, most) | FieldBounds::NotZero(_, most)) => {
            let number = value.as_i64().unwrap_or_default();
            json!(if number < most { number + 1 } else { number - 1 })
        }
        (FieldShape::Integer, _) => json!(value.as_i64().unwrap_or_default() + 1),
        (FieldShape::Duration, _) => json!(value.as_u64().unwrap_or_default() + 1_000_000_000),
        (FieldShape::TextList | FieldShape::TextLists, _) => json!(["other"]),
        (FieldShape::TextMap, _) => json!({"OTHER": "text"}),
        (FieldShape::TextListMap, _) => json!({"Other": ["one"]}),
        (FieldShape::Free, _) => json!({"other": 7}),
        _ => json!("other"),
    }
}

fn is_of_form(field: &Field, said: &str) -> bool {
    said.contains("; valid values are ") || said.contains(&format!(": {} must be a", field.json))
}

fn is_listed(list: &[(&str, &str, &str)], schema: &BlockSchema, field: &Field) -> bool {
    list.iter().any(|(what, key, _)| *what == schema.what && *key == field.json)
}

/// Changes every key of the block at `path`, one at a time, and says which of them nobody noticed.
fn unnoticed(whole: &Json, path: &str, schema: &'static BlockSchema, found: &mut Vec<String>) {
    let before = outcome(whole);
    for field in schema.fields.iter().filter(|field| !field.json.is_empty()) {
        if is_listed(WITHOUT_EFFECT, schema, field) {
            continue;
        }
        let at = format!("{path}/{}", field.json);
        match field.shape {
            FieldShape::Unsupported { .. } => continue,
            FieldShape::Served => {
                if !is_listed(OF_THE_KEEPER, schema, field) {
                    found.push(format!("{at} has no reason"));
                }
                continue;
            }
            FieldShape::Block { schema, .. } => {
                for inner in blocks_at(whole, &at) {
                    unnoticed(whole, &inner, schema, found);
                }
                continue;
            }
            _ => {}
        }
        let mut changed = whole.clone();
        let members = changed.pointer_mut(path).and_then(Json::as_object_mut).expect("a block");
        let now = members.get(field.json).cloned().unwrap_or_default();
        members.insert(field.json.to_owned(), other(schema, field, &now));
        match outcome(&changed) {
            // Said of a form that the key does not take: nothing is known of who reads it.
            Err(said) if is_of_form(field, &said) => found.push(format!("{at}: {said}")),
            // Somebody read it, and it does not go with something else.
            Err(_) => {}
            after if after != before => {}
            _ => found.push(format!("{at}: {now} changes nothing")),
        }
    }
}

/// The blocks that stand at a path: itself, the elements of a list, or the members of blocks by name.
fn blocks_at(whole: &Json, path: &str) -> Vec<String> {
    match whole.pointer(path) {
        Some(Json::Array(items)) => (0..items.len()).map(|at| format!("{path}/{at}")).collect(),
        Some(Json::Object(members)) if members.contains_key("x") => vec![format!("{path}/x")],
        Some(Json::Object(_)) => vec![path.to_owned()],
        _ => Vec::new(),
    }
}

#[test]
fn every_key_of_a_job_changes_it_or_is_told_or_has_a_reason() {
    let mut whole = job_of_all_keys();
    // The directory is that of a job which refers to it.
    whole["TaskGroups"][0]["Tasks"][0]["Env"] = json!({"DIR": "${job.dir}"});
    assert!(outcome(&whole).is_ok(), "{:?}", outcome(&whole));
    let mut found = Vec::new();
    unnoticed(&whole, "", JobKeys::SCHEMA, &mut found);
    assert_eq!(found, Vec::<String>::new());
}

/// Hands out the whole with one key of the block at `path` changed, for every key.
fn each_change(
    whole: &Json,
    path: &str,
    schema: &'static BlockSchema,
    look: &mut dyn FnMut(&str, &Json),
) {
    for field in schema.fields.iter().filter(|field| !field.json.is_empty()) {
        let at = format!("{path}/{}", field.json);
        match field.shape {
            FieldShape::Unsupported { .. } | FieldShape::Served => {}
            FieldShape::Block { schema, .. } => {
                for inner in blocks_at(whole, &at) {
                    each_change(whole, &inner, schema, look);
                }
            }
            _ => {
                let mut changed = whole.clone();
                let block = changed.pointer_mut(path).and_then(Json::as_object_mut);
                let members = block.expect("a block");
                let now = members.get(field.json).cloned().unwrap_or_default();
                members.insert(field.json.to_owned(), other(schema, field, &now));
                look(&at, &changed);
            }
        }
    }
}

#[test]
fn every_key_that_changes_is_told_by_lines_of_which_no_two_are_the_same() {
    let read = |job: &Json| {
        let text = json!({ "Job": job }).to_string();
        read_request(text.as_bytes(), &[]).ok().map(|body| body.parsed.job)
    };
    let whole = job_of_all_keys();
    let before = read(&whole).expect("a job");
    let (mut told, mut wrong) = (0, Vec::new());
    each_change(&whole, "", JobKeys::SCHEMA, &mut |at, changed| {
        let after = read(changed).filter(|after| nomad_json(after) != nomad_json(&before));
        let Some(after) = after else { return };
        let lines = crate::changes(&before, &after, (&before, &after));
        // What went and came again as it was says nothing either.
        let alike = lines.iter().map(|line| line.replace(": removed", ": added"));
        let unlike = alike.collect::<std::collections::BTreeSet<_>>().len();
        if lines.is_empty() || unlike < lines.len() {
            wrong.push(format!("{at}: {lines:#?}"));
        }
        told += 1;
    });
    assert_eq!(wrong, Vec::<String>::new());
    assert!(told > 50, "{told}");
}

#[test]
fn a_key_with_a_reason_is_one_that_there_is() {
    let blocks = super::blocks(JobKeys::SCHEMA);
    for (what, key, _) in WITHOUT_EFFECT.iter().chain(OF_THE_KEEPER) {
        let mut fields = blocks
            .iter()
            .filter(|block| block.schema.what == *what)
            .flat_map(|block| block.schema.fields);
        assert!(fields.any(|field| field.json == *key), "{what}: {key}");
    }
}

#[test]
fn what_stands_beside_a_job_and_is_not_acted_on_is_told_or_refused() {
    let job = json!({"ID": "j", "TaskGroups": [
        {"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}
    ]});
    for (key, unread) in ENVELOPE.iter().filter(|(key, _)| *key != "Job") {
        let text = json!({"Job": job, *key: "x"}).to_string();
        let said = |acted_on: &[&str]| match read_request(text.as_bytes(), acted_on) {
            Ok(read) => read.parsed.warnings.to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(
            said(&[]).contains(key),
            *unread != EnvelopeRule::Ignored,
            "{key}: {}",
            said(&[])
        );
        assert_eq!(said(&[*key]), "", "{key}");
        let of_file = crate::read(text.as_bytes(), std::path::Path::new("-"), None);
        let of_file = of_file.map_or_else(|e| e.to_string(), |read| read.warnings.to_string());
        assert_eq!(of_file.contains(key), *unread != EnvelopeRule::Ignored, "{key}: {of_file}");
        // As clients send what they do not use.
        for nothing in [json!(null), json!(""), json!(0), json!(false)] {
            let text = json!({"Job": job, *key: nothing}).to_string();
            let read = read_request(text.as_bytes(), &[]).unwrap();
            assert_eq!(read.parsed.warnings.to_string(), "", "{text}");
        }
    }
}

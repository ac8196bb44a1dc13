//! Every key of the descriptions is put into a file: once as it should be, once as it should not.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::super::{BlockForm, BlockSchema, Field, FieldBounds, FieldShape, Keys as _};
use super::{AgentKeys, JobKeys, TrustFileKeys};
use crate::{Syntax, nomad_json, parse, parse_agent_config, parse_trust_file};

/// What stands at a key of a job so that all of them together are a job that can be used.
fn sample(schema: &'static BlockSchema, field: &'static Field) -> Json {
    match (schema.what, field.json) {
        ("a job", "ID") => json!("j"),
        ("a job", "Region") => json!("global"),
        ("a job", "Namespace") => json!("default"),
        // A main task cannot have a lifecycle, and no other one can lead.
        ("a group", "Tasks") => {
            let FieldShape::Block { schema: task, .. } = field.shape else { panic!() };
            let (mut main, mut side) = (block(task, "main"), block(task, "side"));
            main.remove("Lifecycle");
            side.remove("Leader");
            // Only checks of a group's services name a task.
            for of in [&mut main, &mut side] {
                let check = &mut of["Services"][0]["Checks"][2];
                check.as_object_mut().unwrap().remove("TaskName");
            }
            // Cores instead of a share.
            main["Resources"]["CPU"] = json!(0);
            main["Resources"]["NUMA"] = json!({"Affinity": "prefer"});
            let of_side = side["Resources"].as_object_mut().unwrap();
            of_side.retain(|key, _| !["Cores", "NUMA"].contains(&key.as_str()));
            json!([main, side])
        }
        // Each has one text, and one way to tell the task.
        ("a task", "Templates") => {
            let FieldShape::Block { schema: template, .. } = field.shape else { panic!() };
            let (mut inline, mut file) = (block(template, ""), block(template, ""));
            inline.retain(|key, _| !["SourcePath", "ChangeSignal"].contains(&key.as_str()));
            let of_inline = ["EmbeddedTmpl", "ChangeScript", "Envvars"];
            file.retain(|key, _| !of_inline.contains(&key.as_str()));
            inline.insert("ChangeMode".to_owned(), json!("script"));
            file.insert("ChangeMode".to_owned(), json!("signal"));
            json!([inline, file])
        }
        (_, "ChangeSignal") => json!("SIGUSR1"),
        (_, "LeftDelim") => json!("[["),
        (_, "Perms") => json!("0600"),
        // Read, and without any meaning.
        (_, "VaultGrace") => json!(0),
        ("a network", "Mode") => json!("bridge"),
        ("a network of a task", "Mode") => json!("host"),
        (_, "MBits" | "DiskMB" | "IOPS") => json!(0),
        ("dns", "Servers") => json!(["192.0.2.53"]),
        ("a volume mount", "Destination") => json!("/x"),
        ("a network" | "a network of a task", "DynamicPorts") => json!([{"Label": "q", "To": 7}]),
        // All together have at most 100 percent, and the count is between least and most.
        ("scaling", "Type") => json!("horizontal"),
        ("scaling", "Target") => json!({"Namespace": "default", "Job": "j", "Group": "x"}),
        ("a service", "Provider") => json!("nomad"),
        ("a service" | "a check", "PortLabel") => json!("x"),
        ("a check", "Path") => json!("/x"),
        ("a check", "Method") => json!("PUT"),
        ("a check", "Interval") => json!(9_000_000_000_u64),
        ("an artifact", "GetterSource") => json!("https://host/x"),
        ("an artifact", "GetterOptions") => json!({"checksum": format!("md5:{}", "0".repeat(32))}),
        ("a check", "AddressMode") => json!("host"),
        ("a check", "Protocol") => json!("https"),
        ("a check", "TLSServerName") => json!("x.example"),
        ("a check", "TaskName") => json!("main"),
        ("a service", "Checks") => checks(field),
        (_, "Operand") => json!("regexp"),
        (_, "KillSignal") => json!("SIGINT"),
        (_, "HealthyDeadline") => json!(9_000_000_000_u64),
        (_, "ProgressDeadline") => json!(600_000_000_000_u64),
        ("reschedule", "Attempts") => json!(0),
        _ => of_shape(field),
    }
}

/// A check of each kind with all its keys.
fn checks(field: &'static Field) -> Json {
    let FieldShape::Block { schema, .. } = field.shape else { panic!() };
    let of_kind = |kind: &str, without: &[&str]| {
        let mut check = block(schema, "");
        check.retain(|key, _| !without.contains(&key.as_str()));
        check.insert("Type".to_owned(), kind.into());
        check.insert("Name".to_owned(), kind.into());
        Json::Object(check)
    };
    let http = ["Path", "Method", "Protocol", "Header", "Body"];
    let (grpc, script) = (["GRPCService", "GRPCUseTLS"], ["Command", "Args", "TaskName"]);
    let tls = ["TLSSkipVerify", "TLSServerName"];
    let counts = ["SuccessBeforePassing", "FailuresBeforeCritical", "FailuresBeforeWarning"];
    let port = ["PortLabel", "AddressMode"];
    json!([
        of_kind("http", &[&grpc[..], &script].concat()),
        of_kind("grpc", &[&http[..], &script].concat()),
        of_kind("script", &[&http[..], &grpc, &tls, &counts, &port].concat()),
    ])
}

fn of_shape(field: &'static Field) -> Json {
    match (field.shape, field.bounds) {
        (FieldShape::Text, _) => json!("x"),
        (FieldShape::Word(words), _) => json!(words[0]),
        (
            FieldShape::Integer,
            FieldBounds::Whole(least, most) | FieldBounds::NotZero(least, most),
        ) => {
            json!(1.clamp(least, most))
        }
        (FieldShape::Bool, _) => json!(true),
        (FieldShape::Duration, _) => json!(7_000_000_000_u64),
        (FieldShape::TextList, _) => json!(["x", "y"]),
        (FieldShape::TextMap, _) => json!({"NAME": "text"}),
        (FieldShape::TextListMap, _) => json!({"Name": ["one", "two"]}),
        (FieldShape::Free, _) => json!({"a": [1, {"b": null}]}),
        (FieldShape::Block { schema, form: BlockForm::List }, _) => json!([block(schema, "x")]),
        (FieldShape::Block { schema, form: BlockForm::ByName }, _) => {
            json!({"x": block(schema, "x")})
        }
        (FieldShape::Block { schema, form: BlockForm::One }, _) => Json::Object(block(schema, "x")),
        _ => panic!("no sample of {}", field.json),
    }
}

fn is_supported(field: &Field) -> bool {
    !matches!(field.shape, FieldShape::Unsupported { .. } | FieldShape::Served)
}

/// A block with all its keys.
fn block(schema: &'static BlockSchema, label: &str) -> Map<String, Json> {
    let written = |field: &&Field| {
        // Each check has it.
        let elsewhere = (schema.what, field.json) == ("a service", "CheckRestart");
        // Of the group alone.
        let elsewhere = elsewhere || (schema.what, field.json) == ("a service", "TaskName");
        // Told, and of no effect.
        let elsewhere = elsewhere || (schema.what, field.json) == ("a network of a task", "DNS");
        let read_only = matches!(field.bounds, FieldBounds::Unwritten);
        is_supported(field) && !field.json.is_empty() && !read_only && !elsewhere
    };
    let label = schema.label.map(|member| (member.to_owned(), json!(label)));
    let fields = schema.fields.iter().filter(written);
    label
        .into_iter()
        .chain(fields.map(|field| (field.json.to_owned(), sample(schema, field))))
        .collect()
}

/// What of `given` does not stand in `written`, by path.
fn missing(path: &str, given: &Json, written: &Json) -> Vec<String> {
    match (given, written) {
        (Json::Object(given), Json::Object(written)) => given
            .iter()
            .flat_map(|(name, value)| missing(&format!("{path}.{name}"), value, &written[name]))
            .collect(),
        (Json::Array(given), Json::Array(written)) if given.len() == written.len() => {
            let pairs = given.iter().zip(written);
            pairs.flat_map(|(given, written)| missing(path, given, written)).collect()
        }
        (given, written) if given == written => Vec::new(),
        _ => vec![format!("{path}: {given} is written as {written}")],
    }
}

/// A job that has every key that jobs have in JSON, and can be used.
pub(super) fn job_of_all_keys() -> Json {
    Json::Object(block(JobKeys::SCHEMA, ""))
}

#[test]
fn every_key_of_a_job_is_read_and_written_as_it_was() {
    let mut given = job_of_all_keys();
    // The directory is that of a job which refers to it.
    given["Meta"] = json!({"DIR": "${job.dir}"});
    let text = given.to_string();
    let job = parse(text.as_bytes(), Path::new("-"), Some(Syntax::Json));
    let job = job.unwrap_or_else(|found| panic!("{}", found.render(&text, false)));
    let written = nomad_json(&job);
    // What groups and tasks took over from these stands there.
    let inherited = [".Update.", ".TaskGroups.Migrate.", ".TaskGroups.RestartPolicy."];
    let mut lost = missing("", &given, &written);
    lost.retain(|key| !inherited.iter().any(|block| key.starts_with(block)));
    assert_eq!(lost, Vec::<String>::new());
    let again = parse(written.to_string().as_bytes(), Path::new("-"), Some(Syntax::Json)).unwrap();
    assert_eq!(again, job);
}

/// Something that no key takes, in its place.
fn wrong(field: &Field) -> (Json, &'static str) {
    match field.shape {
        FieldShape::Unsupported { .. } => (json!("no such value"), "[[]]"),
        _ => (json!([[1], {"a": 1}, [{}]]), "[[1], { a = 1 }, [{}]]"),
    }
}

/// What is done with each key: its block, itself, its name, and what makes a file of a value.
type Check<'a> = &'a dyn Fn(&'static BlockSchema, &'static Field, &str, &dyn Fn(&str) -> String);

/// Every block that can be reached, with a file that has nothing else around `key = value`.
fn each_key(root: &'static BlockSchema, syntax: Syntax, open: &str, close: &str, check: Check<'_>) {
    for field in root.fields.iter().filter(|field| !field.name(syntax).is_empty()) {
        let name = field.name(syntax);
        check(root, field, name, &|value| match syntax {
            Syntax::Hcl => format!("{open}\n{name} = {value}\n{close}"),
            Syntax::Json => format!("{open}\"{name}\": {value}{close}"),
        });
        if let FieldShape::Block { schema, form } = field.shape {
            let (open, close) = match (syntax, form, schema.label) {
                (Syntax::Hcl, _, None) => (format!("{open}\n{name} {{"), format!("}}\n{close}")),
                (Syntax::Hcl, _, Some(_)) => {
                    (format!("{open}\n{name} \"x\" {{"), format!("}}\n{close}"))
                }
                (Syntax::Json, BlockForm::ByName, _) => {
                    (format!("{open}\"{name}\":{{\"x\":{{"), format!("}}}}{close}"))
                }
                (Syntax::Json, BlockForm::One, _) => {
                    (format!("{open}\"{name}\":{{"), format!("}}{close}"))
                }
                (Syntax::Json, BlockForm::List, None) => {
                    (format!("{open}\"{name}\":[{{"), format!("}}]{close}"))
                }
                (Syntax::Json, BlockForm::List, Some(label)) => {
                    (format!("{open}\"{name}\":[{{\"{label}\":\"x\","), format!("}}]{close}"))
                }
            };
            each_key(schema, syntax, &open, &close, check);
        }
    }
}

/// A value that no key takes is refused at every key, under the name of the key.
fn refuses(root: &'static BlockSchema, syntax: Syntax, read: &dyn Fn(&str) -> String) {
    let (open, close) = match (root.what, syntax) {
        ("a job", Syntax::Hcl) => ("job \"j\" {", "}"),
        (_, Syntax::Hcl) => ("", ""),
        (_, Syntax::Json) => ("{\"Job\": {", "}}"),
    };
    each_key(root, syntax, open, close, &|schema, field, name, file| {
        let (json, hcl) = wrong(field);
        let text = file(&if syntax == Syntax::Json { json.to_string() } else { hcl.to_owned() });
        let found = read(&text);
        let named = found.lines().any(|line| line.contains(&format!(": {name} ")));
        let served = matches!(field.shape, FieldShape::Served);
        assert_eq!(named, !served, "{}: {name}\n{text}\n{found}", schema.what);
    });
}

#[test]
fn every_key_of_a_job_is_refused_by_its_name_when_its_value_is_wrong() {
    for syntax in [Syntax::Hcl, Syntax::Json] {
        refuses(JobKeys::SCHEMA, syntax, &|text| {
            parse(text.as_bytes(), Path::new("-"), Some(syntax)).unwrap_err().to_string()
        });
    }
}

#[test]
fn every_key_of_the_agent_is_refused_by_its_name_when_its_value_is_wrong() {
    refuses(AgentKeys::SCHEMA, Syntax::Hcl, &|text| {
        parse_agent_config(text.as_bytes(), Path::new("-")).unwrap_err().to_string()
    });
    refuses(TrustFileKeys::SCHEMA, Syntax::Hcl, &|text| {
        parse_trust_file(text.as_bytes(), Path::new("-")).unwrap_err().to_string()
    });
}

#[test]
fn what_is_not_supported_is_taken_or_refused_alike_in_both_syntaxes() {
    let general = ["null", "false", "true", "0", "1", "\"\"", "\"x\"", "[]"].map(str::to_owned);
    let verdicts = |syntax: Syntax| {
        let (open, close) = match syntax {
            Syntax::Hcl => ("job \"j\" {", "}"),
            Syntax::Json => ("{\"Job\": {", "}}"),
        };
        let all = std::cell::RefCell::new(BTreeMap::new());
        each_key(JobKeys::SCHEMA, syntax, open, close, &|schema, field, name, file| {
            let FieldShape::Unsupported { neutral, missed, .. } = field.shape else { return };
            if field.hcl.is_empty() || field.json.is_empty() {
                return;
            }
            let missed = missed.map_or(&[][..], |missed| missed.values);
            let special = neutral.iter().chain(missed).filter(|value| !value.starts_with('{'));
            let special = special.map(|value| match *value {
                "true" | "false" | "[]" => (*value).to_owned(),
                value if value.parse::<f64>().is_ok() => value.to_owned(),
                value => format!("{value:?}"),
            });
            for value in general.iter().cloned().chain(special) {
                let found = parse(file(&value).as_bytes(), Path::new("-"), Some(syntax));
                let found = found.unwrap_err().to_string();
                let refused = found.lines().any(|line| line.contains(&format!(": {name} ")));
                all.borrow_mut().insert((schema.what, field.hcl, value), refused);
            }
        });
        all.into_inner()
    };
    let (hcl, json) = (verdicts(Syntax::Hcl), verdicts(Syntax::Json));
    let differ: Vec<_> =
        hcl.iter().filter(|(key, refused)| json.get(key) != Some(refused)).collect();
    assert!(differ.is_empty(), "{differ:#?}");
    assert!(hcl.values().any(|refused| *refused) && hcl.values().any(|refused| !refused));
}

//! A text is the same text, however the job that has it was written.

use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::super::{Inputs, Syntax, nomad_json, parse, read_with};
use ostler_model::job::Job;
use ostler_model::template::TemplateSource;

/// A text as HCL has it between quotes.
fn quoted(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    format!("\"{}\"", literal(&out))
}

fn literal(text: &str) -> String {
    text.replace("${", "$${").replace("%{", "%%{")
}

/// A job that has the value of an expression wherever a text may stand.
fn job_with(expression: &str) -> String {
    format!(
        "variable \"v\" {{\n type = string\n default = \"\"\n}}\nlocals {{\n t = {expression}\n}}\n\
         job \"j\" {{\n meta = {{ m = local.t }}\n group \"g\" {{\n meta = {{ m = local.t }}\n \
         task \"t\" {{\n driver = \"mock\"\n meta = {{ m = local.t }}\n env = {{ E = local.t }}\n \
         config {{\n args = [local.t]\n deep {{\n a = {{ b = local.t }}\n }}\n }}\n \
         template {{\n data = local.t\n destination = \"local/x\"\n left_delimiter = \"<<<\"\n }}\n}}\n}}\n}}\n"
    )
}

fn job_of(expression: &str, inputs: &Inputs) -> Job {
    let text = job_with(expression);
    match read_with(text.as_bytes(), Path::new("job.hcl"), None, inputs) {
        Ok(parsed) => parsed.job,
        Err(found) => panic!("{}", found.render(&text, false)),
    }
}

fn again(job: &Job) -> Job {
    let text = json!({ "Job": nomad_json(job) }).to_string();
    match parse(text.as_bytes(), Path::new("-"), Some(Syntax::Json)) {
        Ok(job) => job,
        Err(found) => panic!("{}", found.render(&text, false)),
    }
}

/// The text, at every place where the job has it.
fn texts_of(job: &Job) -> Vec<String> {
    let group = &job.groups[0];
    let task = &group.tasks[0];
    let config = task.config.clone().into_map();
    let TemplateSource::Data(data) = &task.templates[0].source else { panic!("a text") };
    let (args, deep) = (&config["args"][0], &config["deep"]);
    let deep = deep.get(0).unwrap_or(deep);
    let texts = [
        job.meta["m"].as_str(),
        &group.meta["m"],
        &task.meta["m"],
        &task.env["E"],
        args.as_str().unwrap(),
        deep["a"]["b"].as_str().unwrap(),
        data,
    ];
    texts.map(str::to_owned).to_vec()
}

fn check(text: &str) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("text"), text).unwrap();
    let mut inputs = Inputs { directory: Some(dir.path().to_owned()), ..Inputs::default() };
    inputs.add_var(&format!("v={text}")).unwrap();
    let json = serde_json::Value::from(text).to_string();
    let mut ways = vec![
        quoted(text),
        "var.v".to_owned(),
        "file(\"text\")".to_owned(),
        "\"${var.v}\"".to_owned(),
        "\"${var.v}${\"\"}\"".to_owned(),
        "join(\"\", [substr(var.v, 0, 1), substr(var.v, 1, -1)])".to_owned(),
        format!("jsondecode({})", quoted(&json)),
        "jsondecode(jsonencode(var.v))".to_owned(),
        "yamldecode(yamlencode(var.v))".to_owned(),
        "format(\"%s\", var.v)".to_owned(),
    ];
    if !text.contains(['\r', '\\']) && text.ends_with('\n') {
        ways.push(format!("<<EOT_OF_IT\n{}EOT_OF_IT", literal(text)));
    }
    for way in ways {
        let job = job_of(&way, &inputs);
        for found in texts_of(&job) {
            assert_eq!(found, text, "{way}");
        }
        assert_eq!(texts_of(&again(&job)), texts_of(&job), "{way}");
    }
}

#[test]
fn a_script_for_a_shell_is_the_same_text_by_every_way() {
    for text in [
        "#!/bin/sh\necho \"${1}\" \"${X:-2}\" $${HOME} ${#} %{x} %%{y} 100%\n",
        "$${NAME}",
        "${NOMAD_TASK_DIR}",
        "$",
        "$$$${",
        "%%%{",
        "a ${ b",
        "}${{}%{if}",
        "\\${x} \\\\ \\\" \\n",
        "\u{1F600}${\u{e9}}\u{0301}",
    ] {
        check(text);
    }
}

#[test]
fn what_is_known_later_is_the_same_reference_by_every_way() {
    for written in [
        "\"${NOMAD_TASK_DIR}/x\"",
        "\"$${NOMAD_TASK_DIR}/x\"",
        "join(\"/\", [\"${NOMAD_TASK_DIR}\", \"x\"])",
    ] {
        let job = job_of(written, &Inputs::default());
        for found in texts_of(&job) {
            assert_eq!(found, "${NOMAD_TASK_DIR}/x", "{written}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_text_is_the_same_by_every_way(
        text in "([$]{1,3}[{]|[%]{1,3}[{]|[$%{}\"\\\\]|\n|\t|NOMAD_TASK_DIR|[a-z ]|é|😀|\\PC){1,24}",
    ) {
        prop_assume!(!text.contains("<<<"));
        check(&text);
    }
}

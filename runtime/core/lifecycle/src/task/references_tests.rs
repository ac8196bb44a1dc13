#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use ostler_model::job::TaskGroup;

/// A group in which every key has a text that nobody knows.
const JOB: &str = r#"
job "j" {
  group "g" {
    network {
      port "p" {}
    }
    volume "v" {
      type   = "host"
      source = "v"
    }
    service {
      name    = "s-${NOMAD_service_name}"
      port    = "${NOMAD_service_port}"
      address = "${NOMAD_service_address}"
      tags    = ["${NOMAD_service_tags}"]
      meta    { a = "${NOMAD_service_meta}" }
      canary_tags = ["${NOMAD_service_canary_tags}"]
      canary_meta { a = "${NOMAD_service_canary_meta}" }
      check {
        type     = "http"
        port     = "${NOMAD_check_port}"
        path     = "/${NOMAD_check_path}"
        body     = "${NOMAD_check_body}"
        method   = "POST"
        header   { A = ["${NOMAD_check_header}"] }
        interval = "10s"
        timeout  = "1s"
      }
      check {
        type         = "grpc"
        name         = "g"
        grpc_service = "${NOMAD_check_grpc_service}"
        interval     = "10s"
        timeout      = "1s"
      }
      check {
        type     = "script"
        task     = "t"
        name     = "c"
        command  = "${NOMAD_check_command}"
        args     = ["${NOMAD_check_args}"]
        interval = "10s"
        timeout  = "1s"
      }
    }
    task "t" {
      driver = "exec"
      user   = "${NOMAD_user}"
      config { args = [["${NOMAD_config}"]] }
      volume_mount {
        volume      = "v"
        destination = "${NOMAD_volume_mount_destination}"
      }
      artifact {
        source      = "https://x/${NOMAD_artifact_source}"
        destination = "${NOMAD_artifact_destination}"
        options     { a = "${NOMAD_artifact_options}" }
        headers     { a = "${NOMAD_artifact_headers}" }
      }
      template {
        source      = "${NOMAD_template_source}"
        destination = "${NOMAD_template_destination}"
        change_mode = "script"
        change_script {
          command = "${NOMAD_change_script_command}"
          args    = ["${NOMAD_change_script_args}"]
        }
      }
      template {
        data        = "${NOMAD_template_data}"
        destination = "local/x"
      }
    }
  }
}
"#;

fn group() -> TaskGroup {
    match ostler_jobspec::parse(JOB.as_bytes(), Path::new("j.hcl"), None) {
        Ok(job) => job.groups[0].clone(),
        Err(found) => panic!("{}", found.render(JOB, false)),
    }
}

#[test]
fn every_key_that_has_references_is_looked_at_under_its_own_name() {
    let group = group();
    let texts = texts_of(&group.tasks[0]).into_iter().chain(texts_of_service(&group.services[0]));
    let mut seen = BTreeSet::new();
    for (key, text) in texts.filter(|(_, text)| text.contains("${")) {
        let named = format!("${{NOMAD_{}}}", key.replace('.', "_"));
        assert!(text.contains(&named), "{key}: {text}");
        seen.insert(named);
    }
    let all = JOB.match_indices("${NOMAD_").map(|(at, _)| {
        let rest = &JOB[at..];
        rest[..=rest.find('}').unwrap()].to_owned()
    });
    let unseen: Vec<String> = all.filter(|one| !seen.contains(one)).collect();
    assert_eq!(unseen, ["${NOMAD_template_data}"], "a template's text is its own");
}

#[test]
fn the_table_of_the_docs_has_these_keys() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/job-language.md");
    let text = std::fs::read_to_string(docs).unwrap();
    let table = text.split("<!-- where references are replaced -->").nth(1).unwrap();
    let table = table.split("<!-- end -->").next().unwrap();
    let mut told = BTreeSet::new();
    for row in table.lines().filter(|row| row.starts_with("| `")) {
        let keys = row.split('|').nth(1).unwrap();
        told.extend(keys.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    let group = group();
    let texts = texts_of(&group.tasks[0]).into_iter().chain(texts_of_service(&group.services[0]));
    let mut known: BTreeSet<String> = texts.map(|(key, _)| key.to_owned()).collect();
    // Replaced where the environment is made, and where the allocation's network is.
    known.extend(["meta", "env", "network.hostname"].map(str::to_owned));
    assert_eq!(told, known);
}

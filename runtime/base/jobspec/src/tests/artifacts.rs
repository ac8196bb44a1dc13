//! `artifact`, and what the configuration says of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::check;
use super::{in_task, task};
use crate::{Syntax, parse, parse_agent_config};
use ostler_model::artifact::{ArtifactConfig, ArtifactMode, TaskArtifact};

fn one(body: &str) -> TaskArtifact {
    let mut artifacts = task(&format!("artifact {{\n{body}\n}}")).artifacts;
    assert_eq!(artifacts.len(), 1);
    artifacts.remove(0)
}

#[test]
fn every_key_of_an_artifact_arrives() {
    let artifact = one(r#"
        source      = "https://h/x-${attr.cpu.arch}.tar.gz//bin"
        destination = "local/bin/"
        mode        = "dir"
        options {
          checksum = "sha256:${meta.sum}"
          archive  = "tar.gz"
        }
        headers {
          X-Token = "${env["TOKEN"]}"
        }"#);
    assert_eq!(artifact.source, "https://h/x-${attr.cpu.arch}.tar.gz//bin");
    assert_eq!((artifact.destination.as_str(), artifact.mode), ("local/bin/", ArtifactMode::Dir));
    assert_eq!(artifact.options["checksum"], "sha256:${meta.sum}");
    assert_eq!(artifact.headers["X-Token"], "${env[\"TOKEN\"]}");
}

#[test]
fn an_artifact_goes_where_nomads_do_when_nothing_is_said() {
    assert_eq!(one("source = \"https://h/a/x\"").destination, "local/");
    let file = one("source = \"https://h/a/x\"\nmode = \"file\"");
    assert_eq!(file.destination, "local/x");
    assert_eq!(one("source = \"https://h/x\"\ndestination = \"\"").destination, ".");
    // The slash says nothing where it is a file.
    let file = one("source = \"https://h/x\"\nmode = \"file\"\ndestination = \"test/foo/\"");
    assert_eq!(file.destination, "test/foo/");
}

#[test]
fn an_artifact_in_json_is_the_same() {
    let hcl = task("artifact {\nsource = \"https://h/x\"\noptions {\narchive = \"false\"\n}\n}");
    let text = r#"{"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock",
        "Artifacts": [{"GetterSource": "https://h/x", "GetterOptions": {"archive": "false"},
        "GetterHeaders": null, "GetterMode": "any", "RelativeDest": "local/"}]}]}]}"#;
    let json = parse(text.as_bytes(), Path::new("-"), Some(Syntax::Json)).unwrap();
    assert_eq!(json.groups[0].tasks[0].artifacts, hcl.artifacts);
}

#[test]
fn what_cannot_be_fetched_is_refused_where_it_stands() {
    let block = |body: &str| in_task(&format!("artifact {{\n{body}\n}}"));
    for (body, expected) in [
        ("", "5:1: an artifact needs a source"),
        ("source = \"git::https://h/x\"", "6:10: the source cannot be used: git:: is not fetched"),
        (
            "source = \"example.com/x\"",
            "6:10: the source cannot be used: \"example.com/x\" does not begin with",
        ),
        (
            "source = \"https://h/x\"\nmode = \"dir\"",
            "6:10: the source cannot be used: mode = \"dir\" needs",
        ),
        ("source = \"https://h/x.gz\"", "6:10: the source cannot be used: gz is one packed file"),
        (
            "source = \"https://h/x\"\nmode = \"all\"",
            "7:8: \"all\" is not a valid mode of an artifact",
        ),
        (
            "source = \"https://h/x\"\noptions {\nchecksum = \"sha1:00\"\n}",
            "6:10: the source cannot be used: a sha1 checksum has 40 hexadecimal digits",
        ),
        (
            "source = \"https://h/x\"\ndestination = \"../../etc\"",
            "7:15: the destination \"../../etc\" leads out",
        ),
        (
            "source = \"https://h/x\"\ndestination = \"local\"\nmode = \"file\"",
            "7:15: with mode = \"file\" the destination names the file",
        ),
        (
            "source = \"https://h/x\"\nheaders = {\n\"a b\" = \"c\"\n}",
            "5:1: \"a b\" with its value is not a valid header of a request",
        ),
        ("source = \"https://h/x\"\nchown = true", "7:1: chown is valid in Nomad"),
    ] {
        check(&block(body), &[expected]);
    }
    let many = "artifact {\nsource = \"https://h/x\"\n}\n".repeat(65);
    check(&in_task(&many), &["197:1: the task has 65 artifacts; at most 64"]);
}

#[test]
fn the_configuration_bounds_artifacts() {
    let read = |body: &str| {
        let text = format!("client {{\nartifact {{\n{body}\n}}\n}}\n");
        parse_agent_config(text.as_bytes(), Path::new("/etc/ostler.hcl"))
    };
    assert_eq!(read("").unwrap().artifact, ArtifactConfig::default());
    let config = read(
        "http_read_timeout = \"5m\"\nhttp_max_size = \"2GB\"\ndecompression_size_limit = \"1GiB\"\n\
         decompression_file_count_limit = 7\nfile_sources = [\"/srv/x\"]\ncache_size = \"0\"",
    );
    let expected = ArtifactConfig {
        http_read_timeout: Duration::from_secs(300),
        http_max_size: 2_000_000_000,
        decompression_size_limit: 1 << 30,
        decompression_file_count_limit: 7,
        file_sources: vec![PathBuf::from("/srv/x")],
        cache_size: 0,
    };
    assert_eq!(config.unwrap().artifact, expected);
    for (body, expected) in [
        ("http_max_size = \"much\"", "http_max_size must be a size"),
        ("http_max_size = \"0\"", "http_max_size must be a size"),
        ("file_sources = [\"srv\"]", "must be an absolute path"),
        ("git_timeout = \"1m\"", "git_timeout is valid in Nomad"),
    ] {
        let found = read(body).unwrap_err().to_string();
        assert!(found.contains(expected), "{body}: {found}");
    }
}

//! What fuzz targets call: one function per kind of untrusted bytes. Each may refuse what it is given
//! and must neither panic nor go beyond the limits.
//!
//! The same functions run as properties on stable: over arbitrary bytes, and over valid input with
//! some bytes changed. Start with [`TARGETS`]; the README says how to run them.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ostler_artifact::registry::Artifact;
use ostler_artifact::trust::{Signature, SignatureCheck, check};
use ostler_model::artifact::{ArchiveKind, ArtifactMode, ArtifactSource, public_source};
use ostler_model::ids::{RunId, TaskName};
use ostler_model::json::JsonObject;
use ostler_model::limits::{PLUGIN_FILE_BYTES_MAX, TASK_FILE_BYTES_MAX};
use ostler_model::ports::FsIsolation;
use ostler_model::task_path::{TaskView, destination};
use ostler_plugin::schema::ConfigSchema;
use ostler_plugin_tools::recording::file;
use ostler_sandbox::{detect_format, prescan};
use ostler_state::journal::{self, Tip};
use ostler_template::{Delimiters, Dependency, Options, Outside, OutsideAnswer, Template};

pub use ostler_cluster::fuzz::{answers as server_answers, messages as msgpack};
pub use ostler_cluster_agent::fuzz::requests as server_requests;
pub use ostler_nomad_plugin::fuzz::tasks as nomad_task;
pub use ostler_plugin::fuzz::{answers, handles};
pub use ostler_plugin_tools::recording::fuzz_trace as trace;

/// A target: its name, and the function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 21] = [
    ("plugin", plugin),
    ("answers", answers),
    ("handles", handles),
    ("trace", trace),
    ("recording", recording),
    ("config", config),
    ("job", job),
    ("schema", schema),
    ("run_id", run_id),
    ("trust", trust),
    ("signature", signature),
    ("artifact", artifact),
    ("archive", archive),
    ("source", source),
    ("journal", journal),
    ("server_connection", server_connection),
    ("msgpack", msgpack),
    ("server_answers", server_answers),
    ("server_requests", server_requests),
    ("nomad_task", nomad_task),
    ("template", template),
];

/// Bytes of a component, looked at before anything is compiled.
pub fn plugin(bytes: &[u8]) {
    let _manifest = ostler_plugin::manifest::read(bytes).map(|manifest| manifest.asks().len());
    if let Ok(format) = detect_format(bytes) {
        for max in [PLUGIN_FILE_BYTES_MAX, TASK_FILE_BYTES_MAX] {
            let _fine = prescan(bytes, max, format);
        }
    }
}

/// A recording; what can be read is written and read again.
pub fn recording(bytes: &[u8]) {
    if let Ok(recording) = file::decode(bytes) {
        for call in &recording.calls {
            trace(&call.trace);
        }
        let again = file::encode(&recording).map(|bytes| file::decode(&bytes));
        debug_assert!(again.is_err() || again == Ok(Ok(recording)), "written is not what is read");
    }
}

/// An archive that a task brings along, by every kind that there is; its first byte says which.
pub fn archive(bytes: &[u8]) {
    const KINDS: [&str; 10] =
        ["tar", "tar.gz", "tar.bz2", "tar.xz", "tar.zst", "zip", "gz", "bz2", "xz", "zst"];
    let Some((first, bytes)) = bytes.split_first() else { return };
    let name = KINDS.get(usize::from(*first) % KINDS.len());
    let Some(kind) = name.and_then(|name| ArchiveKind::from_name(name)) else { return };
    let Ok(dir) = tempfile::tempdir() else { return };
    let inside = dir.path().join("in");
    if std::fs::create_dir(&inside).is_ok() {
        let _refused = ostler_fetch::fuzz::unpack(bytes, kind, &inside);
        let beside = std::fs::read_dir(dir.path()).map(Iterator::count).unwrap_or(1);
        assert_eq!(beside, 1, "something of an archive is outside");
    }
}

/// The address of an artifact, its checksum, and where it goes.
pub fn source(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _shown = public_source(&text);
    if let Ok(source) = ArtifactSource::parse(&text, &std::collections::BTreeMap::new()) {
        let _shown = source.public_text();
        for mode in [ArtifactMode::Any, ArtifactMode::File, ArtifactMode::Dir] {
            let _outcome = source.outcome(mode);
        }
    }
    if let Ok(task) = TaskName::new("t") {
        let view = TaskView {
            task: &task,
            alloc: "/alloc",
            local: "/local",
            secrets: "/secrets",
            sees: FsIsolation::Chroot,
        };
        if let Ok(place) = destination(&text, view) {
            assert!(place.names.iter().all(|name| name != ".." && !name.contains('/')));
        }
    }
}

/// An agent's configuration.
pub fn config(bytes: &[u8]) {
    if let Err(diagnostics) =
        ostler_jobspec::parse_agent_config(bytes, Path::new("/fuzz/ostler.hcl"))
    {
        let _text = diagnostics.render(&String::from_utf8_lossy(bytes), false);
    }
}

/// A job file, HCL or JSON.
pub fn job(bytes: &[u8]) {
    for file in ["/fuzz/job.hcl", "/fuzz/job.json"] {
        if let Err(diagnostics) = ostler_jobspec::parse(bytes, Path::new(file), None) {
            let _text = diagnostics.render(&String::from_utf8_lossy(bytes), false);
        }
    }
}

/// A schema of a plugin, and an empty configuration checked against it.
pub fn schema(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(schema) = ConfigSchema::new("fuzzed schema", text)
    {
        let _problems = schema.check(&JsonObject::default());
    }
}

/// An id as it comes back from disk and from the network.
pub fn run_id(bytes: &[u8]) {
    let _id = serde_json::from_slice::<RunId>(bytes);
}

/// A trust file.
pub fn trust(bytes: &[u8]) {
    if let Err(diagnostics) = ostler_jobspec::parse_trust_file(bytes, Path::new("/fuzz/trust.hcl"))
    {
        let _text = diagnostics.render(&String::from_utf8_lossy(bytes), false);
    }
}

/// A `.minisig` file. Nobody is trusted, so it vouches for nothing.
pub fn signature(bytes: &[u8]) {
    let signature = Signature::parse(bytes);
    let signed = check(bytes, Some(&signature), None);
    debug_assert!(!matches!(signed, SignatureCheck::By { .. }), "signed by nobody");
}

/// A manifest of a registry.
pub fn artifact(bytes: &[u8]) {
    let _artifact = Artifact::read(bytes, None);
}

/// The tree before the journal of the properties.
const TIP: Tip = Tip { file: 1, number: 2, chain: 3 };

/// A journal; what is taken of it can be written and is taken again, and nothing is taken for a file
/// that has none.
pub fn journal(bytes: &[u8]) {
    let found = journal::scan(bytes, Some(TIP));
    let mut record = Vec::new();
    if journal::encode(&TIP, found.tip.number.max(3), &found.changes, &mut record).is_some() {
        let again = journal::scan(&record, Some(TIP));
        debug_assert!(again.changes == found.changes, "written is not what is read");
    }
    debug_assert!(journal::scan(bytes, None).changes.is_empty(), "taken for another file");
}

/// The world of a template: there is nothing.
struct Nothing;

impl Outside for Nothing {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH
    }

    fn variable(&self, name: &str) -> Option<String> {
        (name.len() == 1).then(|| name.repeat(3))
    }

    fn ask(&self, _what: &Dependency) -> OutsideAnswer {
        OutsideAnswer::Missing
    }
}

/// A template of a job: read, and rendered within its limits.
pub fn template(bytes: &[u8]) {
    let options = Options {
        output_bytes_max: 10_000,
        work_bytes_max: 100_000,
        steps_max: 10_000,
        ..Options::default()
    };
    let text = String::from_utf8_lossy(bytes);
    for delimiters in [Delimiters::default(), Delimiters::new("<", ">")] {
        let template = Template::parse("fuzzed", &text, &delimiters);
        let rendered = template.and_then(|template| template.render(&Nothing, options));
        debug_assert!(!rendered.is_ok_and(|made| made.output.len() > 10_000), "beyond its limit");
    }
}

/// All that a server says on a connection, from its first byte.
pub fn server_connection(bytes: &[u8]) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    if let Ok(runtime) = runtime.enable_time().build() {
        runtime.block_on(ostler_cluster::fuzz::connection(bytes));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;
    use ostler_cluster::msgpack::Value;
    use ostler_cluster::rpc::{answer, map};
    use ostler_plugin_tools::recording::{CallOutcome, RecordedCall, Recording};
    use ostler_state::backend::Op;
    use ostler_testing::recorded::{self, Part};

    const COMPONENT: &str = r#"(component
        (import "ostler:plugin/log@0.1.0" (instance))
        (core module $m (memory 1) (func (export "f") (result i32) i32.const 1))
        (instance $i)
        (export "ostler:plugin/device@0.1.0" (instance $i)))"#;
    const CONFIG: &str = r#"
        data_dir = "/var/lib/ostler"
        plugin "nvidia" {
          file = "nvidia.wasm"
          grants {
            command "/usr/bin/nvidia-smi" { args = [["--query-gpu=*", "--format=csv"]] }
          }
          limits { call_wall = "2s" }
        }
        meta { rack = "r1" }
    "#;
    const JOB: &str = r#"
        job "redis" {
          group "g" {
            task "t" {
              driver = "exec"
              config {
                command = "/bin/echo"
                args    = ["a", "${NOMAD_TASK_DIR}"]
              }
              resources {
                cpu    = 100
                memory = 64
              }
            }
          }
        }
    "#;

    const TEMPLATE: &str = "{{- define \"a\" -}} {{ . | printf \"%5.1f %q\" 1.5 }} {{ end }}\n\
        {{ range $i, $e := split \",\" \"a,b\" }}{{ if eq $i 1 }}{{ break }}{{ else }}{{ $e }}{{ end }}{{ end }}\n\
        {{ with parseYAML \"a: [1, {b: x}]\" }}{{ .a | toJSON }}{{ template \"a\" $ }}{{ end }}\n\
        {{ $x := parseJSON `{\"k\":[1.5,null]}` }}{{ toTOML $x }}{{ toYAML $x | indent 2 }}{{/* c */}}";

    const TRUST: &str = r#"
        key "release" {
          public_key = "RWQBAgMEBQYHCOpKbGPinFIKvvVQexMuxfmVR3auvr57kkIe6mkURtIs"
        }
    "#;
    const SIGNATURE: &str = "untrusted comment: old form\n\
        RWQBAgMEBQYHCJ3oFnEdcsD7AENIw1sW7mhuHab8F0V8/tEundcrDAyuVI6VuBEdl8sXVRjgjx84yHSUdiWfxFy+hcBashYiUgg=\n\
        trusted comment: timestamp:1700000000\tfile:old.wasm\n\
        sLeMGz+rsVXNUvorGXAoDdeGJ6BaG5TgSS63INE0w2TdOVkbhsjbvNoutcsafTHWtOPpu7feq/fBjHDzXMNdCQ==\n";
    const ARTIFACT: &str = r#"{
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", "size": 2,
            "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
        "layers": [{"mediaType": "application/wasm", "size": 5,
            "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}]
    }"#;

    fn recorded() -> Vec<u8> {
        let call = RecordedCall {
            function: "start".to_owned(),
            trace: vec![0; 40],
            outcome: CallOutcome::new_answered(),
            ..RecordedCall::default()
        };
        file::encode(&Recording { calls: vec![call], ..Recording::default() }).unwrap()
    }

    /// A tar archive, and before it the byte that says so.
    fn archived() -> Vec<u8> {
        let mut to = tar::Builder::new(vec![0]);
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_mode(0o644);
        to.append_data(&mut header, "a/b", &b"text"[..]).unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        to.append_link(&mut header, "c", "a/b").unwrap();
        to.into_inner().unwrap()
    }

    fn written() -> Vec<u8> {
        let put = |value: &[u8]| Op::Put { key: b"key".as_slice().into(), value: value.into() };
        let (mut bytes, mut record, mut tip) = (Vec::new(), Vec::new(), TIP);
        for batch in
            [vec![put(b"1"), put(b"2")], vec![Op::Delete { key: b"key".as_slice().into() }]]
        {
            tip = journal::encode(&tip, tip.number + 1, &batch, &mut record).unwrap();
            bytes.extend_from_slice(&record);
        }
        bytes
    }

    /// What stock Nomad said.
    fn said(method: &str, case: &str, part: Part) -> Vec<u8> {
        recorded::of(method, case, part).unwrap().bytes
    }

    /// A frame of data (yamux) of a stream that a server opens.
    fn frame(data: &[u8]) -> Vec<u8> {
        let length = u32::try_from(data.len()).unwrap();
        let head = [[0, 0, 0, 1], 2_u32.to_be_bytes(), length.to_be_bytes()].concat();
        [&head, data].concat()
    }

    /// What a server says that answers a call and makes one.
    fn connection() -> Vec<u8> {
        let call = [&[1], &said("FileSystem.List", "", Part::Request)[..]].concat();
        [said(recorded::CONNECTION, "server", Part::Request), frame(&call)].concat()
    }

    /// The configuration of a task as servers write it.
    fn configured() -> Vec<u8> {
        let config = Value::Map(vec![
            ("command".into(), "/bin/sh".into()),
            ("args".into(), Value::Array(vec!["-c".into(), "true".into()])),
            ("again".into(), Value::Array(vec![Value::Map(vec![("args".into(), Value::Nil)])])),
        ]);
        let mut bytes = Vec::new();
        ostler_cluster::msgpack::write(&mut bytes, &config);
        bytes
    }

    /// What a server says of who shows no token.
    fn policies() -> Vec<u8> {
        let rules = "namespace \"d*\" {\n policy = \"read\"\n capabilities = [\"alloc-exec\"]\n}\n";
        let policy = map([("anonymous", map([("Rules", rules.into())]))]);
        answer("ACL.GetPolicies", 1, Ok(&map([("Policies", policy)])))
    }

    /// Valid input of each target that has some.
    fn seeds() -> Vec<(Target, Vec<u8>)> {
        let target = |name| *TARGETS.iter().find(|(known, _)| *known == name).unwrap();
        vec![
            (target("plugin"), wat::parse_str(COMPONENT).unwrap()),
            (target("config"), CONFIG.into()),
            (target("job"), JOB.into()),
            (target("recording"), recorded()),
            (target("trust"), TRUST.into()),
            (target("signature"), SIGNATURE.into()),
            (target("artifact"), ARTIFACT.into()),
            (target("archive"), archived()),
            (target("source"), b"https://u:p@h:8/a/x.tar.gz//b?checksum=md5:00&c=d".into()),
            (target("journal"), written()),
            (target("server_connection"), connection()),
            (target("msgpack"), said("Node.UpdateAlloc", "", Part::Request)),
            (target("server_answers"), said("Alloc.GetAllocs", "", Part::Answer)),
            (target("server_answers"), said("Alloc.GetAllocs", "device", Part::Answer)),
            (target("server_answers"), said("Node.GetClientAllocs", "", Part::Answer)),
            (target("server_answers"), said("Node.Register", "", Part::Answer)),
            (target("server_answers"), policies()),
            (target("server_requests"), said("FileSystem.Logs", "", Part::Request)),
            (target("server_requests"), said("FileSystem.Stream", "plain", Part::Request)),
            (target("server_requests"), said("Allocations.Exec", "tty", Part::Request)),
            (target("nomad_task"), configured()),
            (target("template"), TEMPLATE.into()),
            (
                target("schema"),
                br#"{"properties":{"a":{"pattern":"^x+$"}},"required":["a"]}"#.into(),
            ),
        ]
    }

    #[test]
    fn the_seeds_are_valid() {
        assert!(ostler_plugin::manifest::read(&wat::parse_str(COMPONENT).unwrap()).is_ok());
        assert!(
            ostler_jobspec::parse_agent_config(CONFIG.as_bytes(), Path::new("/fuzz/ostler.hcl"))
                .is_ok()
        );
        assert!(ostler_jobspec::parse(JOB.as_bytes(), Path::new("/fuzz/job.hcl"), None).is_ok());
        assert!(file::decode(&recorded()).is_ok());
        let dir = tempfile::tempdir().unwrap();
        let tar = ArchiveKind::from_name("tar").unwrap();
        ostler_fetch::fuzz::unpack(&archived()[1..], tar, dir.path()).unwrap();
        let trust = Path::new("/fuzz/trust.hcl");
        assert!(ostler_jobspec::parse_trust_file(TRUST.as_bytes(), trust).is_ok());
        assert!(Signature::parse(SIGNATURE.as_bytes()).is_ok());
        Artifact::read(ARTIFACT.as_bytes(), None).unwrap();
        assert!(Template::parse("seed", TEMPLATE, &Delimiters::default()).is_ok());
        assert_eq!(journal::scan(&written(), Some(TIP)).batches, 2);
    }

    #[test]
    fn every_target_is_built_and_described() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        let (manifest, readme) = (read("Cargo.toml"), read("README.md"));
        for (name, _) in TARGETS {
            let file = read(&format!("fuzz_targets/{name}.rs"));
            assert!(file.contains(&format!("ostler_fuzz::{name}(data)")), "{name}");
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
            assert!(readme.contains(&format!("| `{name}` |")), "{name}");
        }
        assert_eq!(std::fs::read_dir(dir.join("fuzz_targets")).unwrap().count(), TARGETS.len());
    }

    proptest! {
        #[test]
        fn no_target_fails_on_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            for (_, target) in TARGETS {
                target(&bytes);
            }
        }

        #[test]
        fn no_target_fails_on_valid_input_with_some_bytes_changed(
            changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..8),
            end in prop::option::of(any::<Index>()),
            twice in prop::option::of((any::<Index>(), any::<Index>())),
        ) {
            for ((_, target), mut bytes) in seeds() {
                for (place, byte) in &changes {
                    let place = place.index(bytes.len());
                    bytes[place] = *byte;
                }
                if let Some((from, to)) = &twice {
                    let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
                    let part = bytes[from.min(to)..from.max(to)].to_vec();
                    bytes.splice(from..from, part);
                }
                if let Some(end) = &end {
                    bytes.truncate(end.index(bytes.len()));
                }
                target(&bytes);
            }
        }
    }
}

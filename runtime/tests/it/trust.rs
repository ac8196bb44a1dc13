//! Plugins of which somebody must vouch: signatures, digests, and registries that give them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ostler_agent::{PluginEntry, PluginStatus, UpgradeOptions, UpgradeOutcome};
use ostler_guests::fixtures::HOSTILE_DEVICE;
use ostler_model::digest::Digest;
use ostler_model::trust::Voucher;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::TestAgent;
use crate::support::binary::ostler;
use crate::support::plugins::{entry, refusal};
use crate::support::signer::Signer;

/// What the plugin calls itself.
const NAME: &str = "hostile-device";

fn plugin() -> Vec<u8> {
    std::fs::read(HOSTILE_DEVICE).unwrap()
}

/// A plugin directory and a trust file.
struct Bench {
    dir: TempDir,
}

impl Bench {
    /// A trust file with this in it.
    fn new(trust: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("plugins")).unwrap();
        std::fs::write(dir.path().join("trust.hcl"), trust).unwrap();
        Self { dir }
    }

    fn put(&self, name: &str, bytes: &[u8], signature: Option<String>) {
        let file = self.dir.path().join("plugins").join(format!("{name}.wasm"));
        std::fs::write(&file, bytes).unwrap();
        if let Some(signature) = signature {
            std::fs::write(file.with_extension("wasm.minisig"), signature).unwrap();
        }
    }

    fn config(&self) -> String {
        let dir = self.dir.path().display();
        format!(
            "plugin_dir = \"{dir}/plugins\"\ntrust {{\n  file = \"{dir}/trust.hcl\"\n  \
             require_signature = [\"plugin_dir\", \"file\", \"oci\"]\n}}\n"
        )
    }

    async fn agent(&self) -> TestAgent {
        TestAgent::with_config(&self.config()).await
    }
}

pub(crate) fn key(signer: &Signer, more: &str) -> String {
    format!("key \"release\" {{\n  public_key = \"{}\"\n{more}\n}}\n", signer.public_key())
}

/// The names of wasm files whose code is in the cache.
fn compiled(agent: &TestAgent) -> Vec<String> {
    let files = std::fs::read_dir(agent.handle.data_dir().join("code")).unwrap();
    files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// Bytes that were never compiled before: the plugin, and a section that says nothing.
pub(crate) fn fresh(content: &str) -> Vec<u8> {
    let mut bytes = plugin();
    let section = [&[4][..], b"note", content.as_bytes()].concat();
    bytes.extend([0, u8::try_from(section.len()).unwrap()]);
    bytes.extend(section);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_is_used_once_somebody_vouches_for_it_and_not_even_compiled_before() {
    let (signer, listed) = (Signer::new(1), fresh("listed"));
    let digest = Digest::compute(&listed).to_tagged();
    let bench = Bench::new(&format!(
        "{}digest \"{digest}\" {{\n  plugins = [\"listed\", \"hostile-*\"]\n}}\n",
        key(&signer, "")
    ));
    let unsigned = fresh(&format!("unsigned {}", std::process::id()));
    bench.put("unsigned", &unsigned, None);
    bench.put("stranger", &unsigned, Some(Signer::new(2).sign(&unsigned, "")));
    bench.put("changed", &unsigned, Some(signer.sign(&plugin(), "")));
    bench.put("signed", &plugin(), Some(signer.sign(&plugin(), "release 7")));
    let agent = bench.agent().await;

    let signed = entry(&agent, "signed");
    assert_eq!(signed.status, PluginStatus::Loaded);
    let by = signed.trust.as_ref().unwrap();
    assert!(
        matches!(by, Voucher::Key { name, comment, .. } if name == "release" && comment == "release 7")
    );
    assert!(refusal(&agent, "unsigned").contains("minisign -S"), "{}", refusal(&agent, "unsigned"));
    assert!(refusal(&agent, "stranger").contains("0202020202020202"));
    assert!(refusal(&agent, "changed").contains("was changed"));
    let digest = Digest::compute(&unsigned).to_string();
    assert!(compiled(&agent).iter().all(|file| !file.starts_with(&digest)), "not compiled");
    assert_eq!(entry(&agent, "unsigned").digest, Some(digest));
    assert_eq!(entry(&agent, "exec").trust, Some(Voucher::Agent));
    let status = agent.handle.plugin_status("signed");
    assert_eq!((&status[0].trust, &status[0].digest), (&signed.trust, &signed.digest));
    agent.stop().await;

    // What the refusal of the first says, put into the trust file, mends it.
    std::fs::remove_file(bench.dir.path().join("plugins/signed.wasm")).unwrap();
    bench.put("listed", &listed, None);
    let agent = bench.agent().await;
    assert_eq!(entry(&agent, "listed").status, PluginStatus::Loaded);
    assert!(matches!(entry(&agent, "listed").trust, Some(Voucher::Digest { .. })));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_sign_one_plugin_cannot_pass_it_off_under_another_name() {
    let signer = Signer::new(1);
    let bench = Bench::new(&key(&signer, "  plugins = [\"acme-*\"]\n  kinds = [\"device\"]"));
    bench.put("acme-x", &plugin(), Some(signer.sign(&plugin(), "")));
    let agent = bench.agent().await;
    let reason = refusal(&agent, "acme-x");
    assert!(reason.contains("may not sign the device plugin hostile-device"), "{reason}");
    assert!(!agent.handle.node().device_plugins.contains_key(NAME));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_revoked_or_not_what_a_block_pins_is_refused() {
    let signer = Signer::new(1);
    let bench = Bench::new(&key(&signer, "  revoked = \"lost\""));
    bench.put("one", &plugin(), Some(signer.sign(&plugin(), "")));
    let agent = bench.agent().await;
    assert!(refusal(&agent, "one").contains("is revoked at"), "{}", refusal(&agent, "one"));
    agent.stop().await;

    let digest = Digest::compute(&plugin());
    let trust =
        format!("{}digest \"{digest}\" {{\n revoked = \"loses files\"\n}}\n", key(&signer, ""));
    std::fs::write(bench.dir.path().join("trust.hcl"), trust).unwrap();
    let agent = bench.agent().await;
    assert!(refusal(&agent, "one").contains("loses files"), "{}", refusal(&agent, "one"));
    agent.stop().await;

    let other = Digest::compute(b"another file").to_tagged();
    let config = format!(
        "plugin \"right\" {{\n file = \"{HOSTILE_DEVICE}\"\n digest = \"{0}\"\n}}\n\
         plugin \"wrong\" {{\n file = \"{HOSTILE_DEVICE}\"\n digest = \"{other}\"\n}}\n",
        digest.to_tagged()
    );
    let agent = TestAgent::with_config(&config).await;
    assert_eq!(entry(&agent, "right").status, PluginStatus::Loaded);
    assert_eq!(entry(&agent, "right").trust, Some(Voucher::Pin));
    let reason = refusal(&agent, "wrong");
    assert!(reason.contains(&other) && reason.contains(&digest.to_tagged()), "{reason}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trust_file_with_a_mistake_refuses_what_is_not_built_in_and_says_where() {
    let bench = Bench::new("key \"release\" {\n  public_kee = \"x\"\n}\n");
    bench.put("one", &plugin(), None);
    let agent = bench.agent().await;
    assert!(refusal(&agent, "one").contains("trust.hcl:2:3"), "{}", refusal(&agent, "one"));
    assert_eq!(entry(&agent, "exec").status, PluginStatus::Loaded);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_of_a_plugin_must_be_vouched_for_like_the_first() {
    let signer = Signer::new(1);
    let bench = Bench::new(&key(&signer, ""));
    bench.put(NAME, &plugin(), Some(signer.sign(&plugin(), "")));
    let granted = "groups = [\"hostile/thing/*\"]";
    let config =
        format!("{}plugin \"{NAME}\" {{\n grants {{\n {granted}\n }}\n}}\n", bench.config());
    let agent = TestAgent::with_config(&config).await;
    let offered = async |content: &str, by: Option<&Signer>| {
        let (bytes, file) = (fresh(content), bench.dir.path().join(format!("{content}.wasm")));
        std::fs::write(&file, &bytes).unwrap();
        if let Some(signer) = by {
            let beside = file.with_extension("wasm.minisig");
            std::fs::write(beside, signer.sign(&bytes, content)).unwrap();
        }
        let options = UpgradeOptions { file: Some(file), consents: true };
        agent.handle.upgrade_plugin(NAME, options).await.unwrap().outcome
    };
    let refused = |outcome: UpgradeOutcome, why: &str| match outcome {
        UpgradeOutcome::Refused { reason } => assert!(reason.contains(why), "{reason}"),
        other => panic!("{other:?}"),
    };
    refused(offered("unsigned", None).await, "minisign -S");
    refused(offered("stranger", Some(&Signer::new(2))).await, "0202020202020202");
    assert_eq!(offered("signed", Some(&signer)).await, UpgradeOutcome::Switched);
    let now = agent.handle.plugins_now();
    let by = now.iter().find(|entry| entry.name == NAME).unwrap().trust.clone();
    assert!(matches!(by, Some(Voucher::Key { comment, .. }) if comment == "signed"));
    // What was revoked since the agent started counts.
    let trust = key(&signer, "  revoked = \"lost\"");
    std::fs::write(bench.dir.path().join("trust.hcl"), trust).unwrap();
    refused(offered("late", Some(&signer)).await, "is revoked");
    agent.stop().await;
}

#[tokio::test]
async fn verify_says_who_signed_and_ends_as_it_promises() {
    let signer = Signer::new(1);
    let bench = Bench::new(&key(&signer, ""));
    bench.put("good", &plugin(), Some(signer.sign(&plugin(), "release 7")));
    bench.put("unsigned", &plugin(), None);
    let path = |name: &str| bench.dir.path().join(name).to_str().unwrap().to_owned();
    let (trust, good) = (path("trust.hcl"), path("plugins/good.wasm"));
    let ended = ostler(["plugin", "verify", "--trust", &trust, &good]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for part in [
        "good, by release",
        "comment    release 7",
        "would run",
        &Digest::compute(&plugin()).to_tagged(),
    ] {
        assert!(ended.stdout.contains(part), "no {part} in {}", ended.stdout);
    }
    let unsigned = path("plugins/unsigned.wasm");
    let ended = ostler(["plugin", "verify", "--json", "--trust", &trust, &unsigned]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        (&report["trusted"], &report["signature"]["state"]),
        (&false.into(), &"none".into())
    );
    assert!(report["reason"].as_str().unwrap().contains("minisign -S"), "{report}");
    // Nothing is required, so the agent would run it, and nobody vouches.
    let ended = ostler(["plugin", "verify", &unsigned]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ostler(["plugin", "verify", &path("none.wasm")]).await.said(2, &["none.wasm"]);

    // By the configuration that would load it.
    let config = path("ostler.hcl");
    std::fs::write(&config, bench.config()).unwrap();
    let ended = ostler(["plugin", "verify", "--config", &config, &unsigned]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("plugins from plugin_dir"), "{}", ended.stdout);
    let ended = ostler(["plugin", "inspect", &good]).await;
    assert!(ended.stdout.contains("signature  by the key 0101010101010101"), "{}", ended.stdout);
}

/// A registry with nothing but what it is given.
pub(crate) struct Registry {
    port: u16,
    things: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Registry {
    pub(crate) async fn new() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let things = Arc::new(Mutex::new(BTreeMap::<String, Vec<u8>>::new()));
        let served = Arc::clone(&things);
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { break };
                    head.push(byte);
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let path = head.split(' ').nth(1).unwrap_or_default();
                let thing = served.lock().unwrap().get(path).cloned();
                let status = if thing.is_some() { "200 OK" } else { "404 Not Found" };
                let body = thing.unwrap_or_default();
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(&[head.as_bytes(), &body].concat()).await;
            }
        });
        Self { port, things, serving }
    }

    /// The digest of the manifest.
    pub(crate) fn push(&self, component: &[u8], signature: &str) -> String {
        let layer = |media_type: &str, bytes: &[u8]| {
            let digest = Digest::compute(bytes).to_tagged();
            self.put(&format!("/v2/team/plugin/blobs/{digest}"), bytes);
            serde_json::json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() })
        };
        let manifest = serde_json::to_vec(&serde_json::json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": layer("application/vnd.wasm.config.v0+json", b"{}"),
            "layers": [
                layer("application/wasm", component),
                layer("application/vnd.ostler.minisign.v1", signature.as_bytes()),
            ],
        }))
        .unwrap();
        self.put("/v2/team/plugin/manifests/1.0", &manifest);
        Digest::compute(&manifest).to_tagged()
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        self.things.lock().unwrap().insert(path.to_owned(), bytes.to_vec());
    }

    pub(crate) fn reference(&self) -> String {
        format!("oci://localhost:{}/team/plugin:1.0", self.port)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_of_a_registry_is_pulled_once_pinned_and_trusted_like_any_other() {
    let (registry, signer) = (Registry::new().await, Signer::new(1));
    registry.push(&plugin(), &signer.sign(&plugin(), "release 7"));
    let bench = Bench::new(&key(&signer, ""));
    let config = format!(
        "{}plugin \"{NAME}\" {{\n  source = \"{}\"\n}}\n",
        bench.config(),
        registry.reference()
    );
    let agent = TestAgent::with_config(&config).await;
    let pulled = entry(&agent, NAME);
    assert_eq!(pulled.status, PluginStatus::Loaded);
    assert_eq!(pulled.source, registry.reference());
    assert!(matches!(pulled.trust, Some(Voucher::Key { .. })), "{pulled:?}");
    let data = agent.leave().await;
    let data_dir = data.path().to_str().unwrap().to_owned();

    // What was pulled is enough for the next command, without the registry.
    let file = bench.dir.path().join("ostler.hcl");
    std::fs::write(&file, &config).unwrap();
    let reference = registry.reference();
    let pull = async |more: &[&str]| {
        let args = ["plugin", "pull", "--data-dir", &data_dir, &reference];
        ostler(args.iter().chain(more)).await
    };
    let same = pull(&[]).await;
    assert_eq!(same.code, Some(0), "{same:?}");
    assert!(same.stdout.contains("unchanged"), "{}", same.stdout);

    // The tag is moved to what nobody signed.
    let moved = fresh("moved");
    let now = registry.push(&moved, &Signer::new(2).sign(&moved, ""));
    pull(&[]).await.said(1, &["was moved", &now, "ostler plugin pull --update"]);
    let list = ["plugin", "list", "--json", "--data-dir", &data_dir, "--config"];
    let list = async || {
        let ended = ostler(list.iter().copied().chain([file.to_str().unwrap()])).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let list: Vec<PluginEntry> = serde_json::from_str(&ended.stdout).unwrap();
        list.into_iter().find(|entry| entry.name == NAME).unwrap()
    };
    assert_eq!(list().await.status, PluginStatus::Loaded);
    let to = bench.dir.path().join("copies");
    let updated = pull(&["--update", "--to", to.to_str().unwrap()]).await;
    assert_eq!(updated.code, Some(0), "{updated:?}");
    assert_eq!(std::fs::read(to.join("plugin.wasm")).unwrap(), moved);
    assert!(to.join("plugin.wasm.minisig").exists());
    let refused = list().await;
    assert!(
        matches!(&refused.status, PluginStatus::Refused(why) if why.contains("0202020202020202"))
    );
    drop(registry);
    assert!(matches!(list().await.status, PluginStatus::Refused(_)), "without a registry too");
}

#[tokio::test]
async fn a_pull_that_cannot_be_says_why_and_ends_as_it_promises() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().to_str().unwrap();
    ostler(["plugin", "pull", "--to", to, "registry.example/x"]).await.said(2, &["oci://"]);
    ostler(["plugin", "pull", "oci://registry.example/x:1"]).await.said(2, &["--to DIR"]);
    let nobody = ["plugin", "pull", "--to", to, "oci://localhost:1/x:1"];
    ostler(nobody).await.said(1, &["cannot connect to localhost:1"]);
    assert!(!Path::new(to).join("x.wasm").exists());
}

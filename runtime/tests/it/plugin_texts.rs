//! What a plugin says is shown as what it is: no text of it forges a line, a name or a colour, and
//! none fills a screen or a disk.

use std::fmt::Write as _;

use ostler_guests::fixtures::HOSTILE_DEVICE;

use crate::support::KEEPS;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::http::Client;
use crate::support::system::until;

/// What the hostile device writes, as everybody shall see it.
const SEEN: &str = r"well\n2026-01-01T00:00:00Z ERROR FORGED\r\u{1b}[2J\u{202e}txt.exe\u{2028}end";
/// Much more than any list of these tests needs, much less than what the plugins tried.
const LIST_BYTES: usize = 64 << 10;

/// A component of another world whose interface names fill megabytes.
fn of_long_names(dir: &std::path::Path) -> std::path::PathBuf {
    let mut text = "(component (instance $i)".to_owned();
    for n in 0..900 {
        let _ = write!(text, "(export \"a:b/n{n}{}\" (instance $i))", "x".repeat(32 << 10));
    }
    text.push(')');
    let path = dir.join("long.wasm");
    std::fs::write(&path, wat::parse_str(&text).unwrap()).unwrap();
    path
}

/// No line of it begins as the plugin wants, and nothing hides.
#[track_caller]
fn honest(what: &str, text: &str) {
    let forged = text.lines().find(|line| line.trim_start().starts_with("2026-01-01"));
    assert!(forged.is_none(), "{what}: {text}");
    let hidden = ['\u{1b}', '\u{202e}', '\u{2028}', '\r'];
    assert!(!text.contains(hidden), "{what}: {text:?}");
    assert!(text.len() < LIST_BYTES, "{what}: {} bytes", text.len());
}

#[tokio::test]
async fn no_text_of_a_plugin_forges_a_line_of_a_log_or_a_list_or_grows_without_bound() {
    let data = Home::new();
    let long = of_long_names(data.path());
    let plugin = |name: &str, mode: &str| {
        format!(
            "plugin \"{name}\" {{\n file = \"{HOSTILE_DEVICE}\"\n config {{\n mode = \"{mode}\"\n }}\n \
             grants {{\n groups = [\"hostile/*\"]\n }}\n}}\n"
        )
    };
    // Both describe themselves by one name, so each has an agent of its own.
    for mode in ["forged-error", "forged-texts"] {
        let home = Home::new();
        let config = home.path().join("ostler.hcl");
        let long = format!("plugin \"long\" {{\n file = \"{}\"\n}}\n", long.display());
        std::fs::write(&config, format!("{KEEPS}{}{long}", plugin("forger", mode))).unwrap();
        let agent = AgentProcess::start_in(home, &["--config", config.to_str().unwrap()]).await;
        let client = Client(agent.data.path().join("ostler.sock"));
        let lists: [&[&str]; 5] = [
            &["plugin", "list"],
            &["plugin", "list", "--json"],
            &["node", "status"],
            &["device", "list"],
            &["plugin", "status", "hostile-device"],
        ];
        let as_json = SEEN.replace('\\', r"\\");
        until("the node tells of it", async || {
            agent.ask(&["node", "status", "--json"]).await.stdout.contains(&as_json)
        })
        .await;
        for args in lists {
            let asked = agent.ask(args).await;
            honest(&format!("{mode}: {args:?}"), &(asked.stdout + &asked.stderr));
        }
        honest("the API", &client.get("/v1/ostler/devices").await.text());
        agent.signal(rustix::process::Signal::TERM);
        let (ended, _home) = agent.ended().await;
        honest("the agent's log", &ended.stderr);
        if mode == "forged-error" {
            assert!(ended.stderr.contains(SEEN), "{}", ended.stderr);
        }
    }
}

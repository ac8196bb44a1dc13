//! The web page in a real browser. Pictures of it are kept in `target/web-page/`.

mod feeling;
mod looking;
mod protection;

use std::net::SocketAddr;

use crate::support::KEEPS;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::browser::Browser;
use crate::support::http::job;
use crate::support::nomad::free_port;

/// An agent with its API over TCP, and a browser.
struct Page {
    agent: AgentProcess,
    at: SocketAddr,
    browser: Browser,
}

impl Page {
    /// With this beside where it listens. Absent: there is no browser.
    async fn open(more: &str) -> Option<Self> {
        let browser = Browser::open().await?;
        let data = Home::new();
        let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let config = data.path().join("agent.hcl");
        let text = format!("name = \"edge-07\"\n{KEEPS}\nports {{ http = {} }}\n{more}", at.port());
        std::fs::write(&config, text).unwrap();
        let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
        Some(Self { agent, at, browser })
    }

    /// Show a view, and wait until the feed is live.
    async fn show(&self, path: &str) {
        self.browser.go(&format!("http://{}/ui/{path}", self.at)).await;
        self.is_live().await;
    }

    async fn is_live(&self) {
        self.browser.until(LIVE).await;
    }

    /// Run a service with one task `t` until it runs. The id of its allocation.
    async fn service(&self, id: &str, script: &str) -> String {
        let file = self.agent.file(&format!("{id}.json"), &job(id, script).to_string());
        self.agent.ask(&["job", "run", file.to_str().unwrap()]).await.said(0, &["runs"]);
        self.agent.alloc(id).await
    }
}

/// The page follows the agent.
const LIVE: &str = "document.querySelector('[data-feed=live]') !== null";

/// How many rows of lists are there as elements.
const ROWS: &str = "document.querySelectorAll('.list-row').length";

/// A task that says a line when its file is there, and another each time that it is written.
fn on_command(file: &std::path::Path) -> String {
    format!(
        "echo begun; last=; while :; do now=$(cat {} 2>/dev/null); [ \"$now\" = \"$last\" ] || echo \"$now\"; \
         last=$now; sleep 0.1; done",
        file.display()
    )
}

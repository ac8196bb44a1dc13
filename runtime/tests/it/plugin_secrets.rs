//! What a task was given and is secret is in nothing that its driver says, wherever that is shown.

use ostler_guests::fixtures::HOSTILE_DRIVER;

use crate::support::KEEPS;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::http::Client;
use crate::support::jobs::STAYS_FAILED;
use crate::support::system::until;

/// Of the job's own file.
const URL: &str = "postgres://u:hunter22@h";
/// Of a variable.
const TOKEN: &str = "s3cr3t-of-the-node";

fn job(name: &str, kind: &str, config: &str) -> String {
    format!(
        r#"job "{name}" {{
  type = "{kind}"
  group "g" {{
    restart {{
      attempts = 0
      mode = "fail"
    }}
    {STAYS_FAILED}
    task "t" {{
      driver = "hostile"
      config {{
        {config}
      }}
      env {{
        DB_URL = "{URL}"
      }}
      template {{
        data = "TOKEN={{{{ with nomadVar \"nomad/jobs/{name}\" }}}}{{{{ .token }}}}{{{{ end }}}}"
        destination = "secrets/env"
        env = true
      }}
    }}
  }}
}}
"#
    )
}

/// All that is shown to people who may not read the variable.
async fn shown(agent: &AgentProcess) -> String {
    let mut all = String::new();
    for args in [
        &["plugin", "status", "hostile"][..],
        &["plugin", "list", "--json"],
        &["node", "status", "--json"],
        &["events"],
    ] {
        let asked = agent.ask(args).await;
        all.push_str(&(asked.stdout + &asked.stderr));
    }
    for job in ["error", "panic", "ends"] {
        for alloc in agent.allocs(job).await {
            let id = alloc["ID"].as_str().unwrap();
            for args in
                [&["alloc", "status", id][..], &["alloc", "status", "--json", id], &["explain", id]]
            {
                let asked = agent.ask(args).await;
                let texts = asked.stdout + &asked.stderr;
                // The job's own text is there for who may read the job.
                all.extend(texts.lines().filter(|line| !line.contains("\"DB_URL\"")));
            }
        }
    }
    let client = Client(agent.data.path().join("ostler.sock"));
    all + &client.get("/v1/ostler/plugins").await.text()
}

#[tokio::test]
async fn no_secret_of_a_task_gets_out_by_what_its_driver_says() {
    let home = Home::new();
    let config = home.path().join("ostler.hcl");
    let plugin = format!(
        "plugin \"hostile\" {{\n file = \"{HOSTILE_DRIVER}\"\n grants {{\n process = true\n }}\n}}\n"
    );
    std::fs::write(&config, format!("{KEEPS}{plugin}")).unwrap();
    let agent = AgentProcess::start_in(home, &["--config", config.to_str().unwrap()]).await;
    for job in ["error", "panic", "ends"] {
        let put = ["var", "put", &format!("nomad/jobs/{job}"), &format!("token={TOKEN}")];
        agent.ask(&put).await.said(0, &[]);
    }

    agent.submit(&job("error", "batch", "start = \"tell-error\"")).await.said(0, &[]);
    agent.submit(&job("panic", "batch", "start = \"tell-panic\"")).await.said(0, &[]);
    let says = "command = \"/bin/sleep\"\nargs = [\"1000\"]\narg = \"${DB_URL} ${TOKEN}\"\n\
                stop = \"tell\"\nexited = \"tell\"";
    agent.submit(&job("ends", "service", says)).await.said(0, &[]);
    until("it runs", async || {
        let allocs = agent.allocs("ends").await;
        allocs.iter().any(|alloc| alloc["ClientStatus"] == "running")
    })
    .await;
    agent.ask(&["job", "stop", "ends"]).await.said(0, &[]);
    for name in ["error", "panic", "ends"] {
        until("all are over", async || {
            let allocs = agent.allocs(name).await;
            allocs.iter().all(|alloc| {
                ["failed", "complete"].contains(&alloc["ClientStatus"].as_str().unwrap())
            })
        })
        .await;
    }

    let stars = |text: &str| "*".repeat(text.len());
    until("all of it is shown", async || {
        let shown = shown(&agent).await;
        let told = format!("DB_URL={}", stars(URL));
        let ends = format!("{} {}", stars(URL), stars(TOKEN));
        shown.contains(&told)
            && shown.contains(&format!("TOKEN={}", stars(TOKEN)))
            && shown.contains(&ends)
    })
    .await;
    let shown = shown(&agent).await;
    agent.signal(rustix::process::Signal::TERM);
    let (ended, home) = agent.ended().await;
    // It is written a while after what it tells of, and at the end.
    let events = std::fs::read_to_string(home.path().join("events.jsonl")).unwrap();
    assert!(events.contains(&format!("DB_URL={}", stars(URL))), "{events}");
    assert!(ended.stderr.contains(&format!("DB_URL={}", stars(URL))), "{}", ended.stderr);
    for (place, text) in [("shown", &shown), ("the log", &ended.stderr), ("the events", &events)] {
        for secret in [URL, TOKEN, "hunter22"] {
            assert!(!text.contains(secret), "{secret} is in {place}: {text}");
        }
    }
}

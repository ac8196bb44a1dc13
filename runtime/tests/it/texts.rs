//! What a job says reaches its programs as it was written, whichever way the job came: as HCL, as JSON, or
//! read from the API and handed in again.

use serde_json::{Value, json};

use crate::support::agent_process::AgentProcess;
use crate::support::http::Client;

/// Texts that a shell, HCL or a template could take for their own.
const HARD: [&str; 9] = [
    "#!/bin/sh\nfor x in \"${1}\" ${X:-2} ${#}; do echo '%{x}' 100%; done\n",
    "${NOPE} ${attr.nope} ${ b",
    "$ $$ % %% \\ \" ' ` \\n \\\" \t.",
    "${env[\"NOPE\"]} ${meta.nope}",
    "é \u{1F600} ${é} {{{ }}}",
    "$${NOMAD_TASK_NAME} $$${NOPE} %%{if}",
    "%{ for x in y }${x}%{ endfor }",
    "${NOMAD_TASK_NAME} in ${NOMAD_GROUP_NAME}",
    "line\n\n  line\n",
];

/// What a text is in `env` and `meta`: what is known is replaced, and nothing else.
fn in_env(text: &str) -> String {
    text.replace("${NOMAD_TASK_NAME}", "t").replace("${NOMAD_GROUP_NAME}", "g")
}

/// And in `config`, where two dollars are one that is meant.
fn in_config(text: &str) -> String {
    let parts = text.split("$${").map(|part| in_env(part).replace("%%{", "%{"));
    parts.collect::<Vec<_>>().join("${")
}

fn in_hcl(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted.replace("${", "$${").replace("%{", "%%{")
}

/// Prints everything that it was given, each text with an end that none of them has.
const SCRIPT: &str = "printf '%s\\036' \"$@\"; \
    for n in 0 1 2 3 4 5 6 7 8; do \
      eval \"printf '%s\\036' \\\"\\$E$n\\\" \\\"\\$NOMAD_META_m$n\\\"\"; cat local/f$n; printf '\\036'; \
    done";

fn expected() -> Vec<String> {
    let mut all: Vec<String> = HARD.iter().map(|text| in_config(text)).collect();
    for text in HARD {
        all.extend([in_env(text), in_env(text), text.to_owned()]);
    }
    all
}

fn hcl() -> String {
    let texts = || HARD.iter().map(|text| in_hcl(text)).enumerate();
    let args: Vec<String> = texts().map(|(_, text)| text).collect();
    let env: String = texts().map(|(n, text)| format!("E{n} = {text}\n")).collect();
    let meta: String = texts().map(|(n, text)| format!("m{n} = {text}\n")).collect();
    let files = texts().map(|(n, text)| {
        format!(
            "template {{\n data = {text}\n destination = \"local/f{n}\"\n left_delimiter = \"<<<\"\n }}\n"
        )
    });
    let files: String = files.collect();
    format!(
        "job \"hcl\" {{\n type = \"batch\"\n meta {{\n {meta} }}\n group \"g\" {{\n task \"t\" {{\n \
         driver = \"raw_exec\"\n env {{\n {env} }}\n config {{\n command = \"/bin/sh\"\n \
         args = [\"-c\", {}, \"sh\", {}]\n }}\n {files} }}\n }}\n}}\n",
        in_hcl(SCRIPT),
        args.join(", ")
    )
}

fn json_job() -> Value {
    let named = |prefix: &str| -> Value {
        HARD.iter().enumerate().map(|(n, text)| (format!("{prefix}{n}"), json!(text))).collect()
    };
    let mut args = vec!["-c", SCRIPT, "sh"];
    args.extend(HARD);
    let file = |(n, text): (usize, &&str)| {
        json!({
            "EmbeddedTmpl": text, "DestPath": format!("local/f{n}"), "LeftDelim": "<<<",
        })
    };
    let files: Vec<Value> = HARD.iter().enumerate().map(file).collect();
    json!({
        "ID": "json", "Name": "json", "Type": "batch", "Meta": named("m"),
        "TaskGroups": [{"Name": "g", "Tasks": [{
            "Name": "t", "Driver": "raw_exec", "Env": named("E"), "Templates": files,
            "Config": {"command": "/bin/sh", "args": args},
        }]}],
    })
}

/// What the only task of a job printed, once it ended.
async fn printed(agent: &AgentProcess, client: &Client, job: &str) -> Vec<String> {
    let alloc = agent.alloc(job).await;
    let ended = client
        .alloc_when(&alloc, |alloc| {
            alloc["ClientStatus"] != "running" && alloc["ClientStatus"] != "pending"
        })
        .await;
    assert_eq!(ended["ClientStatus"], "complete", "{ended:#}");
    let path = format!("/v1/client/fs/logs/{alloc}?task=t&type=stdout&plain=true");
    let text = client.get(&path).await.text();
    text.strip_suffix('\u{1e}').unwrap().split('\u{1e}').map(str::to_owned).collect()
}

#[tokio::test]
async fn a_program_gets_the_same_bytes_of_a_job_in_hcl_in_json_and_read_back() {
    let agent = AgentProcess::start().await;
    let client = Client(agent.data.path().join("ostler.sock"));
    agent.submit(&hcl()).await.said(0, &[]);
    let register = async |mut job: Value, id: &str| {
        job["ID"] = json!(id);
        job["Name"] = json!(id);
        let answer = client.put("/v1/jobs", Some(json!({ "Job": job }))).await;
        assert!(answer.status.is_success(), "{}", answer.text());
    };
    register(json_job(), "json").await;
    let mut read = client.get("/v1/job/hcl").await.json();
    for text in [&read["Meta"]["m1"], &read["TaskGroups"][0]["Tasks"][0]["Env"]["E1"]] {
        assert_eq!(text, HARD[1]);
    }
    let data = &read["TaskGroups"][0]["Tasks"][0]["Templates"][5]["EmbeddedTmpl"];
    assert_eq!(data, HARD[5]);
    // What the agent says beside the job.
    read.as_object_mut().unwrap().retain(|key, _| key != "Origin" && key != "Places");
    register(read, "again").await;
    for job in ["hcl", "json", "again"] {
        let printed = printed(&agent, &client, job).await;
        for (number, (found, wanted)) in printed.iter().zip(expected()).enumerate() {
            assert_eq!(*found, wanted, "{job}: text {number}");
        }
        assert_eq!(printed.len(), expected().len(), "{job}");
    }
}

#[tokio::test]
async fn a_script_of_a_file_is_copied_unchanged_and_what_nobody_knows_is_told() {
    let agent = AgentProcess::start().await;
    let client = Client(agent.data.path().join("ostler.sock"));
    let script = "#!/bin/sh\necho \"${1:-none} ${NOMAD_JOB_ID} $${x} 100%{y}\"\n";
    std::fs::write(agent.data.path().join("run.sh"), script).unwrap();
    let path = agent.data.path().join("run.sh");
    let job = format!(
        r#"job "j" {{
  type = "batch"
  group "g" {{
    task "t" {{
      driver = "raw_exec"
      template {{
        data        = file("{}")
        destination = "local/run.sh"
      }}
      template {{
        data        = "{{{{ env \"HOME\" }}}}|{{{{ env \"PATH\" }}}}|{{{{ env \"USER\" }}}}"
        destination = "local/who"
      }}
      meta {{
        home = "${{HOME}}"
      }}
      config {{
        command = "/bin/sh"
        args    = ["-c", "cat local/run.sh; cat local/who; echo; echo \"$HOME|$PATH|$USER\"; echo $NOMAD_META_home ${{NOMAD_PROT_x}}"]
      }}
    }}
  }}
}}
"#,
        path.display()
    );
    agent.submit(&job).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    // The shell says that it knows no such name either: empty.
    let ended = client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "complete").await;
    let path = format!("/v1/client/fs/logs/{alloc}?task=t&type=stdout&plain=true");
    let text = client.get(&path).await.text();
    let rest = text.strip_prefix(script).unwrap_or_else(|| panic!("{text}"));
    let lines: Vec<&str> = rest.lines().collect();
    let [of_template, of_program, meta] = lines[..] else { panic!("{text}") };
    assert_eq!(of_template, of_program, "a template has what the program has");
    assert!(of_program.starts_with('/') && !of_program.contains("||"), "{of_program}");
    assert_eq!(meta.trim_end(), of_program.split('|').next().unwrap());
    let events = ended["TaskStates"]["t"]["Events"].to_string();
    assert!(events.contains("nothing is known for ${NOMAD_PROT_x}"), "{events}");
}

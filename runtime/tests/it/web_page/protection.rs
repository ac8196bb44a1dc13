//! What the page keeps out: programs and HTML of others, and people without a token.

use super::{Page, on_command};
use crate::support::browser::key;

const EVIL: &str = "<img src=x onerror=\"window.ran=1\"><script>window.ran=2</script>";

#[tokio::test]
async fn what_comes_from_tasks_stays_text() {
    let Some(page) = Page::open("").await else { return };
    let file = page.agent.data.path().join("say");
    let mut job = crate::support::http::job("evil", &on_command(&file));
    job["Job"]["Name"] = EVIL.into();
    job["Job"]["Meta"] = serde_json::json!({ "k": EVIL });
    let path = page.agent.file("evil.json", &job.to_string());
    page.agent.ask(&["job", "run", path.to_str().unwrap()]).await.said(0, &[]);
    let alloc = page.agent.alloc("evil").await;
    std::fs::write(&file, EVIL).unwrap();
    for view in [
        "jobs",
        "jobs/evil",
        "allocations",
        &format!("allocations/{alloc}"),
        &format!("allocations/{alloc}/logs/t"),
    ] {
        page.show(view).await;
        page.browser.until("document.querySelector('h1')?.innerText.length > 0").await;
        if view.ends_with("logs/t") || view.starts_with("jobs") {
            page.browser.shows("<img src=x").await;
        }
        let made = page.browser.value("document.querySelectorAll('img, main script').length").await;
        assert_eq!(made, 0, "{view}");
        assert_eq!(
            page.browser.value("window.ran ?? null").await,
            serde_json::Value::Null,
            "{view}"
        );
    }
    page.browser.picture("evil").await;
    page.browser.is_quiet().await;
    page.browser.close().await;
}

#[tokio::test]
async fn what_hides_or_turns_in_a_name_is_seen_and_stands_in_no_id() {
    let Some(page) = Page::open("").await else { return };
    let mut job =
        crate::support::http::job("bill", "printf 'out\\342\\200\\256tuo\\n'; exec sleep 600");
    job["Job"]["Name"] = "fdp\u{202e}exe".into();
    let path = page.agent.file("bill.json", &job.to_string());
    page.agent.ask(&["job", "run", path.to_str().unwrap()]).await.said(0, &[]);
    let alloc = page.agent.alloc("bill").await;
    let hidden =
        "document.body.innerText.includes('\\u202e') || document.title.includes('\\u202e')";
    for (view, shows) in [
        ("jobs".to_owned(), r"fdp\u{202e}exe"),
        ("jobs/bill".to_owned(), r"fdp\u{202e}exe"),
        (format!("allocations/{alloc}/logs/t"), r"out\u{202e}tuo"),
    ] {
        page.show(&view).await;
        page.browser.shows(shows).await;
        assert_eq!(page.browser.value(hidden).await, false, "{view}");
    }
    job["Job"]["ID"] = "bi\u{202e}ll".into();
    let path = page.agent.file("turned.json", &job.to_string());
    let refused = page.agent.ask(&["job", "run", path.to_str().unwrap()]).await;
    refused.said(2, &["contains U+202E", "leave it out"]);
    page.browser.close().await;
}

#[tokio::test]
async fn the_button_says_what_the_agent_says_of_the_token() {
    let button = "document.querySelector('[data-token]').innerText";
    let Some(open) = Page::open("").await else { return };
    open.show("jobs").await;
    assert_eq!(open.browser.value(button).await, "Token");
    // The tab has one, of another agent at this address: here there are none.
    open.browser.value("sessionStorage.setItem('ostler-token', 'of another')").await;
    open.show("jobs").await;
    open.browser.until(&format!("{button} === 'Token not needed here'")).await;
    open.browser.click("[data-token]").await;
    open.browser.click("dialog [name=token]").await;
    open.browser.keys("some").await;
    open.browser.keys(key::ENTER).await;
    open.browser.shows("this agent knows no tokens").await;
    open.browser.close().await;

    let Some(page) = Page::open("acl { enabled = true }\n").await else { return };
    let create = ["token", "create", "--json", "--name", "page", "--policy", "operate"];
    let made = page.agent.json(&create).await;
    page.browser.go(&format!("http://{}/ui/jobs", page.at)).await;
    page.browser.click("dialog [name=token]").await;
    page.browser.keys(made["SecretID"].as_str().unwrap()).await;
    page.browser.keys(key::ENTER).await;
    page.is_live().await;
    page.browser.until(&format!("{button} === 'Token in use'")).await;
    page.show("jobs").await;
    page.browser.until(&format!("{button} === 'Token in use'")).await;
    page.agent.ask(&["token", "delete", made["AccessorID"].as_str().unwrap()]).await.said(0, &[]);
    page.browser.go(&format!("http://{}/ui/jobs", page.at)).await;
    page.browser.until(&format!("{button} === 'Token refused'")).await;
    page.browser.close().await;
}

#[tokio::test]
async fn the_policy_lets_nothing_run_that_the_page_did_not_bring() {
    let Some(page) = Page::open("").await else { return };
    page.show("").await;
    page.browser.is_quiet().await;
    // As if a hole had been found, through which HTML comes into the page.
    page.browser
        .value(
            "(() => { const script = document.createElement('script'); script.textContent = 'window.ran = 1'; \
             document.body.append(script); const box = document.createElement('div'); \
             box.setAttribute('onclick', 'window.ran = 2'); document.body.append(box); box.click(); \
             const style = document.createElement('style'); style.textContent = 'body { outline: 7px solid red }'; \
             document.head.append(style); return true; })()",
        )
        .await;
    // What WebDriver itself evaluates is let through: later, it is the page's own.
    let later = "new Promise((resolve) => setTimeout(() => { try { resolve(new Function('return 1')()); } catch { \
                 resolve('refused'); } }))";
    let program = page.browser.promised(later).await;
    assert_eq!(program, "refused");
    let other = page
        .browser
        .promised("fetch('http://127.0.0.2:1/').then(() => 'sent', () => 'refused')")
        .await;
    assert_eq!(other, "refused");
    assert_eq!(page.browser.value("window.ran ?? null").await, serde_json::Value::Null);
    assert_ne!(page.browser.value("getComputedStyle(document.body).outlineWidth").await, "7px");
    let said = page.browser.console().await;
    let refused = |what: &str| {
        said.iter().any(|line| line.contains("Content Security Policy") && line.contains(what))
    };
    for what in ["script-src", "style-src", "connect-src"] {
        assert!(refused(what), "{what}: {said:#?}");
    }
    page.browser.close().await;
}

#[tokio::test]
async fn a_token_is_asked_for_kept_for_the_tab_and_sent_with_everything() {
    let Some(page) = Page::open("acl { enabled = true }\n").await else { return };
    let alloc = page.service("web", "echo ready; exec sleep 600").await;
    let made = page
        .agent
        .json(&["token", "create", "--json", "--name", "page", "--policy", "operate"])
        .await;
    let secret = made["SecretID"].as_str().unwrap();
    page.browser.go(&format!("http://{}/ui/jobs", page.at)).await;
    page.browser.until("document.querySelector('dialog [name=token]') !== null").await;
    page.browser.picture("token").await;
    assert!(!page.browser.value("document.body.innerText").await.as_str().unwrap().contains("web"));
    page.browser.shows("Nothing may be seen").await;
    page.browser.click("dialog [name=token]").await;
    page.browser.keys("not a token").await;
    page.browser.keys(key::ENTER).await;
    page.browser
        .until(
            "document.querySelector('dialog .trouble')?.innerText.includes('ACL token not found')",
        )
        .await;
    page.browser.value("document.querySelector('dialog [name=token]').select()").await;
    page.browser.click("dialog [name=token]").await;
    page.browser.value("document.querySelector('dialog [name=token]').select()").await;
    page.browser.keys(secret).await;
    page.browser.keys(key::ENTER).await;
    page.is_live().await;
    page.browser.shows("web").await;
    let kept = "Object.values(localStorage).join() + document.cookie + location.href";
    let kept = page.browser.value(kept).await;
    assert!(
        !kept.as_str().unwrap().contains(secret),
        "nowhere but in the tab's own storage: {kept}"
    );
    assert_eq!(page.browser.value("sessionStorage.getItem('ostler-token')").await, secret);
    // Streams and terminals have it too, also after the page is read anew.
    page.show(&format!("allocations/{alloc}/logs/t")).await;
    page.browser.shows("ready").await;
    page.show(&format!("allocations/{alloc}/terminal/t")).await;
    page.browser.click("[data-open-terminal]:not([disabled])").await;
    let screen = "(document.querySelector('.terminal-lines')?.innerText ?? '')";
    page.browser.until(&format!("{screen}.trim() !== ''")).await;
    page.browser.keys(&format!("echo $((40 + 2))!{}", key::ENTER)).await;
    page.browser.until(&format!("{screen}.includes('42!')")).await;
    page.browser.close().await;
}

#[tokio::test]
async fn who_may_see_one_namespace_sees_its_jobs_and_is_told_why_not_the_node() {
    let Some(page) = Page::open("acl { enabled = true }\nnamespace \"web\" { }\n").await else {
        return;
    };
    page.service("hidden", "exec sleep 600").await;
    let file = page
        .agent
        .file("shown.json", &crate::support::http::job("shown", "exec sleep 600").to_string());
    page.agent
        .ask(&["job", "run", "--namespace", "web", file.to_str().unwrap()])
        .await
        .said(0, &[]);
    let made = page
        .agent
        .json(&["token", "create", "--json", "--name", "page", "--policy", "read@web"])
        .await;
    page.browser.go(&format!("http://{}/ui/jobs", page.at)).await;
    page.browser.click("dialog [name=token]").await;
    page.browser.keys(made["SecretID"].as_str().unwrap()).await;
    page.browser.keys(key::ENTER).await;
    page.browser.shows("shown").await;
    page.is_live().await;
    assert!(
        !page.browser.value("document.body.innerText").await.as_str().unwrap().contains("hidden")
    );
    page.browser.keys("gv").await;
    page.browser.shows("needs read in all namespaces").await;
    page.browser.close().await;
}

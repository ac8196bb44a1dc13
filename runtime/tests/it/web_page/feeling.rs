//! What is done with the page: by mouse and by keyboard.

use super::{Page, ROWS};
use crate::support::browser::key;

#[tokio::test]
async fn a_job_is_stopped_only_after_it_was_confirmed() {
    let Some(page) = Page::open("").await else { return };
    page.service("web", "exec sleep 600").await;
    page.show("jobs/web").await;
    page.browser.click("[data-stop]").await;
    page.browser.shows("Stop web?").await;
    page.browser.picture("confirm").await;
    page.browser.keys(key::ESCAPE).await;
    page.browser.until("document.querySelector('dialog') === null").await;
    assert_eq!(page.agent.allocs("web").await[0]["DesiredStatus"], "run", "nothing was done");

    page.browser.click("[data-stop]").await;
    page.browser.click("dialog [data-confirm]").await;
    page.browser.shows("web is stopped.").await;
    page.browser.until("document.querySelector('.heading .status')?.innerText === 'stopped'").await;
    assert_eq!(page.agent.allocs("web").await[0]["DesiredStatus"], "stop");

    page.browser.press("Start …").await;
    page.browser.click("dialog [data-confirm]").await;
    page.browser.until("document.querySelector('.heading .status')?.innerText === 'running'").await;
    page.browser.is_quiet().await;
    page.browser.close().await;
}

#[tokio::test]
async fn a_group_is_scaled_and_its_task_restarted() {
    let Some(page) = Page::open("").await else { return };
    let alloc = page.service("web", "exec sleep 600").await;
    page.show("jobs/web").await;
    page.browser.press("Scale …").await;
    page.browser.until("document.querySelector('dialog [name=count]')?.value === '1'").await;
    let set = "const box = document.querySelector('dialog [name=count]'); box.value = '2'; \
               box.dispatchEvent(new Event('input', { bubbles: true }))";
    page.browser.value(&format!("(() => {{ {set}; return true; }})()")).await;
    page.browser.click("dialog [data-confirm]").await;
    page.browser.shows("2 of 2 running").await;

    page.show(&format!("allocations/{alloc}")).await;
    page.browser.press("Restart …").await;
    page.browser.click("dialog [data-confirm]").await;
    page.browser.until("document.querySelectorAll('svg.timeline rect.run').length === 2").await;
    page.browser.is_quiet().await;
    page.browser.close().await;
}

#[tokio::test]
async fn a_job_is_pasted_planned_and_run() {
    let Some(page) = Page::open("").await else { return };
    page.show("jobs/run").await;
    page.browser.press("Begin with an example").await;
    page.browser.press("Plan").await;
    page.browser.shows("1 to place").await;
    page.browser.picture("plan").await;
    page.browser.click("[data-run]").await;
    page.browser.click("dialog [data-confirm]").await;
    page.browser.until("document.querySelector('.heading .status')?.innerText === 'running'").await;
    assert_eq!(page.agent.allocs("hello").await.len(), 1);
    page.browser.is_quiet().await;
    page.browser.close().await;
}

#[tokio::test]
async fn everything_is_reached_by_the_keyboard() {
    let Some(page) = Page::open("").await else { return };
    page.service("first", "exec sleep 600").await;
    page.service("second", "exec sleep 600").await;
    page.show("").await;
    page.browser.keys("?").await;
    page.browser.shows("this list").await;
    page.browser.keys(key::ESCAPE).await;
    page.browser.until("document.querySelector('dialog') === null").await;

    page.browser.keys("gj").await;
    page.browser.until(&format!("location.pathname.endsWith('/ui/jobs') && {ROWS} === 2")).await;
    page.browser.keys("/").await;
    page.browser.keys("second").await;
    page.browser.until(&format!("{ROWS} === 1")).await;
    page.browser.keys(key::ESCAPE).await;
    page.browser.keys("l").await;
    page.browser.keys(key::DOWN).await;
    page.browser.until("document.querySelector('.list-row[aria-selected=true]') !== null").await;
    page.browser.keys(key::ENTER).await;
    page.browser.until("document.querySelector('h1')?.innerText === 'second'").await;
    let focused = page.browser.value("document.activeElement.tagName").await;
    assert_eq!(focused, "H1", "the focus goes with the view");

    // From the heading to the tabs by Tab, along them by arrows; where the focus is can be seen.
    page.browser
        .until("(document.querySelector('[role=tab][aria-selected=true]').focus(), true)")
        .await;
    page.browser.keys(key::RIGHT).await;
    page.browser.until("document.activeElement.innerText === 'Deployments'").await;
    page.browser.keys(key::TAB).await;
    let outline = page.browser.value("getComputedStyle(document.activeElement).outlineStyle").await;
    assert_eq!(outline, "solid");

    page.browser.keys("ga").await;
    page.browser.until("location.pathname.endsWith('/ui/allocations')").await;
    page.browser.keys("l").await;
    page.browser.keys(key::END).await;
    page.browser
        .until(
            "document.querySelector('.list')?.getAttribute('aria-activedescendant')?.endsWith('-1')",
        )
        .await;
    page.browser.is_quiet().await;
    page.browser.close().await;
}

/// The chart loads its drawing when it is shown, and the view may be another by then.
#[tokio::test]
async fn a_view_that_is_left_at_once_draws_no_chart() {
    let Some(page) = Page::open("").await else { return };
    page.show("jobs").await;
    page.browser
        .promised(
            "(async () => { \
               const go = (title) => [...document.querySelectorAll('nav.side a')] \
                 .find((link) => link.innerText.trim().startsWith(title)).click(); \
               const rest = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds)); \
               for (let turn = 0; turn < 100; turn += 1) { \
                 go('Node'); \
                 await rest(turn / 2); \
                 go('Jobs'); \
                 await rest(40); \
               } \
             })()",
        )
        .await;
    page.show("").await;
    page.browser.until("document.querySelector('.chart canvas') !== null").await;
    page.browser.is_quiet().await;
    page.browser.close().await;
}

/// Names and landmarks that programs read aloud by.
#[tokio::test]
async fn every_control_has_a_name_and_every_view_its_landmarks() {
    let Some(page) = Page::open("").await else { return };
    let alloc = page.service("web", "exec sleep 600").await;
    let views = [
        "",
        "jobs",
        "jobs/web",
        "allocations",
        "deployments",
        "devices",
        "plugins",
        "plugins/raw_exec",
        "jobs/run",
    ];
    let tabs =
        ["", "/logs/t", "/files", "/terminal/t"].map(|tab| format!("allocations/{alloc}{tab}"));
    for view in views.iter().map(|view| (*view).to_owned()).chain(tabs) {
        page.show(&view).await;
        page.browser.until("document.querySelectorAll('main h1').length === 1").await;
        let nameless = page
            .browser
            .value(
                "[...document.querySelectorAll('button,a[href],input,select,textarea,[role=grid]')].filter((one) => \
                 !(one.innerText || one.getAttribute('aria-label') || one.labels?.length)).map((one) => one.outerHTML)",
            )
            .await;
        assert_eq!(nameless, serde_json::json!([]), "{view}");
        let landmarks = page.browser.value("['main', 'nav', '[role=status][aria-live=polite]'].every((name) => document.querySelector(name))").await;
        assert_eq!(landmarks, true, "{view}");
        assert_ne!(page.browser.client.title().await.unwrap(), "Ostler", "{view}");
    }
    page.browser.picture("plugins").await;
    page.browser.is_quiet().await;
    page.browser.close().await;
}

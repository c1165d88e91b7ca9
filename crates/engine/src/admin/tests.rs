//! Tests the routes as a service. The test plays the application that carries out commands.

use axum::body::Body;
use goblin_admin::api::Reloaded;
use goblin_admin::routes::ServerAction;
use goblin_config::admin::AdminSettings;
use goblin_config::{Config, Gateway, Server, Transport};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower_service::Service;

use super::*;

/// Returns the admin service of a gateway with one disabled server called `off`.
fn admin(readiness: &watch::Sender<Readiness>, commands: mpsc::Sender<AdminCommand>) -> Admin {
    let mut config = Config::default();
    let files = Transport::Files(goblin_config::Files::at("/".into()));
    let server = Server { enabled: false, ..Server::new("off", files, goblin_config::Namespacing::default()) };
    config.servers.insert(ServerId::new("off").expect("a valid id"), Arc::new(server));
    Admin {
        dispatcher: Arc::new(Dispatcher::example(9)),
        observe: Arc::default(),
        readiness: readiness.subscribe(),
        configuration: watch::Sender::new(Configuration::new(&config)).subscribe(),
        commands,
        permit: AdminAccess::new(&Gateway::default(), &AdminSettings::default()),
        started: SystemTime::now(),
        readers: Arc::new(Semaphore::new(1)),
    }
}

#[tokio::test]
async fn sess2_it_is_ready_neither_before_the_start_is_over_nor_after_the_stop_began() {
    let readiness = watch::Sender::new(Readiness::Starting);
    let mut routes = routes(&Arc::new(admin(&readiness, mpsc::channel(1).0)));
    for (state, status) in [(Readiness::Starting, 503), (Readiness::Ready, 200), (Readiness::Stopping, 503)] {
        readiness.send_replace(state);
        for (path, status) in [("/readyz", status), ("/healthz", 200)] {
            let request = http::Request::get(path).body(Body::empty()).expect("a request");
            let response = routes.call(request).await.expect("it cannot fail");
            assert_eq!(response.status().as_u16(), status, "{path} {state:?}");
        }
    }
}

#[test]
fn sub15_the_query_has_one_uri_or_none() {
    for (query, expected) in [
        ("", Ok(None)),
        ("uri=a+note:///b", Ok(Some("a+note:///b"))),
        ("uri=a%2Bb%26c=d?e", Ok(Some("a+b&c=d?e"))),
        ("uri=", Err("nothing else")),
        ("uri", Err("nothing else")),
        ("uri=a&uri=b", Err("nothing else")),
        ("url=a", Err("nothing else")),
        ("uri=%ff", Err("UTF-8")),
    ] {
        let RouteMatch::Route(route, _) = goblin_admin::routes::find(&http::Method::GET, "/api/subscriptions") else {
            panic!("none")
        };
        match (read_query(route, query), expected) {
            (Ok(uri), Ok(expected)) => assert_eq!(uri.as_deref(), expected, "{query}"),
            (Err(denied), Err(words)) => assert!(denied.message.contains(words), "{query}: {}", denied.message),
            (Ok(uri), Err(_)) => panic!("{query}: {uri:?}"),
            (Err(denied), Ok(_)) => panic!("{query}: {}", denied.message),
        }
    }
}

/// Posts to a route with the correct token.
async fn change(admin: &Arc<Admin>, path: &str) -> (u16, Value) {
    let token = format!("Bearer {}", admin.permit.token().expose());
    let request = http::Request::post(path).header("authorization", token).body(Body::empty()).expect("a request");
    let response = routes(admin).call(request).await.expect("it cannot fail");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a whole body").to_bytes();
    (status, serde_json::from_slice(&body).expect("JSON"))
}

fn message(text: &str) -> Value {
    json!({ "error": { "message": text } })
}

#[tokio::test]
async fn commands_are_passed_on_and_answered_as_they_end() {
    let readiness = watch::Sender::new(Readiness::Starting);
    let (commands, mut waiting) = mpsc::channel(1);
    let admin = Arc::new(admin(&readiness, commands));
    let mut play = async |path: &str, act: &dyn Fn(AdminCommand)| {
        let (answer, ()) = tokio::join!(change(&admin, path), async { act(waiting.recv().await.expect("a command")) });
        answer
    };
    let reloaded = Reloaded { started: vec!["a".to_owned()], unchanged: 2, ..Reloaded::default() };
    let done = play("/api/reload", &|command| match command {
        AdminCommand::Reload(done) => done.send(Ok(reloaded.clone())).expect("it is waited for"),
        AdminCommand::Server { .. } => panic!("another command"),
    })
    .await;
    assert_eq!(done, (200, json!({"started": ["a"], "changed": [], "stopped": [], "unchanged": 2})));
    let refused = play("/api/reload", &|command| match command {
        AdminCommand::Reload(done) => {
            done.send(Err(AdminError::new(StatusCode::UNPROCESSABLE_ENTITY, "bad"))).expect("it is waited for")
        }
        AdminCommand::Server { .. } => panic!("another command"),
    })
    .await;
    assert_eq!(refused, (422, message("bad")));
    for wish in ServerAction::ALL {
        for (outcome, status) in [
            (Ok(()), 200),
            (Err(AdminError::new(StatusCode::NOT_FOUND, "none")), 404),
            (Err(AdminError::new(StatusCode::CONFLICT, "it is")), 409),
        ] {
            let (status_of, body) = play(&format!("/api/servers/off/{}", wish.as_str()), &|command| match command {
                AdminCommand::Server { id, wish: asked, done } => {
                    assert_eq!((id.as_str(), asked), ("off", wish));
                    done.send(outcome.clone()).expect("it is waited for");
                }
                AdminCommand::Reload(_) => panic!("another command"),
            })
            .await;
            assert_eq!(status_of, status, "{wish:?} {body}");
            match outcome {
                Ok(()) => assert_eq!((&body["id"], &body["state"]), (&json!("off"), &json!("disabled"))),
                Err(refusal) => assert_eq!(body, message(&refusal.message)),
            }
        }
    }
}

#[tokio::test]
async fn a_command_that_nobody_can_take_is_refused_at_once() {
    let readiness = watch::Sender::new(Readiness::Starting);
    let (commands, waiting) = mpsc::channel(1);
    let (done, _outcome) = tokio::sync::oneshot::channel();
    commands.try_send(AdminCommand::Reload(done)).expect("there is room for one");
    let full = Arc::new(admin(&readiness, commands));
    assert_eq!(change(&full, "/api/reload").await, (503, message("too many commands wait; try again later")));
    drop(waiting);
    assert_eq!(change(&full, "/api/servers/off/enable").await, (503, message("the gateway stops")));
    let (status, body) = change(&full, &format!("/api/servers/{}/enable", "x".repeat(65))).await;
    assert!(status == 404 && body.to_string().contains("there is no server"), "{body}");
}

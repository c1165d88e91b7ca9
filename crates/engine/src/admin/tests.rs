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
async fn sess2_the_gateway_is_ready_only_between_start_and_stop() {
    let readiness = watch::Sender::new(Readiness::Starting);
    let mut routes = routes(&Arc::new(admin(&readiness, mpsc::channel(1).0)));
    for (state, status) in [(Readiness::Starting, 503), (Readiness::Ready, 200), (Readiness::Stopping, 503)] {
        readiness.send_replace(state);
        for (path, status) in [("/readyz", status), ("/healthz", 200)] {
            let request = http::Request::get(path).body(Body::empty()).expect("a request");
            let response = routes.call(request).await.expect("the service cannot fail");
            assert_eq!(response.status().as_u16(), status, "{path} {state:?}");
        }
    }
}

#[test]
fn sub15_a_subscription_query_has_at_most_one_uri() {
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
        match (Query::read(route, query), expected) {
            (Ok(read), Ok(expected)) => assert_eq!(read.get("uri"), expected, "{query}"),
            (Err(denied), Err(expected)) => assert!(denied.message.contains(expected), "{query}: {}", denied.message),
            (Ok(read), Err(_)) => panic!("{query}: {read:?}"),
            (Err(denied), Ok(_)) => panic!("{query}: {}", denied.message),
        }
    }
}

/// Posts to a route with the correct token.
async fn change(admin: &Arc<Admin>, path: &str) -> (u16, Value) {
    let token = format!("Bearer {}", admin.permit.token().expose());
    let request = http::Request::post(path).header("authorization", token).body(Body::empty()).expect("a request");
    let response = routes(admin).call(request).await.expect("the service cannot fail");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a whole body").to_bytes();
    (status, serde_json::from_slice(&body).expect("JSON"))
}

fn message(text: &str) -> Value {
    json!({ "error": { "message": text } })
}

#[tokio::test]
async fn admin_commands_are_forwarded_and_their_outcome_is_returned() {
    let readiness = watch::Sender::new(Readiness::Starting);
    let (commands, mut waiting) = mpsc::channel(1);
    let admin = Arc::new(admin(&readiness, commands));
    let mut execute = async |path: &str, act: &dyn Fn(AdminCommand)| {
        let (answer, ()) = tokio::join!(change(&admin, path), async { act(waiting.recv().await.expect("a command")) });
        answer
    };
    let reloaded = Reloaded { started: vec!["a".to_owned()], unchanged: 2, ..Reloaded::default() };
    let done = execute("/api/reload", &|command| match command {
        AdminCommand::Reload(done) => done.send(Ok(reloaded.clone())).expect("the route waits for the outcome"),
        AdminCommand::Server { .. } => panic!("another command"),
    })
    .await;
    assert_eq!(done, (200, json!({"started": ["a"], "changed": [], "stopped": [], "unchanged": 2, "settings": []})));
    let rejected = execute("/api/reload", &|command| match command {
        AdminCommand::Reload(done) => done
            .send(Err(AdminError::new(StatusCode::UNPROCESSABLE_ENTITY, "bad")))
            .expect("the route waits for the outcome"),
        AdminCommand::Server { .. } => panic!("another command"),
    })
    .await;
    assert_eq!(rejected, (422, message("bad")));
    for action in ServerAction::ALL {
        for (outcome, status) in [
            (Ok(()), 200),
            (Err(AdminError::new(StatusCode::NOT_FOUND, "none")), 404),
            (Err(AdminError::new(StatusCode::CONFLICT, "conflict")), 409),
        ] {
            let (status_of, body) =
                execute(&format!("/api/servers/off/{}", action.as_str()), &|command| match command {
                    AdminCommand::Server { id, action: received, done } => {
                        assert_eq!((id.as_str(), received), ("off", action));
                        done.send(outcome.clone()).expect("the route waits for the outcome");
                    }
                    AdminCommand::Reload(_) => panic!("another command"),
                })
                .await;
            assert_eq!(status_of, status, "{action:?} {body}");
            match outcome {
                Ok(()) => assert_eq!((&body["id"], &body["state"]), (&json!("off"), &json!("disabled"))),
                Err(error) => assert_eq!(body, message(&error.message)),
            }
        }
    }
}

#[tokio::test]
async fn a_command_without_a_free_receiver_is_rejected_immediately() {
    let readiness = watch::Sender::new(Readiness::Starting);
    let (commands, waiting) = mpsc::channel(1);
    let (done, _outcome) = tokio::sync::oneshot::channel();
    commands.try_send(AdminCommand::Reload(done)).expect("there is room for one");
    let full = Arc::new(admin(&readiness, commands));
    assert_eq!(change(&full, "/api/reload").await, (503, message("too many commands are queued; try again later")));
    drop(waiting);
    assert_eq!(change(&full, "/api/servers/off/enable").await, (503, message("the gateway is shutting down")));
    let (status, body) = change(&full, &format!("/api/servers/{}/enable", "x".repeat(65))).await;
    assert!(status == 404 && body.to_string().contains("there is no server"), "{body}");
}

//! Rejections of a gateway on a Unix socket: peers of other users, foreign paths, open directories (HARD-10).
//!
//! The gateway never removes a file that is not its own socket.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::process::{Uid, geteuid};
use serde_json::json;

use crate::harness::{Gateway, fixture_server, servers_only};
use crate::home::Home;
use crate::hostile::{Attack, HEALTHY, counter};
use crate::socket_gateway::{SOCKET, SocketGateway, await_tools, home_with, socket_of};

/// The id of a user without any files.
const OTHER_USER: u32 = 65534;
/// The number of connections of the other user.
const CONNECTIONS: usize = 200;
/// The memory of a gateway with one server in a debug build, with a margin, in MiB.
const MAX_MEMORY_MIB: u64 = 200;

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("the test owns the file");
}

/// Creates the directory of the socket with this mode.
fn make_directory(home: &Home, mode: u32) {
    let socket = socket_of(home);
    let directory = socket.parent().expect("a directory");
    std::fs::create_dir(directory).expect("a directory");
    set_mode(directory, mode);
}

/// Asserts that the gateway does not start, and that its error contains these words.
async fn assert_rejected(home: &Home, fragments: &[&str]) {
    let mut gateway = SocketGateway::spawn(home);
    let code = gateway.outcome().await;
    assert!(code.is_some_and(|code| code > 0), "{code:?}: {:?}", gateway.log());
    crate::harness::eventually("the error is complete", || async {
        let log = gateway.log().join("\n");
        fragments.iter().all(|fragment| log.contains(fragment)).then_some(())
    })
    .await;
}

/// Connects as another user, sends a request and returns the response.
fn request_as(uid: u32, socket: &Path) -> Vec<u8> {
    let socket = socket.to_owned();
    // Only the uid of this thread changes, so that concurrent tests keep theirs.
    let connecting = std::thread::spawn(move || {
        let uid = Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("root may");
        let mut stream = UnixStream::connect(socket).expect("the directory was opened");
        let mut answer = Vec::new();
        // The gateway may close the connection before the request is written.
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let _ = stream.read_to_end(&mut answer);
        answer
    });
    connecting.join().expect("a connection")
}

/// Only root can act as another user. The test does nothing for other users.
#[tokio::test]
async fn hard10_connections_of_another_user_are_closed_counted_and_logged_once() {
    if !geteuid().is_root() {
        return;
    }
    let config = json!({ "gateway": { "socket": SOCKET }, "mcpServers": { HEALTHY: fixture_server(&[]) } });
    let home = Home::new(&servers_only(config));
    let socket = socket_of(&home);
    let gateway = Gateway::of(home.goblin(&["serve", "--port", "0", "--config", home.config()])).await;
    let attack = Attack::begin("socket-other-user", &gateway).await;
    // The test opens the permissions that the gateway has closed.
    set_mode(socket.parent().expect("a directory"), 0o711);
    set_mode(&socket, 0o666);
    let client = gateway.client().await;
    let path = socket.clone();
    let attacking = tokio::task::spawn_blocking(move || {
        for _ in 0..CONNECTIONS {
            assert_eq!(request_as(OTHER_USER, &path), b"", "another user gets no answer");
        }
    });
    attacking.await.expect("no answer");
    let rejected = counter(&client, "goblin_events_total", r#"kind="peer_rejected""#).await;
    assert_eq!(rejected, CONNECTIONS as u64);
    let log = gateway.log();
    let lines: Vec<_> =
        log.iter().filter(|line| line.contains(&format!("the uid of the process is {OTHER_USER}"))).collect();
    assert!(lines.len() == 1 && lines[0].contains("WARN"), "{lines:?}");
    assert!(request_as(0, &socket).starts_with(b"HTTP/1.1 200"), "the own user is served");
    attack.end(MAX_MEMORY_MIB).await;
}

#[tokio::test]
async fn hard10_a_socket_of_a_killed_gateway_is_replaced() {
    let home = home_with(json!({}));
    let socket = socket_of(&home);
    let mut killed = SocketGateway::start(&home).await;
    killed.end("KILL").await;
    let metadata = std::fs::symlink_metadata(&socket).expect("a killed gateway leaves its socket");
    assert!(metadata.file_type().is_socket());
    let _gateway = SocketGateway::start(&home).await;
    await_tools(&socket).await;
}

#[tokio::test]
async fn hard10_a_socket_that_is_served_is_not_replaced() {
    let home = home_with(json!({}));
    let socket = socket_of(&home);
    let _gateway = SocketGateway::start(&home).await;
    let before = std::fs::symlink_metadata(&socket).expect("a socket").ino();
    assert_rejected(&home, &["another gateway serves at", "choose another gateway.socket"]).await;
    assert_eq!(std::fs::symlink_metadata(&socket).expect("a socket").ino(), before);
    await_tools(&socket).await;
    // A program that never accepts is alive too, even if its queue is full.
    let home = home_with(json!({}));
    make_directory(&home, 0o700);
    let socket = socket_of(&home);
    let busy = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
    busy.bind(&socket2::SockAddr::unix(&socket).expect("an address")).expect("a free path");
    busy.listen(0).expect("a listener");
    let _waiting = UnixStream::connect(&socket).expect("the queue has room for one");
    assert_rejected(&home, &["another gateway serves at"]).await;
    assert!(socket.exists());
}

#[tokio::test]
async fn hard10_only_one_of_several_gateways_that_start_at_once_serves() {
    let home = home_with(json!({}));
    make_directory(&home, 0o700);
    let socket = socket_of(&home);
    for _ in 0..3 {
        // A dead socket: the listener is closed, and the file stays.
        drop(UnixListener::bind(&socket).expect("a free path"));
        let mut gateways: Vec<_> = (0..6).map(|_| SocketGateway::spawn(&home)).collect();
        let mut serving = Vec::new();
        for gateway in &mut gateways {
            let outcome = gateway.outcome().await;
            serving.extend(outcome.is_none().then_some(gateway));
        }
        assert_eq!(serving.len(), 1, "one gateway serves");
        await_tools(&socket).await;
        serving[0].end("TERM").await;
        assert!(!socket.exists());
    }
}

#[tokio::test]
async fn hard10_a_file_that_is_not_a_socket_of_the_gateway_is_never_removed() {
    let home = home_with(json!({}));
    make_directory(&home, 0o700);
    let socket = socket_of(&home);
    std::fs::write(&socket, "precious").expect("a file");
    assert_rejected(&home, &["is not a socket", "choose another gateway.socket"]).await;
    assert_eq!(std::fs::read_to_string(&socket).expect("the file is there"), "precious");
    // A link to a dead socket is not a socket.
    let elsewhere = socket.with_file_name("elsewhere");
    std::fs::remove_file(&socket).expect("the test owns the file");
    drop(UnixListener::bind(&elsewhere).expect("a free path"));
    std::os::unix::fs::symlink(&elsewhere, &socket).expect("a link");
    assert_rejected(&home, &["is not a socket"]).await;
    assert!(elsewhere.exists() && std::fs::symlink_metadata(&socket).is_ok());
    if geteuid().is_root() {
        std::fs::remove_file(&socket).expect("the test owns the link");
        drop(UnixListener::bind(&socket).expect("a free path"));
        std::os::unix::fs::chown(&socket, Some(OTHER_USER), None).expect("root may");
        assert_rejected(&home, &["belongs to another user"]).await;
        assert!(socket.exists());
    }
}

#[tokio::test]
async fn hard10_a_file_that_replaced_the_socket_is_not_removed_at_shutdown() {
    let home = home_with(json!({}));
    let socket = socket_of(&home);
    let mut gateway = SocketGateway::start(&home).await;
    std::fs::remove_file(&socket).expect("the test owns the socket");
    let _other = UnixListener::bind(&socket).expect("a free path");
    gateway.end("TERM").await;
    assert!(socket.exists(), "the socket of another program stays");
}

#[tokio::test]
async fn hard10_a_directory_that_others_can_enter_is_rejected() {
    for mode in [0o755, 0o710, 0o701, 0o770] {
        let home = home_with(json!({}));
        make_directory(&home, mode);
        assert_rejected(&home, &[&format!("mode {mode:03o}"), "chmod 700"]).await;
        assert!(!socket_of(&home).exists());
        let doctor = home.run(&["doctor", "--config", home.config(), "--no-connect"]).await;
        assert!(doctor.code == Some(1) && doctor.text().contains("chmod 700"), "{doctor:?}");
    }
    if geteuid().is_root() {
        let home = home_with(json!({}));
        make_directory(&home, 0o700);
        let socket = socket_of(&home);
        std::os::unix::fs::chown(socket.parent().expect("a directory"), Some(OTHER_USER), None).expect("root may");
        assert_rejected(&home, &["belongs to another user"]).await;
    }
    // A link to a private directory could be changed later.
    let home = home_with(json!({}));
    let real = home.scratch.path().join("real");
    std::fs::create_dir(&real).expect("a directory");
    set_mode(&real, 0o700);
    std::os::unix::fs::symlink(&real, socket_of(&home).parent().expect("a directory")).expect("a link");
    assert_rejected(&home, &["is not a directory"]).await;
}

#[tokio::test]
async fn hard10_a_too_long_or_missing_socket_path_is_a_problem_of_the_configuration() {
    let check = |path: String| async move {
        let home = home_with(json!({ "socket": path }));
        home.run(&["check", "--config", home.config()]).await
    };
    let path = |bytes: usize| format!("/{}", "x".repeat(bytes - 1));
    let fits = check(path(104)).await;
    assert_eq!(fits.code, Some(0), "{fits:?}");
    let long = check(path(105)).await;
    let output = format!("{}{}", long.text(), long.stderr);
    assert!(long.code.is_some_and(|code| code > 0), "{long:?}");
    assert!(output.contains("gateway.socket") && output.contains("at most 104 bytes"), "{output}");
    let home = Home::new(&json!({ "gateway": { "tcp": false }, "mcpServers": {} }));
    let nowhere = home.run(&["check", "--config", home.config()]).await;
    let output = format!("{}{}", nowhere.text(), nowhere.stderr);
    assert!(output.contains("gateway.tcp") && output.contains("set gateway.socket"), "{output}");
}

//! Sends a client to the URL of a login that its call needs.
//!
//! A login binds one account for all clients. The gateway therefore sends the URL only if no other machine can reach it.
//! Otherwise, and to clients that cannot open a URL, it sends the command for the operator.

use std::sync::Arc;
use std::time::Duration;

use goblin_wire::json::quote;
use goblin_wire::{Dialect, Error, Method, Request};

use crate::client::call::{Call, Reply};
use crate::router::Router;
use crate::router::inputs::{STATE_LIFETIME, URL_ELICITATION_REQUIRED, input_required};
use crate::router::state::RequestState;

/// The longest wait for the authorization server, which the URL comes from.
const URL_TIMEOUT: Duration = Duration::from_secs(15);

impl Router {
    /// Returns the reply to a call whose backend needs a login.
    pub(super) async fn login_reply(&self, call: &Arc<Call>, error: &Error) -> Reply {
        let elicitation = self.login_elicitation(call).await;
        let (request, caller) = (&call.request, &call.caller);
        match elicitation {
            Some(elicitation) if !caller.dialect.has_server_requests() => {
                let requests = format!(r#""login":{{"method":"elicitation/create","params":{elicitation}}}"#);
                let state = self.states.seal(&RequestState::Restart, caller, request, STATE_LIFETIME);
                goblin_wire::reply(&request.id, input_required(&requests, &state)).into()
            }
            Some(elicitation) => {
                let message = quote(&error.to_string());
                let error = format!(
                    r#"{{"code":{URL_ELICITATION_REQUIRED},"message":{message},"data":{{"elicitations":[{elicitation}]}}}}"#
                );
                let pieces = goblin_wire::error_reply(Some(&request.id), &error);
                Reply { pieces, code: URL_ELICITATION_REQUIRED.parse().ok(), is_error: true }
            }
            None => self.error(request, caller, error),
        }
    }

    /// Begins a login and returns the parameters of the elicitation with its URL. Returns `None` if the client must not
    /// get the URL or cannot open it, or if there is no URL.
    async fn login_elicitation(&self, call: &Arc<Call>) -> Option<String> {
        let caller = &call.caller;
        let can_open = caller.client_capabilities.elicitation_url && caller.dialect >= Dialect::V2025_11_25;
        if !self.offers_logins || !can_open || !may_need_input(&call.request) {
            return None;
        }
        let server = call.server.get()?;
        let backends = self.catalogs.backends();
        let backend = backends.iter().find(|backend| backend.id == *server)?;
        let login = backend.login()?;
        let begun = tokio::time::timeout(URL_TIMEOUT, Arc::clone(login).url_for_clients()).await;
        let url = begun.ok()?.ok()?;
        let message = quote(&format!("Log in to {server} in the browser, then continue."));
        Some(match caller.dialect.has_server_requests() {
            true => {
                let id = elicitation_id();
                let elicitation =
                    format!(r#"{{"mode":"url","message":{message},"elicitationId":"{id}","url":{}}}"#, quote(&url));
                login.notify_when_done(id, &call.client);
                elicitation
            }
            false => format!(r#"{{"mode":"url","message":{message},"url":{}}}"#, quote(&url)),
        })
    }
}

fn elicitation_id() -> String {
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the system has a random source");
    format!("login-{:032x}", u128::from_be_bytes(random))
}

/// Reports whether the result of a request may request input.
fn may_need_input(request: &Request) -> bool {
    matches!(request.method, Method::ToolsCall | Method::PromptsGet | Method::ResourcesRead)
}

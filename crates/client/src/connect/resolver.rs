//! Looks up the addresses of a name, and removes those that the address rule refuses.
//!
//! The connector connects to the addresses that this resolver returns, so a name cannot change its address between
//! the check and the connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};
use std::vec::IntoIter;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower_service::Service;

use crate::connect::reach::Reach;

/// The lookup of a client. Without a rule it returns each address.
#[derive(Clone)]
pub(crate) struct Resolver {
    source: AddressSource,
    reach: Option<Reach>,
}

#[derive(Clone)]
enum AddressSource {
    System(GaiResolver),
    /// Returns the first list of addresses at the first lookup, and so on.
    #[cfg(test)]
    Lists(std::sync::Arc<parking_lot::Mutex<std::collections::VecDeque<Vec<SocketAddr>>>>),
}

/// The address rule refused all addresses of a name.
#[derive(Debug, thiserror::Error)]
#[error(
    "the name leads to {address}, which is more private than the server that names it (only a server in the same \
     network may name such an address)"
)]
pub(crate) struct OutOfReach {
    address: IpAddr,
}

impl Resolver {
    pub(crate) fn new(reach: Option<Reach>) -> Resolver {
        Resolver { source: AddressSource::System(GaiResolver::new()), reach }
    }
}

impl Service<Name> for Resolver {
    type Response = IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, Result<IntoIter<SocketAddr>, io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let reach = self.reach;
        match &mut self.source {
            AddressSource::System(system) => {
                system.call(name).map(move |found| within(reach, found?.collect())).boxed()
            }
            #[cfg(test)]
            AddressSource::Lists(lists) => {
                let next = lists.lock().pop_front().unwrap_or_default();
                futures_util::future::ready(within(reach, next)).boxed()
            }
        }
    }
}

/// Returns the addresses that the rule allows. Returns an error if it refuses all of them.
fn within(reach: Option<Reach>, addresses: Vec<SocketAddr>) -> Result<IntoIter<SocketAddr>, io::Error> {
    let Some(reach) = reach else { return Ok(addresses.into_iter()) };
    let (allowed, refused): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|address| reach.allows(address.ip()));
    match refused.first() {
        Some(address) if allowed.is_empty() => Err(io::Error::other(OutOfReach { address: address.ip() })),
        _ => Ok(allowed.into_iter()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::poll_fn;
    use std::sync::Arc;

    use http::Uri;
    use hyper_util::client::legacy::connect::HttpConnector;
    use parking_lot::Mutex;
    use tokio::net::TcpListener;

    use super::*;

    fn lists(lists: &[&[SocketAddr]], reach: Reach) -> Resolver {
        let lists: VecDeque<_> = lists.iter().map(|list| list.to_vec()).collect();
        Resolver { source: AddressSource::Lists(Arc::new(Mutex::new(lists))), reach: Some(reach) }
    }

    #[tokio::test]
    async fn oauth1_a_name_that_changes_its_address_reaches_no_private_host() {
        let canary = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let own = canary.local_addr().expect("an address");
        let public = SocketAddr::from(([8, 8, 8, 8], own.port()));
        let mut resolver = lists(&[&[public], &[own], &[own, public], &[]], Reach::Public);
        let name = || "rebinding.example".parse::<Name>().expect("a name");
        let first = resolver.call(name()).await.expect("a public address");
        assert_eq!(first.collect::<Vec<_>>(), [public]);
        let second = resolver.call(name()).await.expect_err("loopback is refused");
        assert!(second.to_string().contains("127.0.0.1"), "{second}");
        let third = resolver.call(name()).await.expect("one of the addresses is public");
        assert_eq!(third.collect::<Vec<_>>(), [public]);
        assert_eq!(resolver.call(name()).await.expect("no address is no refusal").count(), 0);

        let connect = async |reach| {
            let mut connector = HttpConnector::new_with_resolver(lists(&[&[own]], reach));
            let target = Uri::try_from(format!("http://rebinding.example:{}/", own.port())).expect("a URL");
            poll_fn(|context| connector.poll_ready(context)).await.expect("ready");
            connector.call(target).await
        };
        connect(Reach::Private).await.expect_err("loopback is refused");
        connect(Reach::Everything).await.expect("loopback is allowed");
        let (_, seen) = canary.accept().await.expect("the allowed connection");
        assert!(seen.ip().is_loopback());
        let more = tokio::time::timeout(std::time::Duration::from_millis(20), canary.accept()).await;
        assert!(more.is_err(), "the refused connection was never opened");
    }
}

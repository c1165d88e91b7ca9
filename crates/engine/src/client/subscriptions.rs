//! The subscription table with this gateway's clients.

use crate::client::Client;

pub(crate) type AffectedSubscription<'a> = goblin_subscriptions::AffectedSubscription<'a, Client>;
pub(crate) type SubscriptionEntry = goblin_subscriptions::SubscriptionEntry<Client>;
pub(crate) type SubscriptionTable = goblin_subscriptions::table::SubscriptionTable<Client>;
pub(crate) type DrainedSubscriptions = goblin_subscriptions::handover::DrainedSubscriptions<Client>;
pub(crate) type Notice = goblin_subscriptions::Notice<Client>;
pub(crate) type Subscription = goblin_subscriptions::Subscription<Client>;
pub(crate) type SubscribeRequest = goblin_subscriptions::SubscribeRequest<Client>;

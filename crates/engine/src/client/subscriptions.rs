//! The subscription table with the mailboxes of this gateway's clients.

use crate::client::mailbox::Mailbox;

pub(crate) type AffectedSubscription<'a> = goblin_subscriptions::AffectedSubscription<'a, Mailbox>;
pub(crate) type SubscriptionEntry = goblin_subscriptions::SubscriptionEntry<Mailbox>;
pub(crate) type SubscriptionTable = goblin_subscriptions::table::SubscriptionTable<Mailbox>;
pub(crate) type Notice = goblin_subscriptions::Notice<Mailbox>;
pub(crate) type Subscription = goblin_subscriptions::Subscription<Mailbox>;
pub(crate) type SubscribeRequest = goblin_subscriptions::SubscribeRequest<Mailbox>;

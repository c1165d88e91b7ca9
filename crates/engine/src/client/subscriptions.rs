//! The subscription table with the mailboxes of this gateway's clients.

use crate::client::mailbox::Mailbox;

pub(crate) type Affected<'a> = goblin_subscriptions::Affected<'a, Mailbox>;
pub(crate) type Entry = goblin_subscriptions::Entry<Mailbox>;
pub(crate) type Interests = goblin_subscriptions::interests::Interests<Mailbox>;
pub(crate) type Notice = goblin_subscriptions::Notice<Mailbox>;
pub(crate) type Subscription = goblin_subscriptions::Subscription<Mailbox>;
pub(crate) type Wish = goblin_subscriptions::Wish<Mailbox>;

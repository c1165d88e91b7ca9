//! The subscription table with the mailboxes of this gateway's clients.

use crate::client::mailbox::Mailbox;

pub type Affected<'a> = goblin_subscriptions::Affected<'a, Mailbox>;
pub type Entry = goblin_subscriptions::Entry<Mailbox>;
pub type Interests = goblin_subscriptions::interests::Interests<Mailbox>;
pub type Notice = goblin_subscriptions::Notice<Mailbox>;
pub type Subscription = goblin_subscriptions::Subscription<Mailbox>;
pub type Wish = goblin_subscriptions::Wish<Mailbox>;

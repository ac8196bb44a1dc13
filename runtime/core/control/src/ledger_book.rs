//! The record of who holds which device, as the device manager writes it through the node's owner.

use tokio::sync::{mpsc, oneshot};

use crate::machine::{ControlAnswer, ControlEvent, ControlRequest};
use crate::owner::Message;
use ostler_device::ledger::InstanceHolder;
use ostler_device::manager::LedgerBook;
use ostler_model::clock;
use ostler_model::limits::STATE_WRITE_WALL_MAX;
use ostler_model::ports::{BoxFuture, PluginCallError};

/// The node's ledger for the device manager. It keeps the owner alive only during a call.
pub(crate) struct ControlLedgerBook(pub(crate) mpsc::WeakSender<Message>);

impl ControlLedgerBook {
    async fn keep_entry(&self, holder: &InstanceHolder) -> Result<(), String> {
        let Some(queue) = self.0.upgrade() else {
            return Err("the agent is shutting down".to_owned());
        };
        let (reply, answer) = oneshot::channel();
        let ask = ControlRequest::KeepDevices(holder.clone());
        let kept = async {
            queue.send(Message::Ask { ask, reply }).await.ok()?;
            answer.await.ok()
        };
        match clock::timeout(STATE_WRITE_WALL_MAX, kept).await {
            Some(Some(ControlAnswer::Written(Ok(())))) => Ok(()),
            Some(Some(ControlAnswer::Written(Err(error)))) => {
                Err(format!("the holders of the devices could not be recorded: {error}"))
            }
            Some(_) => Err("the agent is shutting down".to_owned()),
            None => Err("the holders of the devices were not recorded in time".to_owned()),
        }
    }
}

impl LedgerBook for ControlLedgerBook {
    fn keep<'a>(
        &'a self,
        holder: &'a InstanceHolder,
    ) -> BoxFuture<'a, Result<(), PluginCallError>> {
        Box::pin(async move { self.keep_entry(holder).await.map_err(PluginCallError::Recoverable) })
    }

    fn clear_holder<'a>(&'a self, holder: &'a InstanceHolder) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(queue) = self.0.upgrade() {
                let released = Message::ControlEvent(ControlEvent::DevicesReleased(holder.clone()));
                // An error means that the owner has ended; the next agent releases once more.
                let _ended = queue.send(released).await;
            }
        })
    }
}

"""The shop's confirmation under the topics of ``FAULTS_TOPICS``: each consumer serves its own."""

from __future__ import annotations

import os
import signal

from consumers.email import Emails, Message
from shop_example.emails import OrderConfirmation, order_confirmation

emails = Emails()


def confirmation(order: OrderConfirmation) -> Message:
    """Render the shop's own e-mail.

    ``FAULTS_TEMPLATE_DRIFT`` is another release of it; ``FAULTS_KILLER`` is an order whose
    rendering takes the whole process along.
    """
    if str(order.order_id) == os.environ.get("FAULTS_KILLER"):
        os.kill(os.getpid(), signal.SIGKILL)
    message = order_confirmation(order)
    if drift := os.environ.get("FAULTS_TEMPLATE_DRIFT"):
        return Message(to=message.to, subject=f"{message.subject} {drift}", text=message.text)
    return message


for topic in os.environ["FAULTS_TOPICS"].split(","):
    emails.topic(topic)(confirmation)

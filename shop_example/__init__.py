"""A small shop that shows the pattern: an order, and its e-mail.

Start with ``orders.place_order`` (the transaction) and ``emails.order_confirmation`` (the text).
``python -m shop_example --help`` lists the commands.
"""

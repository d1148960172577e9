//! An image that was made to harm the machine which pulls or imports it.

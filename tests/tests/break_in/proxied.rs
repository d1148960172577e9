//! A client in front of which an impersonating proxy stands, as the agent is for a hub.

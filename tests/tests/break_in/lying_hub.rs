//! A hub that a site is tied to, limited by the site's owner or not, which sends what it should not.

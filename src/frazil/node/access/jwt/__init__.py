"""Parts of the verification of tokens: their form, a cache, the fetch of keys."""

"""Several servers behind SGLang's router, one learner, and no shared disk: what `make fleet` runs.

Options come in; a table, a report and a picture go out. Drafts travel through an S3 server on this machine. Redis is
behind Sentinels, and fails over once.
"""

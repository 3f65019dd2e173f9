"""Integrations: the registry inside other libraries. Each imports what it integrates with; nothing else imports it."""
